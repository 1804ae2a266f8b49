"""The views of the selected parts of a study, which ``show``, ``plot`` and ``report`` present."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pathkernel.commands.options import folder_argument, options_of
from pathkernel_core.contracts.hooks import Plugins, UnknownNameError, unknown_name
from pathkernel_core.contracts.options import Options, declared_options, option
from pathkernel_core.contracts.result import Result
from pathkernel_core.system.errors import MissingExtraError, PathkernelError
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.variables.measures import WORDS

if TYPE_CHECKING:
    from pathkernel_datasets.results.stored_study import StoredStudy

STUDY = "study"
"""The study itself among its parts; the others are its results."""


@dataclass(frozen=True)
class SelectedParts(Options):
    """Parts of the study in a folder, at a temperature and a seed."""

    folder: Path
    temperature: float | str | None = option(
        None,
        "Temperature T, or the criterion that chooses it at each width over all seeds: best "
        "validation score, smallest leave-one-out error, largest log evidence, or best score on "
        "the first test set, as in the paper.  [default: validation, or leave-one-out where the "
        "task has no validation examples]",
        choices=WORDS,
        type=float,
        metavar="T",
    )
    seed: int | None = option(
        None, "Seed in views of a single seed.  [default: the first]", type=int
    )
    only: str | None = option(
        None, "Parts of the study, such as study,samples.  [default: all]", metavar="NAME,NAME,…"
    )

    @cached_property
    def study(self) -> StoredStudy:
        """The study with its results."""
        from pathkernel_datasets.results.stored_study import StoredStudy
        from pathkernel_datasets.selection.selection import index_of

        study = StoredStudy(self.folder, click.get_current_context().find_object(Plugins))
        if self.seed is not None:
            index_of(study.dataset, "seed", self.seed)
        return study

    @cached_property
    def parts(self) -> Sequence[str]:
        """Names of the selected parts, by default all, the study first."""
        stored = [STUDY, *self.study.results]
        parts = stored if self.only is None else [name.strip() for name in self.only.split(",")]
        for name in parts:
            if name not in stored:
                raise UnknownNameError(unknown_name(f"part of {self.folder}", name, stored))
        return parts

    def views(self, part: str) -> Iterator[Any]:
        """Views of a part, or a line that says why there are none."""
        if part == STUDY:
            from pathkernel_views.study_views import study_views

            with naming_folder(self.folder):
                yield from study_views(self.study.dataset, self.temperature, self.seed)
            return
        result = self.study.plugins.results.get(part)
        if result is None:
            yield f"{part}: skipped, no plugin that is installed knows this result"
            return
        try:
            yield from views_of_values(self._configure(result), self.study)
        except MissingExtraError as error:
            yield f"{part}: skipped, {error}"
        except Exception as error:  # of a plugin, or damage; other results must be seen
            damage = self.study.damage(part)
            if isinstance(error, PathkernelError | OSError) and not damage:
                raise
            yield f"{part}: skipped, {damage or f'{type(error).__name__}: {error}'}"

    def _configure(self, result: type[Result]) -> Result:
        """A result at the selected temperature and seed, as far as its views take them."""
        declared, temperature = declared_options(result).get("temperature"), self.temperature
        if isinstance(temperature, str) and not (declared and declared.metadata["choices"]):
            temperature = None
        chosen = {"seed": self.seed, "temperature": temperature}
        names = [name for name in result.view_options if chosen.get(name) is not None]
        return result(**{name: chosen[name] for name in names})


@contextmanager
def naming_folder(folder: Path) -> Iterator[None]:
    """Name the folder of a study in an error that none of its checks has foreseen.

    Raises
    ------
    StudyError
        For an error in reading the study, unless it is one of pathkernel or of the system.
    """
    try:
        yield
    except (PathkernelError, OSError, ValueError, MemoryError, ImportError):
        raise
    except Exception as error:
        if "No variable named" in str(error):  # by xarray; the command line says what it means
            raise
        raise StudyError(
            f"the study in {folder} cannot be shown ({type(error).__name__}: {error}): its files "
            "hold something else than a run writes, or this is a defect; `pathkernel check` names "
            "damage, `pathkernel --traceback …` shows where"
        ) from error


SELECTION: list[click.Parameter] = [folder_argument, *options_of(SelectedParts)]
"""Parameters of commands that make a :class:`SelectedParts`."""


def views_of_values(result: Result, study: StoredStudy) -> Iterator[Any]:
    """Views of a result for every value of a swept option, then those of all together."""
    from pathkernel_views.chart import Chart

    for single in [study] if result.of_all_values else study.singles:
        if result.name not in single.results:
            continue
        if single.label:
            yield single.label
        try:
            for view in result.views(single):
                if single.label and isinstance(view, Chart):
                    name, title = f"{single.path.name}/{view.name}", f"{view.title}, {single.label}"
                    view = dataclasses.replace(view, name=name, title=title)
                yield view
        except StudyError:
            if single.is_published(result.name):
                raise
            # begun and killed; draws, of which every block is shown, come without an error
            yield f"{result.name}: not complete; run the command again that computes it"
    yield from result.joint_views(study)
