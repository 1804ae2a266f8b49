"""Heads of a vision transformer, trained here: the theory's scores against switching heads off.

Needs beside pathkernel and PyTorch: ``pip install transformers``. Two steps:

    python examples/vision.py train
    python examples/vision.py compare
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification

from pathkernel_one_shot.idx import FASHION_MNIST, IdxSet, read_idx
from pathkernel_one_shot.image_sources import RemoteFile, locate

LAYERS, HEADS, WIDTH, PATCH = 4, 6, 72, 7  # 16 patches of 7 × 7 pixels, and a class token
CLASSES = 10
EPOCHS, BATCH, RATE, DECAY = 6, 128, 2e-3, 0.05
FITTED = 55_000  # of the 60,000 training images; the others are for choices


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


def main() -> None:
    """Read the arguments and run a step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the training")
    parser.add_argument("--model", type=Path, default=Path("vision-model"), help="folder")
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("train", help="train the model, 5 minutes on a core")
    given = parser.parse_args()
    torch.set_num_threads(1)
    train(given.model, given.seed)


if __name__ == "__main__":
    main()
