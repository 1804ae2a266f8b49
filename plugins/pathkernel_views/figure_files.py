"""Writing figures into a folder, as PNG and SVG, each whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from pathkernel_core.errors import PathkernelError
from pathkernel_datasets.atomic import replacing
from pathkernel_datasets.lock import locked
from pathkernel_views.drawing import STYLE

_RESOLUTION = 150  # dots per inch of PNG files
_MARK = "pathkernel"  # in the first bytes of every figure
_LOCK = ".lock"


class NothingToPlot(PathkernelError, ValueError):
    """A store lacks what a figure shows, or it is not computed yet."""


def write_figures(
    figures: Mapping[str, Callable[[], Figure]],
    folder: str | os.PathLike,
    report: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Draw figures and write each as ``<name>.png`` and ``<name>.svg``; names may hold folders.

    Parameters
    ----------
    figures : mapping of str to callable
        Name → function that draws the figure, or raises NothingToPlot.
    folder : path
        Folder to write into; made if it does not exist. Figures of the same names are replaced, but
        no file that is none of these figures.
    report : callable
        Called with a line of text for every figure that is skipped or fails, and why.

    Returns
    -------
    list of pathlib.Path
        Files written.

    Raises
    ------
    PathkernelError, OSError
        If the store lacks what is asked for, the folder cannot be made or written, or another
        process writes figures there.
    Exception
        What the last figure raised, if all failed.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    written, failure = [], None
    with locked(folder, lock=folder / _LOCK, temporary=True):
        for name, draw in figures.items():
            try:
                files = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
                _check_own(files)
                figure = draw()
                files[0].parent.mkdir(parents=True, exist_ok=True)
                for file in files:
                    _write(figure, file)
                    figure.set_layout_engine("none")  # it lies where it is to; that took longest
                written += files
            except NothingToPlot as reason:
                report(f"{name}: skipped, {reason}")
            except (PathkernelError, OSError):
                raise
            except Exception as error:  # the others must be seen
                failure = error
                report(f"Warning: {name} is not drawn ({type(error).__name__}: {error}).")
    if failure is not None and not written:
        raise failure
    return written


def _check_own(files: Iterable[Path]) -> None:
    for file in files:
        if file.exists():
            with open(file, "rb") as stream:
                if _MARK.encode() not in stream.read(2**12):
                    raise NothingToPlot(
                        f"{file} is there already, without the mark of pathkernel's figures; "
                        "delete it (an older version set no mark), or choose another folder"
                    )


def _write(figure: Figure, file: Path) -> None:
    """Write beside the file and move into place, so that no half-written figure is left."""
    figure.set_dpi(_RESOLUTION)
    with replacing(file) as partial, matplotlib.rc_context(STYLE):
        if file.suffix == ".svg":  # by its own canvas, because savefig draws everything twice
            metadata = {"Date": None, "Creator": _MARK}
            FigureCanvasSVG(figure).print_svg(partial, metadata=metadata)
        else:
            FigureCanvasAgg(figure).print_png(partial, metadata={"Software": _MARK})
