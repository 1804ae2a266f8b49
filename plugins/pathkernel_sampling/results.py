"""Draws and next order of a study as results: their options, points and views.

JAX and other large libraries are imported when a result is computed or shown, so that the command
line starts without them.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pathkernel_core.contracts.hooks import UnknownNameError, unknown_name
from pathkernel_core.contracts.options import option
from pathkernel_core.contracts.result import Result
from pathkernel_core.system.extras import import_extra
from pathkernel_core.system.progress import Progress, Report
from pathkernel_core.system.text import number

if TYPE_CHECKING:
    import xarray as xr

    from pathkernel_datasets.results.point import Point
    from pathkernel_datasets.results.stored_study import StoredStudy
    from pathkernel_views.chart import Chart
    from pathkernel_views.table import Table

_LIBRARIES = ("jax", "jaxlib", "blackjax", "arviz_base", "arviz_stats")


def needs_sampling(module: str) -> ModuleType:
    """Import a module that needs the extra ``sampling``, or raise MissingExtraError."""
    return import_extra(module, "sampling", "sampling", _LIBRARIES)


@dataclass(frozen=True)
class _AtPoints(Result):
    """Result with a part for every point of the study."""

    view_options = ("temperature", "seed")

    widths: tuple[float, ...] | None = option(
        None,
        "Widths N, among the study's.",
        type=tuple,
        flags=("--width", "--widths"),
        required=True,
    )
    temperature: float | None = option(
        None,
        "Temperature T of the study.  [default: the one that pathkernel show chooses]",
        type=float,
    )
    seed: int | None = option(None, "Seed of the study.  [default: its first]", type=int)
    scheduler: str | None = option(
        None,
        "Dask scheduler whose workers compute, tcp://HOST:PORT.",
        type=str,
        metavar="ADDRESS",
    )

    def points(self, study: StoredStudy) -> list[Point]:
        """Return the points of the study that the options select.

        Raises
        ------
        ValueError
            If there are no widths.
        NotInStudyError
            If the study lacks one.
        """
        if not self.widths:
            known = ", ".join(map(number, study.dataset["width"].values))
            raise ValueError(
                f"widths must name at least one width of the study, which has {known} (on the "
                "command line by --widths)"
            )
        widths = dict.fromkeys(self.widths)  # without repetitions
        return [study.point(width, self.temperature, self.seed) for width in widths]

    def points_to_show(self, study: StoredStudy) -> list[Point]:
        """Return the points to show: those that the options select, by default all."""
        from pathkernel_datasets.results.point import Point

        if self.widths:
            return self.points(study)
        grid = (study.dataset[name].values for name in ("seed", "temperature", "width"))
        return [
            Point(float(width), float(temperature), int(seed))
            for seed, temperature, width in itertools.product(*grid)
            if self.seed in (None, seed)
            and (
                self.temperature is None
                or np.isclose(self.temperature, temperature, rtol=1e-9, atol=0)
            )
        ]


@dataclass(frozen=True)
class Draws(_AtPoints):
    """Result of draws from a posterior: a run for every point."""

    sampler: str = option("order-parameter", "Sampler.")
    draws: int | None = option(
        None,
        "Draws of each chain.  [default: 1000, or as many as --target-ess takes]",
        type=int,
        minimum=1,
    )
    chains: int = option(4, "Number of chains.", minimum=1)
    warm_up: int = option(500, "Steps of adaptation before the draws.", minimum=20)
    target_ess: float | None = option(
        None,
        "Effective sample size of every entry of U, over all chains, at which to stop.",
        type=float,
        minimum=1,
    )
    thin: int = option(10, "Draws from one evaluation of the predictor to the next.", minimum=1)
    jobs: int = option(1, "Number of chains that are drawn at the same time.", minimum=1)

    @abc.abstractmethod
    def run_name(self, point: Point) -> str:
        """Name of the run at a point, ``RESULT/KIND/POINT``."""

    @abc.abstractmethod
    def run_settings(self) -> dict[str, Any]:
        """Settings of a run that decide on its draws, besides its point and chains."""

    @abc.abstractmethod
    def chains_of(self, study: StoredStudy, point: Point) -> tuple[Any, ...]:
        """Return the function that builds the chains of a point, and its arguments."""

    @abc.abstractmethod
    def finish(self, run: Any, chains: Any) -> None:
        """Write a SampleRun whose draws, by these Chains, are complete."""

    def compute(self, study: StoredStudy, report: Report) -> Iterable[tuple[str, xr.Dataset]]:
        """Draw at the selected points; blocks of draws are written as they come."""
        run = needs_sampling("pathkernel_sampling.chains.run")
        points = self.points(study)
        for point in points:
            if not point.width.is_integer():
                raise ValueError(
                    f"only whole widths can be sampled, but width is {number(point.width)}"
                )
        with study.mapping(scheduler=self.scheduler) as map_parts:
            for point in points:
                run.sample_point(study, point, self, report, map_parts)
        return ()


@dataclass(frozen=True)
class Samples(Draws):
    """Draw from the exact posterior, by the no-U-turn sampler.

    NAME is the folder of a study; draws go into NAME/samples.zarr, in the groups that ArviZ
    expects. The same command resumes a run that was stopped; more draws, or a larger effective
    sample size, extend a finished one.
    """

    name = "samples"
    command = "sample"
    summary = "Sample the exact posterior at points of a study"

    sampler: str = option(
        "order-parameter",
        "Sampler: order-parameter, collapsed, weights, or that of a plugin.",
        metavar="NAME",
    )

    def run_name(self, point: Point) -> str:
        """Name of the run at a point."""
        return f"{self.name}/{self.sampler}/{point}"

    def run_settings(self) -> dict[str, Any]:
        """Settings of a run that decide on its draws."""
        return {"sampler": self.sampler}

    def chains_of(self, study: StoredStudy, point: Point) -> tuple[Any, ...]:
        """Return the function that builds the chains of a point, and its arguments."""
        build = needs_sampling("pathkernel_sampling.chains.ensemble").chains_at
        return build, study, point, self.sampler, self.thin

    def finish(self, run: Any, chains: Any) -> None:
        """Write a SampleRun with its log evidence."""
        evidence = needs_sampling("pathkernel_sampling.chains.evidence")
        estimate = evidence.UNKNOWN
        if chains.keeps_positions:
            positions = run.read("unconstrained_posterior/position")
            log_densities = run.read("sample_stats/lp")
            seed = chains.point.point.seed
            estimate = evidence.log_evidence(chains.model, positions, log_densities, seed)
        run.finish(estimate, {})

    def compute(self, study: StoredStudy, report: Report) -> Iterable[tuple[str, xr.Dataset]]:
        """Draw at the selected points; blocks of draws are written as they come."""
        samplers = study.plugins.samplers
        if self.sampler not in samplers:
            raise UnknownNameError(unknown_name("sampler", self.sampler, samplers))
        return super().compute(study, report)

    def views(self, study: StoredStudy) -> Iterator[Table | Chart | str]:
        """Yield U, scores and evidence of every run against the theory's, warnings, and charts."""
        views = needs_sampling("pathkernel_sampling.draws.views")
        yield from views.sample_views(study, self._runs(study))

    def _runs(self, study: StoredStudy) -> list[str]:
        """Names of the runs to show: those of one sampler where the options select points."""
        from pathkernel_datasets.results.draws import runs

        names = runs(study)
        samplers = dict.fromkeys([self.sampler, *(name.split("/")[1] for name in names)])
        return [
            name
            for sampler in ([self.sampler] if self.widths else samplers)
            for point in self.points_to_show(study)
            if (name := f"{self.name}/{sampler}/{point}") in names
        ]


