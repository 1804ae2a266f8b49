"""Handwritten characters of Omniglot, and their split for few-shot learning.

The drawings are those of Lake, Salakhutdinov and Tenenbaum (2015), read straight from the archives.
The split of the 1623 characters into 1028 for training, 172 for validation and 423 for testing is
that of Vinyals et al. (2016), from torchmeta.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pathkernel_one_shot.image_sources import LARGEST, RemoteFile, damage_error, locate, resize

DRAWINGS = 20  # of each character
SPLITS = ("train", "val", "test")

_HOME = "https://github.com/brendenlake/omniglot/raw/master/python/"
_ARCHIVES = {
    folder: RemoteFile(f"omniglot/{folder}.zip", f"{_HOME}{folder}.zip", checksum)
    for folder, checksum in (
        ("images_background", "md5:68d2efa1b9178cc56df9314c21c6e718"),
        ("images_evaluation", "md5:6b91aef0f799c5bb55b94e3f2daec811"),
    )
}
_SPLIT_HOME = (
    "https://raw.githubusercontent.com/tristandeleu/pytorch-meta/"
    "d55d89ebd47f340180267106bde3e4b723f23762/torchmeta/datasets/assets/omniglot/"
)
_SPLIT_FILES = {
    split: RemoteFile(
        f"omniglot/{split}.json",
        f"{_SPLIT_HOME}{split}.json",
        f"sha256:{checksum}",
        mirrored="omniglot/class_splits.json",  # the three files merged
    )
    for split, checksum in (
        ("train", "3432d95c10f2959c3894a2bebe63f70600b5c567a912d13200699b0634d7b191"),
        ("val", "4aca6cbef626e818dace533b4c46363830eaaa158f2d06e29beb3e9772258d5f"),
        ("test", "c3604a268c3e6bfb5f010e839dd986d0f149bfc81a93cf5de239a0543effea86"),
    )
}

# of the drawings' names, sizes and CRC-32 checksums: they identify the data of studies
ARCHIVE_DIGESTS = {
    "images_background": "61bc74225a5115c1deb188b06ca40d3233fd5097d1430897d6b11d304e140c65",
    "images_evaluation": "c1c898dcbcef1056acc0868bca916a1c716c7b151963dc8cd7fc70bcb69535fc",
}
# of the drawings' names, sizes and bytes, whoever compressed them; checked in every process
_CONTENT_DIGESTS = {
    "images_background": "7455fc79c65ce83d4431c7d381b66d6dd95247d8a90f5fa4a87a5ef2ac19fa6e",
    "images_evaluation": "f58a0c44b9ece203f46b1a65a930b42a0a7a824d38a8784bf1b9b062ae660a17",
}
# digest of the characters of each split
SPLIT_DIGESTS = {
    "train": "4802517a0723803119a9aca109acf9e927d96aa8363af0abb384e73ffcacd669",
    "val": "63133968e7fd9bd047403ac343f9c2f3c31ab84081b837ebcc336368a2027bf7",
    "test": "c743a2eca257f93d853df033a4f6544f58332ea9cca181e0d1941fefd7f04bf9",
}


class Character(NamedTuple):
    """A character: the archive's folder, the alphabet, and the character's folder in it."""

    folder: str
    alphabet: str
    name: str


def split_characters(split: str) -> tuple[Character, ...]:
    """Characters of the split ``"train"`` (1028), ``"val"`` (172) or ``"test"`` (423), sorted.

    Raises
    ------
    ImageDataError
        If a file is missing or damaged, or cannot be downloaded.
    """
    return read_split(locate(_SPLIT_FILES[split]), split)


def read_split(path: Path, split: str) -> tuple[Character, ...]:
    """Characters of a split, from its own JSON file or from one file of all splits.

    The file holds ``{folder: {alphabet: [character]}}``, or that for each split.

    Raises
    ------
    ImageDataError
        If the file cannot be read or does not hold the characters of the published split.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        tree = tree.get(split, tree)
        characters = sorted(
            Character(f"images_{folder.removeprefix('images_')}", alphabet, name)
            for folder, alphabets in tree.items()
            for alphabet, names in alphabets.items()
            for name in names
        )
        # the digest of the characters, not of the file, whose form differs between homes
        lines = "".join(f"{'/'.join(character)}\n" for character in characters)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise damage_error(path, f"the {split} characters cannot be read ({error})") from error
    if hashlib.sha256(lines.encode()).hexdigest() != SPLIT_DIGESTS[split]:
        raise damage_error(path, f"it holds other {split} characters than the published split")
    return tuple(characters)


def read_drawings(characters: Sequence[Character], numbers: Iterable[int]) -> np.ndarray:
    """Drawings of characters, (n, 32, 32): grey values from 0 for the ground to 1 for ink.

    Only the drawings with these numbers are decoded. A drawing's number is 20 times its character's
    plus its own, 0 to 19.

    Raises
    ------
    ImageDataError
        If an archive is missing or damaged, or cannot be downloaded.
    LookupError
        If an archive holds no such character or drawing.
    """
    from PIL import Image

    drawings = [(characters[number // DRAWINGS], number % DRAWINGS) for number in numbers]
    archives = {
        folder: read_archive(locate(_ARCHIVES[folder]), folder, _CONTENT_DIGESTS[folder])
        for folder in sorted({character.folder for character, _ in drawings})
    }
    images = []
    for character, drawing in drawings:
        png = io.BytesIO(archives[character.folder]["/".join(character)][drawing])
        images.append(resize(255 - np.asarray(Image.open(png).convert("L"))))
    return np.stack(images)


@functools.lru_cache(maxsize=len(_ARCHIVES))  # 8 MB
def read_archive(path: Path, folder: str, digest: str) -> Mapping[str, Sequence[bytes]]:
    """PNG files in a zip archive, by ``folder/alphabet/character`` and in the order of their names.

    Drawings are files ``folder/alphabet/character/drawing.png``; other files are ignored.

    Raises
    ------
    ImageDataError
        If the file is damaged, or the SHA-256 of names, sizes and bytes of all drawings is not
        ``digest``.
    """
    drawings: dict[str, list[bytes]] = {}
    content = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [
                entry
                for entry in sorted(archive.infolist(), key=lambda entry: entry.filename)
                if entry.filename.startswith(f"{folder}/") and entry.filename.endswith(".png")
            ]
            if sum(entry.file_size for entry in entries) > LARGEST:  # before any is unpacked
                raise ValueError(f"its drawings take more than {LARGEST} bytes")
            for entry in entries:
                png = archive.read(entry)
                content.update(f"{entry.filename} {len(png)}\n".encode() + png)
                drawings.setdefault(entry.filename.rpartition("/")[0], []).append(png)
    except Exception as error:  # zipfile and its decoders raise many kinds
        raise damage_error(path, f"it is not a complete zip file ({error})") from error
    if content.hexdigest() != digest:
        raise damage_error(path, "it holds other drawings than the public archive")
    return drawings
