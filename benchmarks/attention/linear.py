"""Softmax against linear attention: how a head that copies the token before forms.

python -m benchmarks.attention.linear [SIZES] [EXAMPLES] [FOLDER]

Lavie et al. (arXiv 2606.12058) find a first-order transition along the number of examples with
softmax, and with linear attention a second-order one, then a crossover. Their network copies every
token of a sequence of one-hot tokens to the next place. Ours reads one token: a last one without
content that has the place p, whose label is the content ±1 of the token at p − 1. Places are
one-hot; a head is a product W of keys and queries, drawn with all weights. Lists are separated by
commas; with a FOLDER a picture is drawn, too.

The order parameter is the mean overlap of the attention with the token to copy, |ω_s| / |ω|: 1
where a head attends to it alone, 1/√(M + 1) where it attends to all alike. ``theory`` has the
posterior mean, by tempering at N = 10, and its share above the middle of the two; ``Adam`` the same
of networks of N = 10 trained from draws of the prior, with the weight decay of the prior.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import pathkernel_core as pk
from benchmarks.attention.learned import by_adam
from benchmarks.attention.tempering import by_tempering
from pathkernel_sampling.attention.models import attention_model
from pathkernel_views.chart import Chart, save_charts
from pathkernel_views.primitives import lines

TEMPERATURE, WIDTH, VARIANCE = 0.1, 10, 4.0


def shifted_copies(tokens, examples, seed):
    """Sequences (P, M + 1, 1 + M), labels (P,) and places of the tokens to copy (P,)."""
    generator = np.random.default_rng(seed)
    values = generator.choice([-1.0, 1.0], size=(examples, tokens))
    places = generator.integers(tokens - 1, size=examples)
    length = np.sqrt(tokens)
    inputs = np.zeros((examples, tokens + 1, 1 + tokens))
    inputs[:, :tokens, 0] = values
    inputs[:, :tokens, 1:] = length * np.eye(tokens)
    inputs[np.arange(examples), -1, 2 + places] = length  # the place after
    return inputs, values[np.arange(examples), places], places


def copying(tokens, examples, linear, seed=0):
    """Posterior of one head that copies the token before."""
    inputs, labels, _ = shifted_copies(tokens, examples, seed)
    width = 1 + tokens
    zeros = np.zeros((1, width, width))
    layer = pk.AttentionProduct(zeros, 1 / width, linear=linear)
    network = pk.Network((1,), WIDTH)
    return pk.AttentionPosterior(inputs, labels, [layer], network, TEMPERATURE, VARIANCE)


def overlaps(model, positions, tokens):
    """Overlap of the attention with the token to copy at positions (draw, dimension)."""
    inputs, _, places = shifted_copies(tokens, 200, 1)
    inputs = jnp.asarray(inputs)

    @jax.jit
    def overlap(x):
        (layer,) = model.posterior.layers_at(model.attention(x))
        omega = layer.attention(inputs, query=tokens)[:, 0, :, 0]
        copied = omega[jnp.arange(len(inputs)), places]
        # linear attention may have any sign, which that of the values undoes
        return jnp.abs(jnp.mean(copied / jnp.linalg.norm(omega, axis=1)))

    return np.array([overlap(x) for x in positions])


def of_trained(posterior, tokens, starts=5):
    """Overlaps of networks trained by Adam from draws of the prior."""
    model = attention_model("weights", posterior)
    train = by_adam(model, steps=4000)
    ends = [train(model.initial(jax.random.key(seed))) for seed in range(starts)]
    return overlaps(model, ends, tokens)


def compare(sizes=(4, 6, 8), examples=(10, 20, 40, 80, 160), sweeps=300, draws=600, chains=2):
    """Table of order parameters along the number of examples, of both kinds of attention."""
    rows = []
    print("| tokens | attention | P | theory | sd | above the middle | levels agree | Adam | sd |")
    print("| --- |" + " --- |" * 8)
    for tokens in sizes:
        middle = (1 + (tokens + 1) ** -0.5) / 2
        for linear in (False, True):
            for count in examples:
                posterior = copying(tokens, count, linear)
                model = attention_model("order-parameter", posterior)
                positions, _, notes, _ = by_tempering(model, 0, sweeps, draws, chains)
                values = overlaps(model, positions[:, ::5].reshape(-1, model.dimension), tokens)
                trained = of_trained(posterior, tokens)
                name = "linear" if linear else "softmax"
                agree = all(note[1] for note in notes)
                rows += [
                    (tokens, f"{name}, theory", count, values.mean()),
                    (tokens, f"{name}, Adam", count, trained.mean()),
                ]
                print(
                    f"| {tokens} | {name} | {count} | {values.mean():.3f} | {values.std():.3f} | "
                    f"{(values > middle).mean():.2f} | {agree} | {trained.mean():.3f} | "
                    f"{trained.std():.3f} |",
                    flush=True,
                )
    return pd.DataFrame(rows, columns=("tokens", "kind", "examples", "overlap"))


def draw(table, folder):
    """Picture of the order parameter, theory and trained networks."""
    chart = Chart(
        "linear-attention",
        "Overlap of attention with the token to copy",
        "Posterior mean and networks trained by Adam, for three numbers of tokens.",
        lambda: lines(table, "examples", "overlap", series="kind", panel="tokens"),
    )
    save_charts([chart], folder, print, formats=("png",))


if __name__ == "__main__":
    lists = [tuple(map(int, text.split(","))) for text in sys.argv[1:3]]
    frame = compare(*lists)
    if len(sys.argv) > 3:
        draw(frame, sys.argv[3])
