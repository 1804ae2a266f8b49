"""Chains of learned attention by parallel tempering: a pilot of each, and stages of all.

The chains share the mixtures that are fitted to their draws, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.contracts.sampler import Model
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_sampling.attention.attend import AttentionChains, attention_chains
from pathkernel_sampling.attention.exchanges import ExchangeTarget, find_directions
from pathkernel_sampling.attention.models import JointModel
from pathkernel_sampling.chains import chain as nuts
from pathkernel_sampling.chains.ensemble import ForEach, State
from pathkernel_sampling.results import LearnedAttention
from pathkernel_sampling.tempering.replicas import sweep
from pathkernel_sampling.tempering.stages import (
    MOST_STAGES,
    Plan,
    Stage,
    generator_of,
    run_stage,
    temper,
    temper_chains,
)

LARGEST_DIMENSION = 300
"""Dimension up to which a mixture is fitted: its covariances are dense."""

PILOTS = 4
"""Chains of the no-U-turn sampler in a pilot, each of half as many steps as a stage has sweeps."""


class Start(NamedTuple):
    """Target and stage of a chain: all that its sweeps depend on, besides the model."""

    directions: list[np.ndarray]
    stage: Stage


def run_pilot(
    model: JointModel,
    key: jax.Array,
    sweeps: int,
    report: Callable[[int], None] = lambda pilots_done: None,
) -> np.ndarray:
    """Draw positions (n, dimension) of short chains, which see modes whatever their weights.

    Parameters
    ----------
    model : JointModel
        Of order parameters.
    key : jax.random key
    sweeps : int
        Sweeps of a stage.
    report : callable
        Called with the number of chains so far, of ``PILOTS``.
    """
    steps, draws = max(20, sweeps // 4), []
    for number in range(PILOTS):
        pilot_key = jax.random.fold_in(key, number)
        state = nuts.warm_up(model, jax.random.fold_in(pilot_key, 0), steps)
        _, drawn = nuts.draw_states(model, state, jax.random.fold_in(pilot_key, 1), steps)
        draws.append(drawn["position"])
        report(number + 1)
    return np.concatenate(draws)


def domain_of_pilots(
    model: JointModel, pilots: Sequence[np.ndarray]
) -> tuple[ExchangeTarget, np.ndarray]:
    """Choose the domain of a posterior by draws of pilots, and take all of them to it, (n, d)."""
    pilot = np.concatenate(pilots)
    beside = model.dimension - model.posterior.dimension
    target = ExchangeTarget(model, find_directions(model.posterior, pilot[:, beside:]))
    return target, np.stack([target.reduce(x) for x in pilot])


def start_chains(model: JointModel, keys: Sequence[jax.Array], sweeps: int) -> list[Start]:
    """Run the pilots and the stages of chains, one a key, one after the other."""
    pilots = [run_pilot(model, key, sweeps) for key in keys]
    target, pilot = domain_of_pilots(model, pilots)
    stages = temper_chains(target, pilot, [_stages_key(key) for key in keys], sweeps)
    directions = [np.asarray(u) for u in target.directions]
    return [Start(directions, stage) for stage in stages]


def _stages_key(key: jax.Array) -> jax.Array:
    return jax.random.fold_in(key, PILOTS)


@dataclass(frozen=True, eq=False, kw_only=True)
class TemperedChains(AttentionChains):
    """Chains of replicas between a mixture and the posterior of order parameters and attention.

    The draws of a chain are those of its replica at λ = 1, one a sweep.
    """

    share_alone = PILOTS / (PILOTS + 2 * MOST_STAGES)

    def warm_up(
        self, chain: int, steps: int, report: Callable[[int], None] = lambda steps_done: None
    ) -> State:
        """Run the pilot of a chain and return its draws."""
        assert isinstance(self.model, JointModel)
        share = self.share_alone / PILOTS
        pilot = run_pilot(
            self.model, self.key(chain, 0), steps, lambda done: report(int(done * share * steps))
        )
        return {"pilot": pilot}

    def warm_up_together(
        self,
        states: Sequence[State],
        steps: int,
        for_each: ForEach,
        report: Callable[[int], None],
    ) -> list[State]:
        """Take all chains through stages with mixtures of the draws of all, until all agree."""
        assert isinstance(self.model, JointModel)
        target, pilot = domain_of_pilots(self.model, [state["pilot"] for state in states])
        directions = _arrays_of_directions([np.asarray(u) for u in target.directions])
        states = [directions] * len(states)

        def run(plan: Plan) -> list[tuple[Stage, np.ndarray]]:
            nonlocal states
            shared = dict(named_arrays(plan))
            calls = [(chain, state, shared, steps) for chain, state in enumerate(states)]
            states, positions = map(list, zip(*for_each("run_stage", calls)))
            return [(start_of_arrays(state).stage, x) for state, x in zip(states, positions)]

        each = (1 - self.share_alone) / MOST_STAGES
        temper(
            target,
            pilot,
            run,
            generator_of(_stages_key(self.key(0, 0))),
            lambda stages: report(int((self.share_alone + each * stages) * steps)),
        )
        return states

    def run_stage(
        self, chain: int, state: State, plan: State, steps: int
    ) -> tuple[State, np.ndarray]:
        """Take a chain through a stage: its state, and its draws (steps, d)."""
        assert isinstance(self.model, JointModel)
        shared, directions = named_tuple(Plan, plan), directions_of_arrays(state)
        before = start_of_arrays(state).stage.ladder if "number" in state else None
        stage, positions = run_stage(
            ExchangeTarget(self.model, directions),
            shared,
            before,
            _stages_key(self.key(chain, 0)),
            steps,
        )
        return arrays_of_start(Start(directions, stage)), positions

    def rounds(
        self, chain: int, arrays: State, first: int, rounds: int
    ) -> tuple[State, dict[str, np.ndarray], list[np.ndarray]]:
        """Draw some rounds of a chain: its state, its draws, and the predictions of each round."""
        assert isinstance(self.model, JointModel)
        start, blocks, predictions = start_of_arrays(arrays), [], []
        target, stage = ExchangeTarget(self.model, start.directions), start.stage
        replicas = stage.replicas
        for index in range(first, first + rounds):
            key = self.key(chain, index + 1)
            generator = generator_of(key)
            replicas, rows = sweep(target, stage.ladder, replicas, key, generator, self.thin)
            accepted = rows.pop("accepted")[:, 1 : int(stage.ladder.count)]
            rows["acceptance_rate"] = accepted.mean(1)
            rows["order_parameter"] = np.asarray(_order_parameters(self.model, rows["position"]))
            blocks.append(rows)
            predictions.append(self._predictions(jnp.asarray(rows["position"][-1])))
        joined = {name: np.concatenate([rows[name] for rows in blocks]) for name in blocks[0]}
        start = start._replace(stage=stage._replace(replicas=replicas))
        return arrays_of_start(start), joined, predictions


def chains_of(study: StoredStudy, point: Point, settings: LearnedAttention) -> AttentionChains:
    """Build the chains of a point of a study by the method of the settings.

    Raises
    ------
    StudyError
        If attention has too many parameters for a mixture, or as :func:`attention_chains` does.
    """
    kind = TemperedChains if settings.is_tempered else AttentionChains
    chains = attention_chains(study, point, settings, kind)
    if settings.is_tempered and chains.model.dimension > LARGEST_DIMENSION:
        raise StudyError(
            f"{study.path} has heads with {chains.attention.dimension} parameters, "
            f"{chains.model.dimension} with those of U, but tempering fits mixtures in at most "
            f"{LARGEST_DIMENSION} dimensions; take --method nuts, or heads of fewer parameters"
        )
    return chains


@jax.jit
def _order_parameters(model: Model, positions: jax.Array) -> jax.Array:
    return jax.lax.map(model.order_parameter, positions)


def arrays_of_start(start: Start) -> dict[str, np.ndarray]:
    """Return the state of a chain as named arrays."""
    return _arrays_of_directions(start.directions) | dict(named_arrays(start.stage))


def start_of_arrays(arrays: State) -> Start:
    """Return the state of the arrays from :func:`arrays_of_start`."""
    return Start(directions_of_arrays(arrays), named_tuple(Stage, arrays))


def _arrays_of_directions(directions: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"direction_{number}": u for number, u in enumerate(directions, start=1)}


def directions_of_arrays(arrays: State) -> list[np.ndarray]:
    """Return the directions of the layers that are learned, from the state of a chain."""
    count = sum(name.startswith("direction_") for name in arrays)
    return [np.asarray(arrays[f"direction_{number}"]) for number in range(1, count + 1)]


def named_arrays(part: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and arrays of the fields of a named tuple, and of those inside it."""
    for name, value in part._asdict().items():
        if hasattr(value, "_fields"):
            yield from named_arrays(value, f"{prefix}{name}_")
        else:
            yield prefix + name, np.asarray(value)


def named_tuple(kind: type, arrays: State, prefix: str = "") -> Any:
    """Return the named tuple of the arrays from :func:`named_arrays`."""
    values = {}
    for name, of_field in get_type_hints(kind).items():
        is_tuple = hasattr(of_field, "_fields")
        whole = prefix + name
        values[name] = (
            named_tuple(of_field, arrays, f"{whole}_") if is_tuple else np.asarray(arrays[whole])
        )
    return kind(**values)
