"""Tempering of learned attention: convergence, evidence and cost, beside chains without it.

python -m benchmarks.attention.tempering location|narrow [SEEDS]
python -m benchmarks.attention.tempering forms [NAME] [SEEDS] [SWEEPS] [DRAWS]
python -m benchmarks.attention.tempering agreement [VALUES]

``location`` is the single-location problem of 100 examples at N = 10, four independent runs of four
chains for each seed of the data, and four chains of the no-U-turn sampler; ``forms`` has queries
and keys, three heads, two layers, other widths, and the copying task, with stages of SWEEPS sweeps
and as many DRAWS of a chain as are given; ``agreement`` weighs the modes of that task; ``narrow``
is a target with a narrow mode of a known mass, beside sequential Monte Carlo from a wide density.
Times are CPU seconds of everything: pilots, stages, draws, but not compilation, which a first run
of few steps pays.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats

import pathkernel_core as pk
from benchmarks.attention.learned import copying, started, tell_apart
from benchmarks.sampling.chains import mean_and_error, sample
from pathkernel_sampling.attention.exchanges import ExchangeTarget
from pathkernel_sampling.attention.models import attention_model
from pathkernel_sampling.attention.modes import find_modes
from pathkernel_sampling.attention.tempered import start_chains
from pathkernel_sampling.models.likelihood import pytree
from pathkernel_sampling.tempering.levels import swap_rates
from pathkernel_sampling.tempering.replicas import sweep
from pathkernel_sampling.tempering.stages import agree, estimate, stage_evidence, temper_chains

RUNS, CHAINS, SWEEPS, DRAWS = 4, 4, 500, 2000
CLUSTERED = 4000  # draws in which modes are sought


def by_tempering(model, seed, sweeps=SWEEPS, draws=DRAWS, chains=CHAINS, runs=1):
    """Positions (chain, draw, dimension) of runs, evidences, notes and CPU seconds.

    Chains of a run share the mixtures that are fitted to their draws; runs share nothing.
    """
    began, positions, evidences, notes = time.process_time(), [], [], []
    for run in range(runs):
        of_run = jax.random.fold_in(jax.random.key(seed), run)
        keys = [jax.random.fold_in(of_run, chain) for chain in range(chains)]
        for chain, start in enumerate(start_chains(model, keys, sweeps)):
            ladder, target = start.stage.ladder, ExchangeTarget(model, start.directions)
            key = jax.random.fold_in(keys[chain], 2**31)
            generator = np.random.default_rng([seed, run, chain])
            _, rows = sweep(target, ladder, start.stage.replicas, key, generator, draws)
            now = estimate(
                target, ladder, float(start.stage.share), rows["log_ratio"], rows["position"]
            )
            count = int(ladder.count)
            swaps = swap_rates(rows["log_ratio"][:, :count], ladder.levels[:count])
            positions.append(rows["position"])
            evidences.append(now.log_evidence + target.log_copies)
            smallest = round(float(swaps.min()), 2)
            notes.append((int(start.stage.number), agree(start.stage.before, now), count, smallest))
        print(
            f"  run {run + 1}: ln Z {np.round(evidences[-chains:], 2)}, {notes[-chains:]}, "
            f"{time.process_time() - began:.0f} CPU s so far",
            flush=True,
        )
    return np.stack(positions), evidences, notes, time.process_time() - began


def by_nuts(model, seed, warm_up, draws):
    """The same of chains of the no-U-turn sampler, without evidences."""
    started = time.process_time()
    drawn = sample(model, CHAINS, warm_up, draws, seed=seed)
    return drawn["position"], [np.nan], [], time.process_time() - started


def attention_of(model, positions, inputs):
    """Attention (draw, H, examples, M) of each layer in positions (chain · draw, dimension)."""
    posterior = model.posterior

    @jax.jit
    def attend(x):
        layers = posterior.layers_at(model.attention(x))
        return [layer.attention(inputs, query=inputs.shape[1] - 1)[..., 0] for layer in layers]

    of_draws = [attend(x) for x in positions]
    return [
        np.stack([np.asarray(omega).swapaxes(0, 1) for omega in of_layer])
        for of_layer in zip(*of_draws)
    ]


def quantities(model, positions, inputs):
    """Log likelihood, tr U, tokens attended by the heads, and masses of modes, by name."""
    chains, draws, dimension = positions.shape

    def evaluate(x):
        # the likelihood, since an exchange of heads changes the prior of coordinates of U
        likelihood = model.log_density(x) - model.log_prior(x)
        return likelihood, jnp.trace(model.order_parameter(x))

    values = jax.jit(lambda x: jax.lax.map(evaluate, x))
    flat = positions.reshape(-1, dimension)
    likelihood, trace = (np.asarray(array).reshape(chains, draws) for array in values(flat))
    named = {"log likelihood": likelihood, "tr U": trace}
    chosen = slice(None, None, max(1, draws * chains // CLUSTERED))
    heads = attention_of(model, positions[:, chosen].reshape(-1, dimension), jnp.asarray(inputs))
    modes = find_modes(heads, chains)
    every = max(1, draws // modes.labels.shape[1])
    for number, of_layer in enumerate(heads, start=1):
        entropy = -np.sum(of_layer * np.log(np.maximum(of_layer, 1e-300)), axis=3).mean(2)
        attended = np.sort(np.exp(entropy), axis=1)
        for head, column in enumerate(attended.T, start=1):
            named[f"tokens of head {number}-{head}"] = column.reshape(chains, -1)
    for number, name in enumerate(modes.names):
        named[f"mass of {name}"] = (modes.labels == number).astype(float)
    return named, modes, every


def compare(model, seed, inputs, sweeps=SWEEPS, draws=DRAWS):
    """Print R-hat of the runs, ESS a CPU second, masses and evidences of each method."""
    for name, run in {
        "tempering": lambda: by_tempering(model, seed, sweeps, draws, runs=RUNS),
        "nuts": lambda: by_nuts(model, seed, 2 * sweeps, draws),
    }.items():
        positions, evidences, notes, seconds = run()
        named, modes, every = quantities(model, positions, inputs)
        worst, slowest = {"mass": 0.0, "other": 0.0}, (np.inf, "")
        for quantity, values in named.items():
            if values.std() == 0:
                continue
            of_runs = values.reshape(RUNS, -1)  # the draws of a run's chains one after the other
            r_hat = float(array_stats.rhat(of_runs, chain_axis=0, draw_axis=1))
            size = float(array_stats.ess(values, chain_axis=0, draw_axis=1, method="mean"))
            kind = "mass" if quantity.startswith("mass of ") else "other"
            worst[kind] = max(worst[kind], r_hat)
            slowest = min(slowest, (size / seconds, quantity))
            print(
                f"  {name}: {quantity}: {values.mean():.3f}, R-hat {r_hat:.3f}, "
                f"ESS {size:.0f}, {size / seconds:.2f} a CPU second"
            )
        by_run = modes.by_chain.T.reshape(len(modes.names), -1, len(positions) // RUNS).mean(2)
        masses = ", ".join(
            f"{label} {mass:.3f} ± {error:.2g} ({', '.join(f'{m:.2f}' for m in of_runs)})"
            for label, mass, error, of_runs in zip(modes.names, modes.masses, modes.errors, by_run)
        )
        print(
            f"{name}, seed {seed}: {seconds:.0f} CPU s, largest R-hat {worst['other']:.3f}, of "
            f"masses {worst['mass']:.3f}, slowest {slowest[1]} {slowest[0]:.2f} a CPU second "
            f"(every {every} draws); masses {masses}; ln Z {np.round(evidences, 3)}; "
            f"stages, agreed, levels, smallest swap {notes}",
            flush=True,
        )


def compile_first(model):
    """Compile everything by a run of few steps."""
    by_tempering(model, 0, sweeps=20, draws=2, chains=1)
    sample(model, 1, 20, 2)


def location(seeds=5):
    """The single-location problem, by data seed."""
    for seed in range(int(seeds)):
        posterior, _, test = tell_apart(100, 10, seed)
        model = attention_model("order-parameter", posterior)
        if seed == 0:
            compile_first(model)
        compare(model, seed, test.inputs[:50])


def forms(chosen=None, seeds=1, sweeps=SWEEPS, draws=DRAWS):
    """Other forms, heads, layers and widths, or one that is chosen by its name."""

    def of_location(width, layers, heads):
        posterior, _, test = tell_apart(100, 10, 0)
        network = pk.Network(heads, width)
        inputs, labels = np.asarray(posterior.inputs), posterior.labels
        return pk.AttentionPosterior(inputs, labels, layers, network, 0.1), test.inputs[:50]

    def of_copying():
        _, drawn, posterior = copying(0.4)
        return posterior, drawn.test_sets["apart"].inputs[:50]

    def keys(heads):
        return pk.KeyVectors(np.zeros((heads, 16)))

    queries = pk.QueryKey(*np.zeros((2, 2, 1, 16)))
    cases = {
        "queries and keys of rank 1": lambda: of_location(10, [queries], (2,)),
        "three heads": lambda: of_location(10, [keys(3)], (3,)),
        "two layers": lambda: of_location(10, [keys(2), keys(2)], (2, 2)),
        "N = 4": lambda: of_location(4, [keys(2)], (2,)),
        "N = 100": lambda: of_location(100, [keys(2)], (2,)),
        "copying": of_copying,  # at agreement 0.4
    }
    if chosen not in (None, *cases):
        raise SystemExit(f"{chosen!r} is none of {', '.join(cases)}")
    for name, case in cases.items():
        if chosen not in (None, name):
            continue
        posterior, inputs = case()
        model = attention_model("order-parameter", posterior)
        print(name, flush=True)
        compile_first(model)
        for seed in range(int(seeds)):
            compare(model, seed, inputs, int(sweeps), int(draws))


def agreement(values="0.3,0.36,0.4,0.5", chains=4):
    """Masses of the modes by position and by content in the copying task, by its agreement.

    Beside them, the share of single chains of the no-U-turn sampler that end where they started.
    """
    for value in map(float, str(values).split(",")):
        task, drawn, posterior = copying(value)
        test = drawn.test_sets["apart"]
        model = attention_model("order-parameter", posterior)
        positions, evidences, notes, seconds = by_tempering(
            model, 0, SWEEPS, DRAWS, int(chains), runs=2
        )
        is_position = by_position(model, positions, task, test)
        mass, error = mean_and_error(is_position)
        stays = []
        for name in ("content", "position"):
            beside = np.zeros(model.beside.dimension)
            start = np.concatenate([beside, started(posterior, name)])
            drawn_from = sample(model, 1, 200, 400, position=start)["position"]
            stays.append(by_position(model, drawn_from[:, -200:], task, test).mean())
        print(
            f"agreement {value}: mass by position {mass:.3f} ± {error:.2g} "
            f"({np.round(is_position.reshape(2, -1).mean(1), 3)}), "
            f"ln Z {np.round(evidences, 2)}, stages, agreed, levels, smallest swap {notes}, "
            f"{seconds:.0f} CPU s; single chains attend by position in {stays[0]:.2f} of their "
            f"last draws from content, {stays[1]:.2f} from position",
            flush=True,
        )


def by_position(model, positions, task, test, examples=200):
    """Whether draws (chain, draw) attend more to the first token than to the copied one."""
    posterior = model.posterior
    inputs = test.inputs[:examples]
    tags = inputs[:, :, 1 : 1 + task.tag_width]
    places = np.abs(tags[:, :-1] - tags[:, -1:]).max(axis=2).argmin(axis=1)
    traced = jnp.asarray(inputs)

    @jax.jit
    def attends(x):
        (layer,) = posterior.layers_at(model.attention(x))
        omega = layer.attention(traced, query=task.tokens - 1)[:, 0, :, 0]
        return omega[:, 0].mean() > omega[jnp.arange(len(places)), places].mean()

    flat = positions.reshape(-1, positions.shape[2])
    return np.asarray(jax.lax.map(attends, flat)).reshape(positions.shape[:2]).astype(float)


@pytree(("share", "width", "distance"), ("dimension",))
class NarrowMode:
    """A normal density of standard deviation 1, and a narrow one of a known share far from it."""

    def __init__(self, dimension, share, width, distance):
        self.dimension = dimension
        self.share, self.width, self.distance = map(jnp.asarray, (share, width, distance))

    def log_density(self, x):
        other = (x - self.distance) / self.width
        narrow = -0.5 * other @ other - self.dimension * jnp.log(self.width)
        both = jnp.logaddexp(jnp.log1p(-self.share) - 0.5 * x @ x, jnp.log(self.share) + narrow)
        return both - 0.5 * self.dimension * jnp.log(2 * jnp.pi)

    def log_prior(self, x):
        return -0.125 * x @ x - self.dimension * (jnp.log(2.0) + 0.5 * jnp.log(2 * jnp.pi))

    def copies(self, x):
        return x[None], jnp.zeros(1)

    def contains(self, x):
        return jnp.isfinite(x[0])


def narrow(seeds=4, dimension=10, share=0.05):
    """Mass of a narrow mode: tempering, and adaptive tempered SMC from a wide density."""
    target = NarrowMode(dimension, share, 0.15, 2.0)
    for seed in range(int(seeds)):
        generator = np.random.default_rng(seed)
        pilot = np.concatenate(
            [
                generator.normal(size=(300, dimension)),
                2 + 0.15 * generator.normal(size=(100, dimension)),
            ]
        )
        started = time.process_time()
        (stage,) = temper_chains(target, pilot, [jax.random.key(seed)], 500)
        _, rows = sweep(target, stage.ladder, stage.replicas, jax.random.key(seed), generator, 4000)
        seconds = time.process_time() - started
        mass, mass_error = mean_and_error((rows["position"].mean(1) > 1)[None].astype(float))
        value, error = stage_evidence(stage.ladder, float(stage.share), rows["log_ratio"])
        print(
            f"tempering, seed {seed}: mass {mass:.3f} ± {mass_error:.2g} of {share}, "
            f"ln Z {value:.3f} ± {error:.2g}, {seconds:.1f} CPU s"
        )
        started = time.process_time()
        particles, evidence = by_smc(target, seed)
        mass = (particles.mean(1) > 1).mean()
        seconds = time.process_time() - started
        print(
            f"SMC from a wide density, seed {seed}: mass {mass:.3f} of {share}, "
            f"ln Z {evidence:.3f}, {seconds:.1f} CPU s",
            flush=True,
        )


def by_smc(target, seed, particles=1024, moves=4, leaps=8):
    """Particles and ln Z of SMC with adaptive temperatures, resampling and moves by HMC."""
    key, power = jax.random.key(seed), 0.0
    x = 2.0 * jax.random.normal(key, (particles, target.dimension))
    log_likelihood = jax.jit(jax.vmap(lambda y: target.log_density(y) - target.log_prior(y)))

    @jax.jit
    def move(key, x, power, step):
        def density(y):
            return (1 - power) * target.log_prior(y) + power * target.log_density(y)

        def one(key, y):
            first, second = jax.random.split(key)
            momentum = jax.random.normal(first, y.shape)
            before = density(y) - 0.5 * momentum @ momentum
            z, p = y, momentum
            for _ in range(leaps):
                p = p + 0.5 * step * jax.grad(density)(z)
                z = z + step * p
                p = p + 0.5 * step * jax.grad(density)(z)
            change = density(z) - 0.5 * p @ p - before
            accepted = jnp.log(jax.random.uniform(second)) < change
            return jnp.where(accepted, z, y), jnp.minimum(1.0, jnp.exp(change))

        return jax.vmap(one)(jax.random.split(key, len(x)), x)

    step, evidence = 0.3, 0.0
    while power < 1:
        ratio = np.asarray(log_likelihood(x))

        def size(next_power, ratio=ratio, power=power):
            weights = np.exp((next_power - power) * (ratio - ratio.max()))
            return weights.sum() ** 2 / (weights**2).sum()

        low, high = power, 1.0
        if size(1.0) < particles / 2:
            for _ in range(40):
                middle = (low + high) / 2
                low, high = (middle, high) if size(middle) > particles / 2 else (low, middle)
        weights = (high - power) * ratio
        evidence += float(np.log(np.mean(np.exp(weights - weights.max()))) + weights.max())
        key, one, other = jax.random.split(key, 3)
        chosen = jax.random.categorical(one, jnp.asarray(weights), shape=(particles,))
        x, power = x[chosen], high
        for number in range(moves):
            x, rates = move(jax.random.fold_in(other, number), x, power, step)
        step *= float(np.exp(0.8 * (rates.mean() - 0.8)))
    return np.asarray(x), evidence


if __name__ == "__main__":
    parts = {"location": location, "forms": forms, "agreement": agreement, "narrow": narrow}
    parts[sys.argv[1]](*sys.argv[2:])
