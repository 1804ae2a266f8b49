"""What a study is: a task with its options, a grid, and how it is computed."""

from __future__ import annotations

import dataclasses
import functools
import json
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, files, packages_distributions, version
from typing import Any

import numpy as np

from pathkernel_core.errors import PathkernelError
from pathkernel_core.network import Skips, positive, skips_of_layers
from pathkernel_core.options import check_options, several_values
from pathkernel_core.task import Blocks, Realisation, Task
from pathkernel_datasets.errors import TaskError
from pathkernel_datasets.schema import POINT

OTHER_DATA = "the task draws other data than when the store was begun"
_EXPLAINING = {"task", "options", "provenance", "seeds", "versions"}  # other draws
_OF_THE_GRID = ("seeds", "temperatures", "widths", "drawn", "sweep")  # drawn with the first seed
_OF_VALUE = ("provenance", "drawn")  # entries of an identity that each value of an option has


@dataclass(frozen=True)
class Study:
    """A task on a grid of widths, temperatures and seeds.

    Parameters
    ----------
    task : Task
        Task with its options.
    widths, temperatures : sequence of float, optional
        Grid; by default the task's own.
    seeds : sequence of int
        Seeds of the task's data and heads.
    backend, dtype : str
        Array library and precision to compute in.
    variances : float or sequence of float, optional
        Prior variances σ²_0, σ²_1 … σ²_L, σ²_a of the weights, or one number for all; by default
        the task's own.
    sweep : mapping of str to sequence, optional
        Several values of an option of the task, a number or one of some words, by its name. They
        are a dimension of what is computed, in front of the others.
    skips : float or None, or sequence of them, optional
        Strengths of skip connections that the theory's network has, whatever the task, for all
        layers or for each; None, the default, for none.

    Raises
    ------
    ValueError
        If a number is out of range or appears twice, or an option of the task is too small or does
        not take several values.
    TypeError
        If the task is none, or a single number is given where several may be.
    """

    task: Task
    widths: tuple[float, ...]
    temperatures: tuple[float, ...]
    seeds: tuple[int, ...]
    backend: str
    dtype: str
    variances: float | tuple[float, ...]
    sweep: Mapping[str, tuple[Any, ...]] = field(hash=False)
    skips: float | tuple[float | None, ...] | None = None

    def __init__(
        self,
        task: Task,
        widths: Sequence[float] | None = None,
        temperatures: Sequence[float] | None = None,
        seeds: Sequence[int] = (0,),
        backend: str = "numpy",
        dtype: str = "float64",
        variances: float | Sequence[float] | None = None,
        sweep: Mapping[str, Sequence[Any]] | None = None,
        skips: Skips = None,
    ):
        if not isinstance(task, Task):
            raise TypeError(f"task must be a task with its options, as Custom(…), not {task!r}")
        swept = {}
        for name, several in (sweep or {}).items():
            values = several_values(task, name, _sequence(name, several))
            task = dataclasses.replace(task, **{name: values[0]})
            if len(values) > 1:
                swept[name] = values
        if len(swept) > 1:
            raise ValueError(
                f"one option may have several values, not {' and '.join(swept)}; run a study for "
                "each value of the others, into a store of its own"
            )
        check_options(task)
        widths = _sequence("widths", task.widths if widths is None else widths)
        temperatures = _sequence(
            "temperatures", task.temperatures if temperatures is None else temperatures
        )
        seeds = _sequence("seeds", seeds)
        for name, values in (("widths", widths), ("temperatures", temperatures), ("seeds", seeds)):
            if not values:
                raise ValueError(f"{name} must hold at least one value")
            if len(set(values)) != len(values):
                raise ValueError(f"{name} holds a value twice: {', '.join(map(str, values))}")
        for seed in seeds:
            if not isinstance(seed, numbers.Integral) or not 0 <= int(seed) < 2**63:
                raise ValueError(f"seeds must be whole numbers from 0 to 2^63 − 1, not {seed!r}")
        if variances is None:
            variances = task.variances
        if isinstance(variances, Sequence) and not isinstance(variances, str):
            variances = tuple(positive("each of variances", value) for value in variances)
            if len(variances) == 1:
                (variances,) = variances
        else:
            positive("variances", variances)
        strengths = skips_of_layers(skips, np.size(skips) or 1)
        one = len(strengths) == 1 or set(strengths) == {None}
        set_ = object.__setattr__
        set_(self, "skips", strengths[0] if one else strengths)
        set_(self, "task", task)
        set_(self, "widths", tuple(positive("each of widths", value) for value in widths))
        temperatures = tuple(positive("each of temperatures", value) for value in temperatures)
        set_(self, "temperatures", temperatures)
        set_(self, "seeds", tuple(map(int, seeds)))
        set_(self, "backend", backend)
        set_(self, "dtype", dtype)
        set_(self, "variances", variances)
        set_(self, "sweep", swept)

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Values along every dimension of the grid: of the option that is swept, and of points."""
        return {**self.sweep, **dict(zip(POINT, (self.seeds, self.temperatures, self.widths)))}

    def on_grid(self, grid: Mapping[str, Sequence[Any]]) -> Study:
        """The same study on another grid, some dimensions of which may be left out."""
        values = self.grid | dict(grid)
        seeds, temperatures, widths = (values.pop(name) for name in POINT)
        how = (self.backend, self.dtype, self.variances)
        return Study(self.task, widths, temperatures, seeds, *how, values, self.skips)

    @property
    def singles(self) -> list[Study]:
        """The studies of single values of the option that is swept; itself if none is."""
        found = [self.on_grid({name: [v]}) for name, values in self.sweep.items() for v in values]
        return found or [self]

    def begun(self, held: Mapping[str, Any]) -> Study:
        """The same study on the grid of a store, by the identity of what it holds."""
        options = self.task.options()
        single = {name: [held["options"].get(name, options[name])] for name in self.sweep}
        grid = single | grid_of(held)
        return self.on_grid({name: grid[name] for name in grid if name in {*POINT, *options}})

    def joined(self, held: Study) -> Study:
        """The study on the grid of both, in the order of the one that holds the other.

        If neither does, what is new comes behind what the other holds.
        """
        names = {**held.grid, **self.grid}
        return self.on_grid({name: _joined(self.along(name), held.along(name)) for name in names})

    def along(self, name: str) -> tuple[Any, ...]:
        """Values along a dimension of a grid, or the only one of an option."""
        return tuple(self.grid[name]) if name in self.grid else (getattr(self.task, name),)

    def identity(self, drawn: Iterable[Realisation] | None = None) -> dict[str, Any]:
        """All that determines the results, as plain values, see :func:`differences`.

        Among it what the task draws with the first seed, so that results of code that has changed
        are not taken for those of the code that is installed. Paths of files are absolute.

        Parameters
        ----------
        drawn : iterable of Realisation, optional
            What each value of the option that is swept draws with the first seed, where it is at
            hand.
        """
        if drawn is None:
            drawn = (draw(single.task, self.seeds[0]) for single in self.singles)
        parts = [single._identity(own) for single, own in zip(self.singles, drawn)]
        found = dict(parts[0])
        for name, values in self.sweep.items():
            found["options"] = found["options"] | {name: list(values)}
            of_values = ({key: part[key] for key in _OF_VALUE} for part in parts)
            found["sweep"] = {name: dict(zip(map(str, values), of_values))}
        return found

    def _identity(self, drawn: Realisation) -> dict[str, Any]:
        options, provenance = self.task.options(), self.task.provenance()
        for name in file_options(options, provenance):
            if os.path.exists(options[name]):
                options[name] = os.path.abspath(options[name])
        of_skips = {} if self.skips is None else {"skips": self.skips}
        return json.loads(
            json.dumps(
                {
                    "task": self.task.name,
                    "options": options,
                    "provenance": provenance,
                    "variances": self.variances,
                    **of_skips,
                    "widths": self.widths,
                    "temperatures": self.temperatures,
                    "seeds": self.seeds,
                    "backend": self.backend,
                    "dtype": self.dtype,
                    "versions": task_versions(self.task),
                    "drawn": fingerprint(drawn),
                }
            )
        )


def core_of(identity: Mapping[str, Any], swept: str | None = None, value: Any = None) -> str:
    """All that determines the pieces of a study besides their keys, as JSON.

    Parameters
    ----------
    identity : mapping
        Of the study.
    swept : str, optional
        Option that has several values, and
    value
        the one of the pieces.
    """
    core = {key: identity[key] for key in identity if key not in _OF_THE_GRID}
    if swept is not None and swept in identity.get("sweep", {}):
        core["provenance"] = identity["sweep"][swept][str(value)]["provenance"]
    if swept is not None:
        core["options"] = core["options"] | {swept: value}
    options = core["options"].items()
    core["options"] = {key: held for key, held in options if key not in core["provenance"]}
    return json.dumps(core, sort_keys=True)


def grid_of(identity: Mapping[str, Any]) -> dict[str, list]:
    """Values along every dimension of a store's grid, by the identity of its study."""
    swept = {name: identity["options"][name] for name in identity.get("sweep", ())}
    return swept | {name: identity[f"{name}s"] for name in POINT}