@dataclass(frozen=True)
class LearnedAttention(Draws):
    """Draw the attention of a study's heads from their posterior, with that of all weights.

    NAME is the folder of a study whose task gives tokens; draws go into NAME/attention.zarr. As
    many heads as the study has are learned, of the form chosen; those that it gives are left out.
    In each draw the heads of a layer are ordered by their scores, since heads may be exchanged.
    Parallel tempering weighs the modes of the posterior; --warm-up is then the sweeps of a stage.
    The same command resumes a run that was stopped.
    """

    name = "attention"
    command = "attend"
    summary = "Learn attention at points of a study: sample it with all weights"

    sampler: str = option(
        "order-parameter",
        "What is drawn besides attention. order-parameter, collapsed, weights: exact at every "
        "width; marginal: nothing, at leading order in 1/N, and marginal-next-order at the next.",
        choices=("order-parameter", "collapsed", "weights", "marginal", "marginal-next-order"),
    )
    method: str | None = option(
        None,
        "Sampling method. tempering: between a fitted mixture and the posterior, which weighs its "
        "modes; nuts: single chains.  [default: tempering with order-parameter, otherwise nuts]",
        type=str,
        choices=("tempering", "nuts"),
    )
    form: str = option(
        "key-vectors",
        "Form of a head. key-vectors: one vector; queries-keys: products of a rank; products: a "
        "matrix.",
        choices=("key-vectors", "queries-keys", "products"),
    )
    rank: int = option(1, "Rank of the products of queries and keys.", minimum=1)
    variance: float = option(1.0, "Prior variance of the entries of a head.", above=0.0)
    warm_up: int = option(
        500, "Sweeps of a stage by tempering, steps of adaptation by nuts.", minimum=20
    )
    thin: int = option(
        10, "Draws from one evaluation of the predictor, and of modes, to the next.", minimum=1
    )
    starts: int = option(
        8,
        "Starts of ascents to maxima, to tell modes that the draws missed; 0 for none.",
        minimum=0,
        maximum=1000,
    )
    random_heads: int = option(
        10, "Draws of heads from the prior, to compare with.", minimum=2, maximum=1000
    )

    @property
    def is_tempered(self) -> bool:
        """Whether draws are made by tempering.

        Raises
        ------
        ValueError
            If tempering is asked for with another sampler than order-parameter.
        """
        exact = self.sampler == LearnedAttention.sampler
        if self.method == "tempering" and not exact:
            raise ValueError(
                f"method tempering draws order parameters besides attention, but sampler is "
                f"{self.sampler}: take method nuts, or sampler order-parameter"
            )
        return exact and self.method != "nuts"

    def run_name(self, point: Point) -> str:
        """Name of the run at a point."""
        by_nuts = not self.is_tempered and self.sampler == LearnedAttention.sampler
        return f"{self.name}/{self.form}-by-{self.sampler}{'-nuts' * by_nuts}/{point}"

    def run_settings(self) -> dict[str, Any]:
        """Settings of a run that decide on its draws."""
        names = ("sampler", "form", "rank", "variance", "random_heads", "starts")
        settings = {name: getattr(self, name) for name in names}
        return settings | {"method": "tempering" if self.is_tempered else "nuts"}

    def chains_of(self, study: StoredStudy, point: Point) -> tuple[Any, ...]:
        """Return the function that builds the chains of a point, and its arguments."""
        build = needs_sampling("pathkernel_sampling.attention.tempered").chains_of
        return build, study, point, self

    def finish(self, run: Any, chains: Any) -> None:
        """Write a SampleRun with mean attention, its modes, and what random heads are worth."""
        attend = needs_sampling("pathkernel_sampling.attention.attend")
        evidence = needs_sampling("pathkernel_sampling.chains.evidence")
        positions = run.read("unconstrained_posterior/position")
        groups = {
            "attention": attend.mean_attention(chains, positions),
            "random_heads": attend.random_heads(chains, self.random_heads),
        }
        estimate = evidence.UNKNOWN  # exchanges of heads make several modes
        if self.is_tempered:
            values = needs_sampling("pathkernel_sampling.attention.stage_values")
            groups["tempering"] = values.tempering(run, chains)
            estimate = values.log_evidence(groups["tempering"])
        mode_values = needs_sampling("pathkernel_sampling.attention.mode_values")
        groups |= mode_values.modes_and_maxima(run, chains, estimate.log_evidence, self.starts)
        run.finish(estimate, groups)

    def views(self, study: StoredStudy) -> Iterator[Table | Chart | str]:
        """Yield what learned heads are worth beside given and random ones, and what they see."""
        from pathkernel_datasets.results.draws import runs

        views = needs_sampling("pathkernel_sampling.attention.views")
        points = tuple(str(point) for point in self.points_to_show(study))
        names = [name for name in runs(study, self.name) if name.endswith(points)]
        yield from views.attention_views(study, names)

    def joint_views(self, study: StoredStudy) -> Iterator[Table | Chart | str]:
        """Yield masses of modes along the parameters in which points of the study differ."""
        views = needs_sampling("pathkernel_sampling.attention.mass_views")
        # points that were just computed stand beside those of every seed and temperature
        shown = (None, None) if self.widths else (self.seed, self.temperature)
        yield from views.mass_views(study, self.name, *shown)


