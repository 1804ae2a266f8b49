"""Handwritten characters of Omniglot, and their split for few-shot learning.

The drawings are those of Lake, Salakhutdinov and Tenenbaum (2015), read straight from the archives.
The split of the 1623 characters into 1028 for training, 172 for validation and 423 for testing is
that of Vinyals et al. (2016) as torchmeta ships it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pathkernel_one_shot.image_sources import (
    ImageDataError,
    RemoteFile,
    damaged,
    locate,
    resize,
)

DRAWINGS = 20  # of each character
SPLITS = ("train", "val", "test")

_PIXELS = 105  # along each side of a drawing
_LARGEST = 2**20  # bytes of one, unpacked
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

# what an archive holds, whoever compressed it: the drawings' number, and a digest of their names,
# sizes and checksums, by which the archive then vouches for each drawing that is read
ARCHIVE_DRAWINGS = {"images_background": 19280, "images_evaluation": 13180}
ARCHIVE_DIGESTS = {
    "images_background": "61bc74225a5115c1deb188b06ca40d3233fd5097d1430897d6b11d304e140c65",
    "images_evaluation": "c1c898dcbcef1056acc0868bca916a1c716c7b151963dc8cd7fc70bcb69535fc",
}
# and of the drawings themselves: checksums of 32 bits can be forged
_CONTENTS = {
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


def split_characters() -> dict[str, tuple[Character, ...]]:
    """Characters of each split, ``"train"`` (1028), ``"val"`` (172) and ``"test"`` (423), sorted.

    Raises
    ------
    ImageDataError
        If a file is missing or damaged, or cannot be downloaded.
    """
    return read_splits({split: locate(file) for split, file in _SPLIT_FILES.items()})


def read_splits(paths: Mapping[str, Path]) -> dict[str, tuple[Character, ...]]:
    """Characters of the splits, each read from a file of its own or from a file of all of them.

    Parameters
    ----------
    paths : mapping of str to Path
        JSON file of each split: ``{folder: {alphabet: [character]}}``, or that for each split.

    Raises
    ------
    ImageDataError
        If a file cannot be read or does not hold the characters of the published split.
    """
    splits = {}
    for split, path in paths.items():
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            tree = tree.get(split, tree)
            characters = sorted(
                Character(f"images_{folder.removeprefix('images_')}", alphabet, name)
                for folder, alphabets in tree.items()
                for alphabet, names in alphabets.items()
                for name in names
            )
            digest = _digest("/".join(character) for character in characters)
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            raise damaged(path, f"the {split} characters cannot be read ({error})") from error
        if digest != SPLIT_DIGESTS[split]:
            raise damaged(path, f"it holds other {split} characters than the published split")
        splits[split] = tuple(characters)
    return splits


def read_drawings(drawings: Sequence[tuple[Character, int]]) -> np.ndarray:
    """Drawings of Omniglot, ink bright on dark ground. Only these are decoded.

    Parameters
    ----------
    drawings : sequence of (Character, int)
        Character and number of the drawing, 0 to 19.

    Returns
    -------
    array, shape (n, 32, 32)
        Grey values, 0 for the ground to 1 for ink.

    Raises
    ------
    ImageDataError
        If an archive is missing or damaged, or cannot be downloaded.
    LookupError
        If an archive holds no such character or drawing.
    """
    images: list[np.ndarray | None] = [None] * len(drawings)
    for folder in sorted({character.folder for character, _ in drawings}):
        if folder not in _ARCHIVES:
            raise LookupError(f"folder must be one of {', '.join(_ARCHIVES)}, but is {folder!r}")
        path = locate(_ARCHIVES[folder])
        known = path.stat()
        archive = _opened(path, folder, known.st_size, known.st_mtime_ns, os.getpid())
        for place, (character, number) in enumerate(drawings):
            if character.folder == folder:
                images[place] = resize(archive.drawing(character, number))
    return np.stack(images)


class DrawingArchive:
    """Archive of drawings, checked when opened. Nothing is extracted to disk.

    Parameters
    ----------
    path : Path
        Zip file with drawings ``folder/alphabet/character/drawing.png``.
    folder : str
        Folder in the archive, which is also the archive's public name.
    digest : str, optional
        Digest that the content must have; by default the public archive's.

    Raises
    ------
    ImageDataError
        If the file is no zip file, or truncated, or its content is not the public archive's.
    """

    def __init__(self, path: Path, folder: str, digest: str | None = None):
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except Exception as error:  # whatever the decoder raises
            raise damaged(path, f"it is not a complete zip file ({error})") from error
        try:
            entries = sorted(_drawings(self._archive, folder), key=lambda entry: entry.filename)
            if digest is None and len(entries) != ARCHIVE_DRAWINGS[folder]:
                raise damaged(
                    path,
                    f"it must hold {ARCHIVE_DRAWINGS[folder]} drawings below {folder}/, "
                    f"but holds {len(entries)}",
                )
            if archive_digest(entries) != (digest or ARCHIVE_DIGESTS[folder]):
                raise damaged(path, "it holds other drawings than the public archive")
        except ImageDataError:
            self._archive.close()
            raise
        self._drawings: dict[str, list[zipfile.ZipInfo]] = {}
        for entry in entries:
            self._drawings.setdefault(entry.filename.rpartition("/")[0], []).append(entry)

    def __enter__(self) -> DrawingArchive:
        return self

    def __exit__(self, *exception: object) -> None:
        self._archive.close()

    def content_digest(self) -> str:
        """SHA-256 of all drawings with their names, in order, in hexadecimal.

        Raises
        ------
        ImageDataError
            If a drawing cannot be read.
        """
        digest = hashlib.sha256()
        for entry in (entry for drawings in self._drawings.values() for entry in drawings):
            digest.update(f"{entry.filename} {entry.file_size}\n".encode())
            digest.update(self._read(entry))
        return digest.hexdigest()

    def drawing(self, character: Character, number: int) -> np.ndarray:
        """One drawing of a character, (105, 105) of uint8, ink 255 on ground 0.

        Raises
        ------
        LookupError
            If the archive holds no such character or drawing.
        ImageDataError
            If the drawing cannot be read.
        """
        from PIL import Image

        drawings = self._drawings.get("/".join(character), [])
        if not 0 <= number < len(drawings):
            raise LookupError(
                f"{str(self.path)!r} holds {len(drawings)} drawings of {'/'.join(character)}, "
                f"so no drawing {number}"
            )
        entry = drawings[number]
        try:
            with Image.open(io.BytesIO(self._read(entry)), formats=("PNG",)) as image:
                if image.size != (_PIXELS, _PIXELS):
                    raise ValueError(f"its size is {image.size}, not {(_PIXELS, _PIXELS)}")
                return 255 - np.asarray(image.convert("L"))
        except ImageDataError:
            raise
        except Exception as error:  # whatever the decoder raises
            raise damaged(self.path, f"{entry.filename} cannot be read ({error})") from error

    def _read(self, entry: zipfile.ZipInfo) -> bytes:
        """Bytes of a drawing, whose size and checksum are those that the directory vouches for."""
        try:
            if entry.file_size > _LARGEST:
                raise ValueError(f"it takes {entry.file_size} bytes")
            return self._archive.read(entry)
        except Exception as error:  # whatever the decoder raises
            raise damaged(self.path, f"{entry.filename} cannot be read ({error})") from error


@functools.lru_cache(maxsize=len(_ARCHIVES))
def _opened(path: Path, folder: str, size: int, changed: int, process: int) -> DrawingArchive:
    """Archive whose drawings are the public ones; it stays open, as its directory is long.

    Each process, forked ones too, has its own: its place in the file would be that of all.
    """
    with contextlib.ExitStack() as stack:
        archive = stack.enter_context(DrawingArchive(path, folder))
        if archive.content_digest() != _CONTENTS[folder]:
            raise damaged(path, "it holds other drawings than the public archive")
        stack.pop_all()
    return archive


def archive_digest(entries: Iterable[zipfile.ZipInfo]) -> str:
    """Digest of an archive's content from its directory: names, sizes and checksums, sorted."""
    return _digest(
        sorted(f"{entry.filename} {entry.file_size} {entry.CRC:08x}" for entry in entries)
    )


def _drawings(archive: zipfile.ZipFile, folder: str) -> Iterable[zipfile.ZipInfo]:
    for entry in archive.infolist():  # a public archive may hold folders and a desktop's litter
        if entry.filename.startswith(f"{folder}/") and entry.filename.endswith(".png"):
            yield entry


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