def _joined(wanted: tuple, held: tuple) -> tuple:
    if set(wanted) <= set(held):
        return held
    if set(held) <= set(wanted):
        return wanted
    return (*held, *(value for value in wanted if value not in held))


def file_options(options: Mapping[str, Any], provenance: Mapping[str, str]) -> list[str]:
    """Options that are paths of files: those under whose names the task gives a provenance."""
    return [name for name in options if name in provenance and options[name] is not None]


def differences(held: Mapping[str, Any], wanted: Mapping[str, Any], here: str) -> list[str]:
    """What differs between the identities of two studies, entry by entry, in words.

    Paths do not count, where the provenance says what the file holds; nor do other draws where
    something else explains them.

    Parameters
    ----------
    held, wanted : mapping
        Of the store, and of the other study.
    here : str
        What the other study is called.
    """
    known = held["provenance"].keys() & wanted["provenance"].keys()
    one, other = (
        dict(study, options={key: v for key, v in study["options"].items() if key not in known})
        for study in (held, wanted)
    )
    different = _different(one, other)
    different.sort(key=lambda entry: entry[0][0] != "options")
    drawn = dict.fromkeys(keys[-1] for keys, _, _ in different if "drawn" in keys)
    lines = [
        f"{', '.join(keys)}: the store has {_worded(one)}, {here} {_worded(other)}"
        for keys, one, other in different
        if "drawn" not in keys
    ]
    if drawn and not any(_EXPLAINING & set(keys) for keys, _, _ in different):
        lines.append(f"{OTHER_DATA}, since its code or a file has changed: {', '.join(drawn)}")
    return lines