@dataclass(frozen=True)
class NextOrder(_AtPoints):
    """Compute the next order in 1/N of order parameter, log evidence and predictor.

    NAME is the folder of a study; the result goes into NAME/corrections.zarr. Widths must be at
    least as large as the order parameter. The time grows at least with the fourth power of the
    number of paths.
    """

    name = "corrections"
    command = "correct"
    summary = "Compute the next order in 1/N at points of a study"

    jobs: int = option(1, "Number of processes.", minimum=1)

    def compute(self, study: StoredStudy, report: Report) -> Iterator[tuple[str, xr.Dataset]]:
        """Yield the next order at the selected points that the study lacks."""
        correct = needs_sampling("pathkernel_sampling.corrections.correct")
        points = self.points(study)
        with study.mapping(self.jobs, self.scheduler) as map_parts:
            missing = [point for point in points if not study.holds(f"{self.name}/{point}")]
            corrections = map_parts(partial(correct.compute_correction, study), missing)
            for count, point in enumerate(missing):
                report(Progress(count, len(missing), point.description))
                yield str(point), next(corrections)

    def views(self, study: StoredStudy) -> Iterator[Table]:
        """Yield log evidence, entries of U and predictor, at the saddle and to next order."""
        views = needs_sampling("pathkernel_sampling.corrections.views")
        points = [
            point for point in self.points_to_show(study) if study.holds(f"{self.name}/{point}")
        ]
        yield from views.correction_views(study, points)
