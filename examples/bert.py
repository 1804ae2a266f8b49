"""Forward pass of a BERT encoder in NumPy, with the attention it pays and heads switched off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from scipy.special import erf

HEADS = 12
_EPSILON = 1e-12  # of layer normalisation


class Encoder:
    """Encoder with the weights of a state dict of Hugging Face's BertModel.

    Parameters
    ----------
    path : str or Path
        File ``model.safetensors``.
    layers : int
        Layers to keep, from the first.
    """

    def __init__(self, path: str | Path, layers: int):
        self.weights: Mapping[str, np.ndarray] = load_file(path)
        self.layers = layers
        self.width = self.weights["embeddings.word_embeddings.weight"].shape[1]

    def encode(
        self, ids: np.ndarray, kept: np.ndarray | None = None
    ) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        """Encode sentences of one length.

        Parameters
        ----------
        ids : array, shape (P, M)
            Numbers of the tokens.
        kept : array of bool, shape (layers, H), optional
            Heads that are not switched off; all by default.

        Returns
        -------
        embeddings : array, shape (P, M, N_0)
            Tokens before the first layer.
        attention : list of arrays, shape (P, H, M, M)
            Of each layer, with the query token before the key token.
        pooled : array, shape (P, N_0)
            Mean over the tokens after the last layer.
        """
        embeddings = self.embed(ids)
        hidden, attention = embeddings, []
        for layer in range(self.layers):
            hidden, paid = self.layer(layer, hidden, None if kept is None else kept[layer])
            attention.append(paid)
        return embeddings, attention, hidden.mean(axis=1)

    def embed(self, ids: np.ndarray) -> np.ndarray:
        """Tokens before the first layer, (P, M, N_0)."""
        word, position, kind = (
            self.weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        return self._normalised("embeddings", word[ids] + position[: ids.shape[1]] + kind[0])

    def layer(
        self, number: int, hidden: np.ndarray, kept: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hidden states after a layer, numbered from 0, and the attention in it."""
        stem = f"encoder.layer.{number}"
        queries, keys, values = (
            _split(self._affine(f"{stem}.attention.self.{kind}", hidden))
            for kind in ("query", "key", "value")
        )
        scores = queries @ keys.swapaxes(-1, -2) / math.sqrt(queries.shape[-1])
        attention = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attention /= attention.sum(axis=-1, keepdims=True)
        context = attention @ values
        if kept is not None:
            context = context * kept[:, None, None]
        context = context.swapaxes(1, 2).reshape(hidden.shape)
        summed = hidden + self._affine(f"{stem}.attention.output.dense", context)
        hidden = self._normalised(f"{stem}.attention.output", summed)
        inner = self._affine(f"{stem}.intermediate.dense", hidden)
        inner = inner * (1 + erf(inner / math.sqrt(2))) / 2
        outer = self._affine(f"{stem}.output.dense", inner)
        return self._normalised(f"{stem}.output", hidden + outer), attention

    def magnitudes(self, number: int) -> np.ndarray:
        """Frobenius norm of each head's map from a token to the output, (H,)."""
        stem = f"encoder.layer.{number}.attention"
        values = self.weights[f"{stem}.self.value.weight"]
        output = self.weights[f"{stem}.output.dense.weight"]
        values = values.reshape(HEADS, -1, values.shape[1])
        output = output.reshape(output.shape[0], HEADS, -1).swapaxes(0, 1)
        return np.linalg.norm(output @ values, axis=(1, 2))

    def _affine(self, name: str, inputs: np.ndarray) -> np.ndarray:
        return inputs @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _normalised(self, name: str, inputs: np.ndarray) -> np.ndarray:
        centred = inputs - inputs.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + _EPSILON)
        scale, shift = (self.weights[f"{name}.LayerNorm.{kind}"] for kind in ("weight", "bias"))
        return centred / deviation * scale + shift


def _split(inputs: np.ndarray) -> np.ndarray:
    """(P, M, N_0) → (P, H, M, G)."""
    return inputs.reshape(*inputs.shape[:2], HEADS, -1).swapaxes(1, 2)
