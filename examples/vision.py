"""Heads of a vision transformer, trained here: the theory's scores against switching heads off.

Needs transformers: ``pip install transformers``. Two steps:

    python examples/vision.py train
    python examples/vision.py compare
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

import pathkernel as pk

LAYERS, HEADS, WIDTH, PATCH = 4, 6, 72, 7  # 16 patches of 7 × 7 pixels, and a class token
CLASSES = 10
EPOCHS, BATCH, RATE, DECAY = 6, 128, 2e-3, 0.05
FITTED = 55_000  # of the 60,000 training images; the others are for choices

DRAWS, DRAWN = 3, 300  # draws of training images for the theory, and images in each
VALIDATION, TESTED = 500, 1000  # images on which heads are switched off
READOUT = "mean"  # has more log evidence than the class token
WIDTHS = (10, 100, 1000)
FIGURE = (  # differences are to the first
    *("heads of states, N=100", "product, N=100", "magnitude"),
    *("raw-gradient", "shapley", "greedy"),
)

Examples = tuple[Tensor, Tensor]


def _training_file(file: pk.trained.RemoteFile, md5: str) -> pk.trained.RemoteFile:
    path, url = (name.replace("t10k", "train") for name in (file.path, file.url))
    return replace(file, path=path, url=url, checksum=f"md5:{md5}")


TEST = pk.trained.FASHION_MNIST
TRAINING = pk.trained.IdxSet(
    "fashion-mnist",
    _training_file(TEST.images, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    _training_file(TEST.labels, "25c81989df183df01b3e8a0aad5dffbe"),
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
)


def images_of(source: pk.trained.IdxSet) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 28, 28), about 0 and of unit variance, and classes 0 to 9, (n,)."""
    pixels, labels = pk.trained.read_idx_set(source)
    grey = torch.from_numpy(pixels[:, None].astype(np.float32) / 255)
    return (grey - 0.286) / 0.353, torch.from_numpy(labels.astype(np.int64))


