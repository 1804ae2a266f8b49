"""Made-up networks whose layers may have different numbers of heads, and a slow reference."""

import numpy as np

from pathkernel_trained.network import join_layers

WIDTHS = (6, 3, 5)  # N, G and N_0
TOKENS = 4


def made_up(heads, seed=0, widths=WIDTHS):
    """Weights of a network with so many heads in each layer, float64."""
    generator = np.random.default_rng(seed)
    width, inner, outer = widths

    def layered(*shape):
        return join_layers([generator.normal(size=(count, *shape)) for count in heads])

    return {
        "projection": generator.normal(size=(width, outer)),
        "values": layered(width, width),
        "readout": generator.normal(size=width),
        "queries": layered(inner, outer),
        "keys": layered(inner, outer),
    }


def by_hand(weights, tokens, removed=(), factors=None):
    """Output of the network, head by head: a removed head is zeroed, its layer rescaled.

    ``factors`` multiplies the output of each head, (layer, head) → number.
    """
    outputs = []
    for x in tokens:
        hidden = x @ weights["projection"].T
        for layer, values in enumerate(weights["values"], start=1):
            total, left = np.zeros_like(hidden), 0
            for head, value in enumerate(values, start=1):
                if (layer, head) in removed:
                    continue
                left += 1
                queries = x @ weights["queries"][layer - 1][head - 1].T
                keys = x @ weights["keys"][layer - 1][head - 1].T
                attention = np.exp(keys @ queries.T / np.sqrt(keys.shape[1]))
                attention /= attention.sum(axis=0)
                factor = 1.0 if factors is None else factors[layer, head]
                total += factor * attention.T @ hidden @ value.T
            hidden = total / np.sqrt(left)
        outputs.append(hidden.mean(axis=0) @ weights["readout"])
    return np.array(outputs)
