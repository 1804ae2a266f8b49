"""Examples with classes: hidden Markov chains, two heads, and images of Fashion-MNIST."""

from __future__ import annotations

import numpy as np

import pathkernel_core as pk
from pathkernel_one_shot.idx import FASHION_MNIST, read_idx_set
from pathkernel_tasks.hidden_markov import HiddenMarkov

Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Attentioned inputs and classes of training examples, and of test examples."""

PATCH, INPUTS, TEST = 7, 6, 1000


def print_row(*cells: str) -> None:
    """Print a row of a table, as ``docs/remake.py`` reads it."""
    print(f"| {' | '.join(cells)} |", flush=True)


def markov(seed: int) -> Data:
    """Hidden Markov chains of the paper, with classes 0 and 1."""
    realised, parts = HiddenMarkov().realise(seed), []
    for examples in (realised.train, next(iter(realised.test_sets.values()))):
        layers = examples.layers or realised.layers
        xi = pk.attentioned_inputs(examples.inputs, layers, realised.readout)
        parts += [xi, (examples.labels > 0).astype(int)]
    return tuple(parts)


def gaussian(classes: int, count: int, seed: int) -> Data:
    """Normal inputs of two heads, of which the first tells the class, with noise."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(INPUTS, classes))
    parts = []
    for number in (count, TEST):
        xi = rng.normal(size=(number, 2, INPUTS))
        scores = xi[:, 0] @ weights + rng.gumbel(size=(number, classes))
        parts += [xi, scores.argmax(axis=1)]
    return tuple(parts)


def fashion(
    classes: int, count: int, heads: tuple[int, ...], seed: int = 0, test: int = TEST
) -> Data:
    """Images as sixteen patches of 7 × 7 pixels, under random heads of every layer."""
    images, labels = read_idx_set(FASHION_MNIST)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(np.flatnonzero(labels < classes))[: count + test]
    tokens = images[chosen].astype(float) / 255
    tokens = tokens.reshape(-1, 4, PATCH, 4, PATCH).transpose(0, 1, 3, 2, 4).reshape(-1, 16, 49)
    tokens = (tokens - tokens[:count].mean(axis=(0, 1))) / tokens[:count].std()
    layers = [pk.AttentionProduct(rng.normal(size=(number, 49, 49)) / 7) for number in heads]
    xi = pk.attentioned_inputs(tokens, layers, readout="mean")
    xi = xi / xi[:count].std()
    return xi[:count], labels[chosen][:count].astype(int), xi[count:], labels[chosen][count:]
