"""Contracts that analyses and results must keep, for their authors.

Subclass one in a test module and name what is to be checked, and pytest runs every check:

    from pathkernel_datasets.testing import ResultContract

    class TestSpectrum(ResultContract):
        def result(self):
            return Spectrum()
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import xarray as xr
from rich.console import Console

from pathkernel_core.analysis import Analysis
from pathkernel_core.attention import AttentionProduct
from pathkernel_core.hooks import Plugins, load_plugins
from pathkernel_core.options import NAME_PATTERN, option
from pathkernel_core.result import Result
from pathkernel_core.task import Examples, Realisation, Task
from pathkernel_datasets.store import open_store
from pathkernel_datasets.stored import compute_result
from pathkernel_datasets.study import Study
from pathkernel_datasets.sweep import run_study

_OF_RESULTS = frozenset(("store", "figures", "help"))  # options that every result's command has


@dataclass(frozen=True)
class SmallTask(Task):
    """Gaussian tokens with the sign of one of them: a study of it takes a fraction of a second."""

    name: ClassVar[str] = "small-task"
    summary: ClassVar[str] = "Sign of a token among Gaussian ones"

    examples: int = option(12, "training and test examples")

    def realise(self, seed: int) -> Realisation:
        """Draw tokens and heads; each half of the examples has a label of its own."""
        generator = np.random.default_rng(seed)

        def draw() -> Examples:
            labels = np.resize([1.0, -1.0], self.examples)
            inputs = generator.standard_normal((self.examples, 3, 4))
            inputs[:, 0, 0] = labels * np.abs(inputs[:, 0, 0])
            return Examples(inputs, labels)

        return Realisation(
            layers=[AttentionProduct(generator.standard_normal((2, 4, 4))) for _ in range(2)],
            readout="last",
            train=draw(),
            test_sets={"test": draw()},
        )


class _OnStudy:
    """A small study in a temporary folder, for the checks of a contract."""

    def study(self) -> Study:
        """Study that is computed for the checks; override it for one that suits better."""
        return Study(SmallTask(), widths=(10, 100), temperatures=(0.1, 1.0), seeds=(0, 1))

    def plugins(self) -> Plugins:
        """Where tasks and samplers are looked up: installed plugins, and the study's task."""
        plugins, task = load_plugins(), type(self.study().task)
        plugins.tasks.setdefault(task.name, task)
        return plugins

    @contextmanager
    def _computed(self, *analyses: Analysis) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "study.zarr"
            run_study(self.study(), store, analyses=analyses)
            yield store


class AnalysisContract(_OnStudy):
    """Checks of one analysis. Override :meth:`analysis`."""

    def analysis(self) -> Analysis:
        """Analysis to check."""
        raise TypeError(f"{type(self).__name__} must override analysis() to return one")

    def test_describes_itself(self) -> None:
        """Its name and summary can be shown, and its variables say what they are."""
        analysis = self.analysis()
        _check_words(analysis.name, analysis.summary)
        assert analysis.variables, "variables must name what compute() returns"
        for variable in analysis.variables:
            assert variable.long_name.strip(), f"variable {variable.name} needs a long_name"
            assert len(set(variable.dims)) == len(variable.dims), (
                f"variable {variable.name} names a dimension twice: {variable.dims}"
            )

    def test_fills_the_store(self) -> None:
        """A study with it holds every variable, labelled, at every point, and does not change."""
        analysis = self.analysis()
        with self._computed(analysis) as store, self._computed(analysis) as other:
            dataset, again = open_store(store).load(), open_store(other).load()
        names = [variable.name for variable in analysis.variables]
        if analysis.of == "solution":
            names += [f"{name}_gp" for name in names]
        for name in names:
            assert name in dataset, f"the store lacks {name}"
            assert dataset[name].notnull().any(), f"{name} is NaN everywhere"
            for dim in dataset[name].dims:
                assert dim in dataset.coords, f"dimension {dim} of {name} has no labels"
            xr.testing.assert_identical(dataset[name], again[name])


class ResultContract(_OnStudy):
    """Checks of one result. Override :meth:`result`, and :meth:`study` if it needs another."""

    def result(self) -> Result:
        """Result to check, with options that keep the checks fast."""
        raise TypeError(f"{type(self).__name__} must override result() to return one")

    def test_describes_itself(self) -> None:
        """Its name, command, summary and options can be shown and typed."""
        result = self.result()
        _check_words(result.name, result.summary)
        assert re.fullmatch(NAME_PATTERN, result.command), (
            f"command {result.command!r} must be lower-case words joined by hyphens"
        )
        for entry in dataclasses.fields(result):
            assert entry.metadata.get("help"), f"option {entry.name} needs a help text"
            assert entry.name not in _OF_RESULTS, f"the option name {entry.name} is taken"

    def test_keeps_labelled_data(self) -> None:
        """Its group in the store explains itself, and is the same when computed again."""
        result, reported = self.result(), []
        with self._computed() as store:
            study = compute_result(result, store, plugins=self.plugins(), report=reported.append)
            assert reported, "compute() must report its progress, or it seems to have done nothing"
            assert result.name in study.results, f"the store has no group {result.name}"
            tree = study.result(result.name).load()
            again = compute_result(result, store, plugins=self.plugins())
            assert tree.identical(again.result(result.name).load()), "computed again, it is another"
        assert any(group.data_vars for group in tree.subtree), "compute() gave no variable"
        for group in tree.subtree:
            for name, variable in group.data_vars.items():
                assert variable.attrs.get("long_name"), f"variable {name} needs a long_name"
                for dim in variable.dims:
                    assert not str(dim).startswith("dim_"), f"{name}: name its dimension {dim}"
            for name, value in group.attrs.items():
                assert not isinstance(value, dict), f"attribute {name}: netCDF holds no dictionary"

    def test_leaves_the_study_alone(self) -> None:
        """Nothing of the study itself changes."""
        with self._computed() as store:
            before = open_store(store).load()
            compute_result(self.result(), store, plugins=self.plugins())
            assert before.identical(open_store(store).load()), "it changed the study"

    def test_can_be_seen(self) -> None:
        """Its tables fit a terminal of 80 columns, and its charts can be drawn."""
        result = self.result()
        with self._computed() as store:
            study = compute_result(result, store, plugins=self.plugins())
            for view in result.views(study):
                if isinstance(view, str):
                    assert view.strip(), "a sentence is empty"
                elif hasattr(view, "frame"):
                    with (console := Console(width=80)).capture() as printed:
                        console.print(view, crop=False)
                    widest = max(map(len, printed.get().splitlines()))
                    assert widest <= 80, f"{view.name} needs {widest} columns, a terminal has 80"
                    assert json.dumps(view.as_json(result.name)), f"{view.name} has no JSON"
                else:
                    assert hasattr(view, "altair"), f"{view} is no Table, Chart or text"
                    assert view.caption.strip(), f"{view.name}: a chart needs a caption"
                    view.altair().to_dict()


def _check_words(name: str, summary: str) -> None:
    assert re.fullmatch(NAME_PATTERN, name), (
        f"name {name!r} must be lower-case words joined by hyphens"
    )
    assert summary.strip(), "summary must say in one line what it is"
    assert "\n" not in summary, "summary must be a single line"