def _worded(value: Any) -> str:
    """JSON, but for None, which options call none."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_worded, value))}]"
    return "none" if value is None else json.dumps(value)


def _different(
    held: Mapping[str, Any], wanted: Mapping[str, Any]
) -> list[tuple[tuple[str, ...], Any, Any]]:
    """Places of entries that differ, and both entries."""
    found: list[tuple[tuple[str, ...], Any, Any]] = []
    for key in sorted({**held, **wanted}):
        one, other = held.get(key), wanted.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += [((key, *keys), *entries) for keys, *entries in _different(one, other)]
        elif one != other:
            found.append(((key,), one, other))
    return found


def _sequence(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence, such as ({values},), but is {values!r}")
    return tuple(values)


def draw(task: Task, seed: int) -> Realisation:
    """A task's data and heads.

    Raises
    ------
    TaskError
        If a task of another distribution fails in its own way; those of pathkernel say themselves
        what is wrong.
    """
    with _named_failures(task, seed):
        return task.realise(seed)


def draw_blocks(task: Task, seed: int) -> Blocks | None:
    """A task's training examples in blocks, if they are too many to hold; errors as of `draw`."""
    with _named_failures(task, seed):
        return task.blocks(seed)


@contextmanager
def _named_failures(task: Task, seed: int) -> Iterator[None]:
    try:
        yield
    except (PathkernelError, OSError, MemoryError):
        raise
    except Exception as error:
        if type(task).__module__.startswith("pathkernel_"):
            raise
        options = ", ".join(f"{name}={value!r}" for name, value in task.options().items())
        raise TaskError(
            f"the task {task.name!r} with {options or 'no options'} cannot draw seed {seed}: "
            f"{type(error).__name__}: {error}"
        ) from error


def fingerprint(realisation: Realisation) -> dict[str, str]:
    """One number for each array of a realisation, which another draw does not have; and its kind.

    Sums over all entries with weights of their own, relative to the array's norm: to six digits
    they are the same on every machine.
    """
    sets = {"training": realisation.train}
    sets |= {f"test set {name}": examples for name, examples in realisation.test_sets.items()}
    if realisation.validation is not None:
        sets["validation"] = realisation.validation
    arrays: dict[str, list[Any]] = {}
    for name, examples in sets.items():
        arrays[f"{name} inputs"] = [examples.inputs]
        arrays[f"{name} labels"] = [examples.labels]
    for number, layer in enumerate(realisation.layers, start=1):
        held: list[Any] = []
        arrays[f"heads of layer {number}"] = held
        layer.convert(lambda array, held=held: held.append(array) or array)  # type: ignore[misc]
    found = {name: " ".join(map(_weighted_sum, held)) for name, held in arrays.items()}
    if realisation.kind != "classes":
        found["kind"] = f"{realisation.kind}{', centred' if realisation.centred else ''}"
    if realisation.output_names is not None:
        found["output names"] = ", ".join(map(str, realisation.output_names))
    return found


def _weighted_sum(array: Any) -> str:
    values = np.asarray(array, dtype=float)
    norm = np.linalg.norm(values) or 1.0
    while values.ndim:
        values = values @ np.cos(1.0 + np.arange(values.shape[-1]))
    return f"{float(values) / norm:.6f}"


def task_versions(task: Task) -> dict[str, str]:
    """Versions of the distributions that draw a task's data."""
    return versions(("pathkernel", *_distributions(type(task))))


@functools.cache
def _distributions(task: type[Task]) -> list[str]:
    """Distributions that the task's code may come from."""
    package = task.__module__.partition(".")[0]
    with suppress(PackageNotFoundError):
        if any(file.parts[0] == package for file in files("pathkernel") or ()):
            return []  # all that is installed need not be looked through, which takes a while
    return sorted(set(packages_distributions().get(package, ())) - {"pathkernel"})


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of installed distributions."""
    return {package: _version(package) for package in packages}


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
