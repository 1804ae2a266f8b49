"""Attention of a model by the files route: matrices and tokens in, attentioned inputs out."""

import numpy as np
import pytest

import pathkernel_core as pk


def side_by_side(matrices, attended, tokens, read):
    """All heads and the identity path, from matrices (H, M, M) of each layer, query first."""
    found = [[read @ tokens]]
    found += [[read @ omega @ x for omega in layer] for layer, x in zip(matrices, attended)]
    return np.concatenate(found)


def product(matrices, tokens, readout, *, skips=False):
    """Every path, by the core, from matrices (P, H, M, M) of each layer, query first."""
    identity = np.eye(tokens.shape[1])[None, None]
    identity = np.broadcast_to(identity, (len(tokens), 1, *identity.shape[2:]))
    if skips:
        matrices = [np.concatenate([identity, layer], axis=1) for layer in matrices]
    layers = [pk.Attention(layer.swapaxes(-1, -2)) for layer in matrices]
    return pk.attentioned_inputs(tokens, layers, readout)


@pytest.fixture(scope="session")
def files_route():
    """``side_by_side`` and ``product``."""
    return side_by_side, product
