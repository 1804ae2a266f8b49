"""Test images of MNIST and Fashion-MNIST, in the IDX format."""

from __future__ import annotations

import functools
import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pathkernel_one_shot.image_sources import LARGEST, RemoteFile, damage_error, locate


@dataclass(frozen=True)
class IdxSet:
    """Labelled images in a pair of gzipped IDX files.

    Attributes
    ----------
    name : str
    images, labels : RemoteFile
    images_digest, labels_digest : str
        SHA-256 of the decompressed files, in hexadecimal.
    """

    name: str
    images: RemoteFile
    labels: RemoteFile
    images_digest: str
    labels_digest: str


def _idx_set(name: str, home: str, md5: tuple[str, str], digests: tuple[str, str]) -> IdxSet:
    files = (
        RemoteFile(f"{name}/{file}", home + file, f"md5:{checksum}")
        for file, checksum in zip(("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"), md5)
    )
    return IdxSet(name, *files, *digests)


FASHION_MNIST = _idx_set(
    "fashion-mnist",
    "https://github.com/zalandoresearch/fashion-mnist/raw/"
    "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/",
    ("bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
    (
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)
MNIST = _idx_set(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ("9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
    (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


def read_idx_set(source: IdxSet) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28), grey values 0 to 255, and classes (n,), 0 to 9; read-only bytes.

    Raises
    ------
    ImageDataError
        If a file is missing or damaged, or cannot be downloaded.
    """
    images = read_idx(locate(source.images), source.images_digest)
    return images, read_idx(locate(source.labels), source.labels_digest)


@functools.lru_cache(maxsize=4)  # images and labels of two sets, 15 MiB; every seed needs them
def read_idx(path: Path, digest: str) -> np.ndarray:
    """Array of unsigned bytes in a gzipped IDX file, of the shape that the file states; read-only.

    Raises
    ------
    ImageDataError
        If the file is damaged, or the SHA-256 of the decompressed file is not ``digest``.
    """
    try:
        with gzip.open(path) as stream:
            content = stream.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damage_error(path, f"it cannot be decompressed ({error})") from error
    if len(content) > LARGEST:
        raise damage_error(path, f"decompressed, it takes more than {LARGEST} bytes")
    # of the content: a mirror may have compressed it again, which changes every byte of the file
    if (actual := hashlib.sha256(content).hexdigest()) != digest:
        raise damage_error(path, f"decompressed, it must have SHA-256 {digest}, but has {actual}")
    start = 4 + 4 * content[3]  # the fourth byte counts the dimensions, four bytes each
    shape = np.frombuffer(content[4:start], dtype=">u4")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
