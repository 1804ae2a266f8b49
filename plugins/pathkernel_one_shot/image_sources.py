"""Image archives: download from their public homes, or a local folder that mirrors them.

The environment variable ``PATHKERNEL_DATA`` names a folder that replaces every download, with one
subfolder per data set. Without it a file is downloaded once, with a checksum, into the user's cache
folder. A mirror may hold archives that were compressed again, so the readers compare the content of
every archive with a digest, whatever its origin.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pathkernel_core.system.errors import PathkernelError

MIRROR_VARIABLE = "PATHKERNEL_DATA"
LARGEST = 2**26  # bytes of an archive, unpacked; the largest takes 47 MB
SIZE = 32  # pixels along each side of the images that tasks see


class ImageDataError(PathkernelError, OSError):
    """Image data are missing, damaged, or cannot be downloaded."""


@dataclass(frozen=True)
class RemoteFile:
    """A file with a public home.

    Attributes
    ----------
    path : str
        Path below the cache folder, with forward slashes.
    url : str
    checksum : str
        Checksum of the public file, as ``"md5:…"`` or ``"sha256:…"``.
    mirrored : str
        Path below the mirror, if it differs from ``path``.
    """

    path: str
    url: str
    checksum: str
    mirrored: str = ""


def locate(file: RemoteFile) -> Path:
    """Local path of a file, in the mirror if there is one, else in the cache; download if needed.

    Raises
    ------
    ImageDataError
        If the mirror lacks the file, or it cannot be downloaded, or the download does not match its
        checksum (it is then removed).
    """
    mirrored = file.mirrored or file.path
    if mirror := os.environ.get(MIRROR_VARIABLE):
        folder = Path(mirror).expanduser()
        if not folder.is_dir():
            raise ImageDataError(
                f"{MIRROR_VARIABLE} names {str(folder)!r}, but there is no such folder. Create it, "
                f"correct {MIRROR_VARIABLE}, or unset it to download the data"
            )
        if not (folder / mirrored).is_file():
            raise ImageDataError(
                f"{MIRROR_VARIABLE} names the folder {str(folder)!r}, which lacks the file "
                f"{mirrored!r}. Add the file, or unset {MIRROR_VARIABLE} to download the data"
            )
        return folder / mirrored

    import pooch

    local = Path(pooch.os_cache("pathkernel")) / file.path
    try:
        pooch.retrieve(file.url, known_hash=file.checksum, fname=local.name, path=local.parent)
    except (OSError, ValueError) as error:  # no network or disk; a checksum that does not match
        raise ImageDataError(
            f"{file.url} could not be downloaded to {str(local)!r}: {str(error)[:200]}. Check the "
            f"network, or set {MIRROR_VARIABLE} to a folder that holds {mirrored!r} and the other "
            "image files (docs/data.md lists them)"
        ) from error
    return local


def damage_error(path: Path, reason: str) -> ImageDataError:
    """Error for a file of unexpected content."""
    remedy = (
        "Replace it with an intact copy"
        if os.environ.get(MIRROR_VARIABLE)
        else "Delete it, and it will be downloaded again"
    )
    return ImageDataError(f"{str(path)!r} is damaged: {reason}. {remedy}")


def resize(image: np.ndarray) -> np.ndarray:
    """Resize a grey image of bytes 0 to 255 to (32, 32) floats 0 to 1, bilinear, antialiased."""
    from PIL import Image

    resized = Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.asarray(resized) / 255.0