def accuracy(model: ViTForImageClassification, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of images that the model classifies correctly."""
    with torch.no_grad():
        right = [
            (model.eval()(pixel_values=part).logits.argmax(dim=1) == own)
            for part, own in zip(images.split(500), labels.split(500))
        ]
    return float(torch.cat(right).double().mean())


def train(folder: Path, seed: int) -> None:
    """Train the model from scratch, and write it as transformers does."""
    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        image_size=28,
        patch_size=PATCH,
        num_channels=1,
        num_labels=CLASSES,
    )
    model = ViTForImageClassification(config)
    images, labels = images_of(TRAINING)
    steps = EPOCHS * (FITTED // BATCH)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, steps)
    for epoch in range(EPOCHS):
        model.train()
        for drawn in torch.randperm(FITTED)[: FITTED // BATCH * BATCH].split(BATCH):
            mirrored = torch.rand(BATCH, 1, 1, 1) < 0.5
            shown = torch.where(mirrored, images[drawn].flip(-1), images[drawn])
            optimiser.zero_grad()
            model(pixel_values=shown, labels=labels[drawn]).loss.backward()
            optimiser.step()
            rate.step()
        own = accuracy(model, images[FITTED:], labels[FITTED:])
        print(f"epoch {epoch + 1}: accuracy on images set apart {own:.4f}", flush=True)
    model.save_pretrained(folder)
    print(f"accuracy on the 10,000 test images {accuracy(model, *images_of(TEST)):.4f}: {folder}")


def captured(
    model: ViTForImageClassification, images: Tensor, labels: Tensor, **options: Any
) -> pk.Captured:
    """Return images as the theory sees them, with a column of labels for every class."""
    targets = torch.eye(CLASSES, dtype=torch.float64)[labels] - 1 / CLASSES
    return pk.capture(model, zip(images.split(100), targets.split(100)), readout=READOUT, **options)


def theory_scores(
    model: ViTForImageClassification,
    train: Examples,
    validation: Examples,
    choice: pk.NetworkChoice,
) -> dict[str, xr.DataArray]:
    """Return scores of the theory, means over each class against the others."""

    def against_others(examples: pk.Captured, number: int) -> pk.Captured:
        return replace(examples, labels=examples.labels[:, number])

    def solution(examples: pk.Captured, width: float) -> pk.Solution:
        network = pk.Network(examples.heads, width)
        problem = pk.Problem(examples.xi, examples.labels)
        return pk.minimise_action(problem, network, choice.temperature)

    by_class = defaultdict(list)
    for attend in ("tokens", "states"):
        seen, unseen = (captured(model, *part, attend=attend) for part in (train, validation))
        seen, unseen = seen.scale_tokens(choice.scale), unseen.scale_tokens(choice.scale, like=seen)
        for width, number in product(WIDTHS, range(CLASSES)):
            one, unseen_one = against_others(seen, number), against_others(unseen, number)
            minimum = solution(one, width)
            by_class[f"heads of {attend}, N={width}"].append(one.by_head(minimum.head_scores))
            if width == choice.width:
                rises = pk.theory_rises(one, unseen_one, minimum, equilibrate=False)
                for removal, scores in rises.items():
                    by_class[f"{removal}, {attend}"].append(scores)
    pairs = [
        captured(model, *train, picture="product", layers=layers).scale_tokens(choice.scale)
        for layers in ((1, 2), (3, 4))
    ]
    for width, number in product(WIDTHS, range(CLASSES)):
        minima = [solution(against_others(pair, number), width) for pair in pairs]
        scores = [pair.by_head(minimum.head_scores) for pair, minimum in zip(pairs, minima)]
        by_class[f"product, N={width}"].append(xr.concat(scores, "head"))
    return {name: xr.concat(scores, "class").mean("class") for name, scores in by_class.items()}


def compare(model: ViTForImageClassification, out: Path, seed: int, random: int) -> None:
    """Print scores of the theory and others, and what the model loses without heads."""
    images, labels = images_of(TRAINING)
    apart = slice(FITTED, FITTED + VALIDATION)
    sets = {
        "validation": (images[apart], labels[apart]),
        "test": tuple(part[:TESTED] for part in images_of(TEST)),
    }

    def losses(batch: Sequence[Tensor]) -> Tensor:
        return cross_entropy(model(batch[0]).logits, batch[1], reduction="none")

    def measure(examples: str) -> dict[str, Tensor]:
        images, classes = sets[examples]
        logits = torch.cat([model(part).logits for part in images.split(250)])
        loss = cross_entropy(logits, classes, reduction="none")
        values = {"loss": loss, "accuracy": logits.argmax(dim=1) == classes}
        # the draws differ in the theory's scores alone
        return {name: column[:, None].expand(-1, DRAWS) for name, column in values.items()}

    generator = np.random.default_rng(seed)
    rows = [torch.from_numpy(generator.choice(FITTED, DRAWN, False)) for _ in range(DRAWS)]
    draws = [(images[row], labels[row]) for row in rows]
    # ten outputs along 25 paths have a log evidence at N of at least 250
    choice = pk.choose_network(captured(model, *draws[0]), widths=WIDTHS)
    print(f"N = {choice.width:g}, T = {choice.temperature:g}, scale {choice.scale:g}", flush=True)
    theory = [theory_scores(model, draw, sets["validation"], choice) for draw in draws]
    magnitudes = pk.magnitude_scores(model, sets["validation"][0][:10])
    scores = {
        name: xr.concat([draw[name] for draw in theory], "draw") for name in (FIGURE[0], *theory[0])
    }
    batches = list(zip(*(part.split(100) for part in sets["validation"])))
    for name, normalised in (("gradient", True), ("raw-gradient", False)):
        scores[name] = pk.gradient_scores(model, batches, losses, normalised=normalised)
    result = pk.compare_heads(
        *(model, measure, scores | {"magnitude": magnitudes}),
        random=random,
        shapley=8,
        greedy=2,
        best_of=min(50, random),
        seed=seed,
        kept=f"{out}-off.npz",
    )
    pk.storable(result).to_zarr(f"{out}.zarr", mode="w", zarr_format=3, consolidated=False)
    console, views = pk.views.stdout_console(), list(pk.heads.order_views(result, FIGURE))
    for view in views:
        if not isinstance(view, pk.views.Chart):
            console.print(view, crop=False)
    pk.views.save_charts(
        [view for view in views if isinstance(view, pk.views.Chart)], f"{out}-figures", print
    )


def main() -> None:
    """Read the arguments and run a step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the training")
    parser.add_argument("--model", type=Path, default=Path("vision-model"), help="folder")
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("train", help="train the model, 5 minutes on a core")
    help_text = "compare scores with switching heads off, 20 minutes on a core"
    second = steps.add_parser("compare", help=help_text)
    second.add_argument("--out", type=Path, default=Path("vision"), help="prefix of output files")
    second.add_argument("--random-orders", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)  # more only wait for one another on a busy machine
    with threadpool_limits(limits=1):
        if options.step == "train":
            train(options.model, options.seed)
        else:
            model = ViTForImageClassification.from_pretrained(options.model).eval()
            compare(model, options.out, options.seed, options.random_orders)


if __name__ == "__main__":
    main()
