"""Heads of a vision transformer, trained here: the theory's scores against switching heads off.

Needs beside pathkernel and PyTorch: ``pip install transformers``. Two steps:

    python examples/vision.py train
    python examples/vision.py compare
"""

from __future__ import annotations

import argparse
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

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
from pathkernel_one_shot.idx import FASHION_MNIST, IdxSet, read_idx
from pathkernel_one_shot.image_sources import RemoteFile, locate
from pathkernel_trained.order_views import order_views
from pathkernel_views.chart import Chart, save
from pathkernel_views.console import stdout_console

LAYERS, HEADS, WIDTH, PATCH = 4, 6, 72, 7  # 16 patches of 7 × 7 pixels, and a class token
CLASSES = 10
EPOCHS, BATCH, RATE, DECAY = 6, 128, 2e-3, 0.05
FITTED = 55_000  # of the 60,000 training images; the others are for choices

DRAWS, DRAWN = 3, 300  # draws of training images for the theory, and images in each
VALIDATION, TESTED = 500, 1000  # images on which heads are switched off
READOUT = "mean"  # has more log evidence than the class token
SCALE, TEMPERATURE = 1.0, 0.03  # have more log evidence than 3, 10 or 30, and than 0.01 or 0.1
WIDTHS = (10, 100, 1000)
REMOVAL_WIDTH = 100  # at which the theory's own losses score heads
PAIRS = ((1, 2), (3, 4))  # of layers, whose paths make a product
SHAPLEY, GREEDY, BEST_OF = 8, 2, 50
FIGURE = (  # the first of them is compared with all others; of its theory is most log evidence
    *("heads of states, N=100", "product, N=100", "magnitude"),
    *("raw-gradient", "shapley", "greedy"),
)

Scores = Mapping[tuple[int, int], float]


def _training_file(file: RemoteFile, md5: str) -> RemoteFile:
    path, url = (place.replace("t10k", "train") for place in (file.path, file.url))
    return replace(file, path=path, url=url, checksum=f"md5:{md5}")


TEST = FASHION_MNIST
TRAINING = IdxSet(
    "fashion-mnist",
    _training_file(TEST.images, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    _training_file(TEST.labels, "25c81989df183df01b3e8a0aad5dffbe"),
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
)


def images_of(source: IdxSet) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 28, 28), about 0 and of unit variance, and classes 0 to 9, (n,)."""
    pixels = read_idx(locate(source.images), source.images_digest)
    labels = read_idx(locate(source.labels), source.labels_digest)
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


def against_others(captured: Captured, number: int) -> Captured:
    """The same with labels 1 for images of a class and 0 for others, less 1/10."""
    return replace(captured, labels=(captured.labels == number) - 1 / CLASSES)


def theory_scores(
    model: ViTForImageClassification,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
) -> dict[str, Scores]:
    """Scores of the theory of every class against the others, mean over the classes."""
    found = defaultdict(list)

    def captured(**options: Any) -> tuple[Captured, Captured]:
        own, other = (
            capture(model, zip(*(part.split(100) for part in each)), readout=READOUT, **options)
            for each in (train, validation)
        )
        return own.scaled(SCALE), other.scaled(SCALE, like=own)

    def solutions(own: Captured, width: int) -> Iterator[tuple[pk.Solution, int]]:
        for number in range(CLASSES):
            problem = pk.PathKernels(own.xi, against_others(own, number).labels)
            yield pk.minimise_action(problem, pk.Network(own.heads, width), TEMPERATURE), number

    for attend in ("tokens", "states"):
        own, other = captured(attend=attend)
        for width in WIDTHS:
            for solution, number in solutions(own, width):
                found[f"heads of {attend}, N={width}"].append(own.by_head(solution.head_scores))
                if width == REMOVAL_WIDTH:
                    both = (against_others(one, number) for one in (own, other))
                    for way, rises in theory_rises(*both, solution, equilibrate=False).items():
                        found[f"{way}, {attend}"].append(rises)
    for width in WIDTHS:
        parts = [captured(picture="product", layers=pair)[0] for pair in PAIRS]
        for each in zip(*(solutions(part, width) for part in parts)):
            by_head = [part.by_head(own.head_scores) for part, (own, _) in zip(parts, each)]
            found[f"product, N={width}"].append(ChainMap(*by_head))
    return {
        name: {head: float(np.mean([scores[head] for scores in each])) for head in each[0]}
        for name, each in found.items()
    }


def compare(model: ViTForImageClassification, out: Path, seed: int, random: int) -> None:
    """Print the theory's scores beside others and beside what the model loses without heads."""
    images, labels = images_of(TRAINING)
    apart = slice(FITTED, FITTED + VALIDATION)
    sets = {
        "validation": (images[apart], labels[apart]),
        "test": tuple(part[:TESTED] for part in images_of(TEST)),
    }

    def losses(batch: Sequence[Tensor]) -> Tensor:
        return cross_entropy(model(batch[0]).logits, batch[1], reduction="none")

    def measure(examples: str) -> dict[str, Tensor]:
        own, classes = sets[examples]
        logits = torch.cat([model(part).logits for part in own.split(250)])
        right = logits.argmax(dim=1) == classes
        found = {"loss": cross_entropy(logits, classes, reduction="none"), "accuracy": right}
        # the draws differ in the theory's scores alone
        return {name: values[:, None].expand(-1, DRAWS) for name, values in found.items()}

    generator = np.random.default_rng(seed)
    drawn = [torch.from_numpy(generator.choice(FITTED, DRAWN, False)) for _ in range(DRAWS)]
    draws = [theory_scores(model, (images[one], labels[one]), sets["validation"]) for one in drawn]
    magnitudes = magnitude_scores(model)
    scores: dict[str, dict] = {
        name: {head: np.array([draw[name][head] for draw in draws]) for head in magnitudes}
        for name in draws[0]
    }
    batches = list(zip(*(part.split(100) for part in sets["validation"])))
    for name, normalised in (("gradient", True), ("raw-gradient", False)):
        scores[name] = gradient_scores(model, batches, losses, normalised=normalised)
    result = compare_heads(
        *(model, measure, {FIGURE[0]: scores[FIGURE[0]], **scores, "magnitude": magnitudes}),
        random=random,
        shapley=SHAPLEY,
        greedy=GREEDY,
        best_of=min(BEST_OF, random),
        seed=seed,
        kept=f"{out}-off.npz",
    )
    storable(result).to_zarr(f"{out}.zarr", mode="w", zarr_format=3, consolidated=False)
    console, views = stdout_console(), list(order_views(result, FIGURE))
    for view in views:
        if not isinstance(view, Chart):
            console.print(view, crop=False)
    save([view for view in views if isinstance(view, Chart)], f"{out}-figures", print)


def main() -> None:
    """Read the arguments and run a step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the training")
    parser.add_argument("--model", type=Path, default=Path("vision-model"), help="folder")
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("train", help="train the model, 5 minutes on a core")
    second = steps.add_parser("compare", help="compare scores with switching heads off")
    second.add_argument("--out", type=Path, default=Path("vision"), help="begins names of files")
    second.add_argument("--random-orders", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)  # more only wait for one another on a busy machine
    with threadpool_limits(limits=1):
        if given.step == "train":
            train(given.model, given.seed)
        else:
            model = ViTForImageClassification.from_pretrained(given.model).eval()
            compare(model, given.out, given.seed, given.random_orders)


if __name__ == "__main__":
    main()
