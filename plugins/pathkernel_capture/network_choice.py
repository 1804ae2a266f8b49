"""Choose width, temperature and scale for a captured model from its training examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from pathkernel_capture.captured import Captured, check_captured
from pathkernel_core.action.continuation import minimise_from
from pathkernel_core.action.minimise import gp_limit
from pathkernel_core.action.solution import Solution
from pathkernel_core.arrays.scalars import positive
from pathkernel_core.energy.likelihoods import likelihood_of
from pathkernel_core.energy.problem import Problem
from pathkernel_core.paths.network import Network, Skips
from pathkernel_core.prediction.cross_validation import leave_one_out
from pathkernel_core.system.progress import Progress, Report
from pathkernel_core.system.text import number
from pathkernel_datasets.run.progress_bar import supervised
from pathkernel_models.arguments import check_report

WIDTHS = (10.0, 30.0, 100.0, 300.0, 1000.0)
TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0)
SCALES = (0.3, 1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True, eq=False)
class NetworkChoice:
    """The best network of the theory for a captured model, and all that were tried.

    Attributes
    ----------
    width, temperature, scale : float
        Width N, temperature T (NaN of classes, which have none), and scale of the tokens.
    train : Captured
        Training examples at that scale; test sets take
        ``test.scale_tokens(choice.scale, like=train)``.
    solution : Solution
        Minimum of the action there.
    table : pandas.DataFrame
        A row for every scale and temperature in the Gaussian process limit, with infinite
        ``width``, and for every width and temperature at the chosen scale: the leave-one-out
        ``squared_error`` and the ``log_evidence`` in nats. Failed minimisations are left out, and
        of classes temperature and error: the curve along the scale is that of the prior variance.
    edges : tuple of str
        Names among ``width``, ``temperature`` and ``scale`` whose smallest or largest value was
        chosen: a wider grid may be better. A width below twice the smallest possible is no lower
        edge.
    """

    width: float
    temperature: float
    scale: float
    train: Captured
    solution: Solution
    table: pd.DataFrame
    edges: tuple[str, ...]


def choose_network(
    train: Captured,
    *,
    widths: Sequence[float] = WIDTHS,
    temperatures: Sequence[float] | None = None,
    scales: Sequence[float] = SCALES,
    skips: Skips = None,
    likelihood: str = "squared",
    report: Report | None = None,
) -> NetworkChoice:
    """Choose width, temperature and scale of tokens from captured training examples.

    The log evidence decides: first on the scale, with its best temperature, in the Gaussian process
    limit, which needs no minimisation; then, at that scale, on width and temperature. The
    leave-one-out error is no guide to the width: it holds U fixed, which depends on the label left
    out.

    Parameters
    ----------
    train : Captured
        Training examples with labels, (P,) or (P, C).
    widths, temperatures, scales : sequence of float
        Values to try. Widths below the number of paths times outputs, where the evidence is
        undefined, are skipped. Temperatures are by default .01, .03, .1, .3 and 1; likelihoods of
        classes have none.
    skips : float or sequence of them, optional
        Strengths of skip connections, for examples captured with skips.
    likelihood : {"squared", "logistic", "softmax"}
        What labels are, see :class:`pathkernel_core.Problem`. Of classes the scale of the tokens
        stands for the prior variance of the outputs.
    report : callable, optional
        Called with a Progress before every minimisation; by default a bar shows them.

    Notes
    -----
    The evidence often falls as the width grows, so that the narrowest width of the grid is chosen:
    look at ``edges`` and ``table`` before you read anything into it. If rows are missing,
    minimisations failed; leave out the largest scales or the lowest temperatures.

    Raises
    ------
    ValueError
        If there are no labels, a number is not positive, or no width is as large as the number of
        paths times outputs.
    """
    check_report(report)
    check_captured(train, "train")
    if train.labels is None:
        raise ValueError("train needs labels; give batches of pairs (inputs, labels) to capture")
    named = likelihood_of(likelihood)
    if temperatures is None:
        temperatures = TEMPERATURES if named.is_gaussian else ()
    elif not named.is_gaussian:
        named.temperature(temperatures[0] if temperatures else None)  # raises
    grid = {
        name: sorted(positive(f"each of {name}s", value) for value in values)
        for name, values in (("scale", scales), ("width", widths), ("temperature", temperatures))
    }
    if not named.is_gaussian:
        grid["temperature"] = [math.nan]
    if not all(grid.values()):
        raise ValueError("widths, temperatures and scales must each hold at least one value")
    if train.skips and skips is None:
        raise ValueError("train was captured with skips; give skips=, their strengths")
    outputs = named.targets(train.labels, "train.labels", train.xi, len(train.labels)).shape[1]
    paths = train.xi.shape[1]
    smallest = paths * outputs  # size of the order parameter
    grid["width"] = [width for width in grid["width"] if width >= smallest]
    if not grid["width"]:
        listed = ", ".join(map(str, widths))
        raise ValueError(
            f"the log evidence is defined at none of the widths {listed}: with {paths} paths and "
            f"{outputs} outputs give widths of at least {smallest}"
        )
    rows: list[dict[str, float]] = []
    total = len(grid["temperature"]) * (len(grid["scale"]) + len(grid["width"]))
    evidence: dict[float, float] = {}
    best: tuple[float, Solution | None] = (-math.inf, None)
    with supervised(report, threads=1) as progress:
        for scale in grid["scale"]:
            scaled = train.scale_tokens(scale)
            problem = Problem(scaled.xi, scaled.labels, likelihood=likelihood)
            network = Network(train.heads, max(grid["width"]), outputs=outputs, skips=skips)
            problem.check_size(network)  # before the limits, which may be smaller
            for temperature in grid["temperature"]:
                at = f"scale {scale:g}, GP limit{_at(temperature)}"
                progress(Progress(len(rows), total, at))
                limit = gp_limit(problem, network, temperature)
                rows.append({"scale": scale, "width": math.inf, **_scores(limit, scaled)})
                # each scale is judged at the temperature that suits it best
                evidence[scale] = max(evidence.get(scale, -math.inf), limit.log_evidence)
        scale = max(evidence, key=evidence.__getitem__)
        scaled = train.scale_tokens(scale)
        problem = Problem(scaled.xi, scaled.labels, likelihood=likelihood)
        for width in grid["width"]:
            network = Network(train.heads, width, outputs=outputs, skips=skips)
            start = None
            # from hot to cold, where each minimum lies near the one before
            for temperature in reversed(grid["temperature"]):
                progress(Progress(len(rows), total, f"N = {number(width)}{_at(temperature)}"))
                start = minimise_from(problem, network, temperature, start)
                if start is None or not start.status.ok:
                    start = None
                    continue
                rows.append({"scale": scale, "width": width, **_scores(start, scaled)})
                if start.log_evidence > best[0]:
                    best = start.log_evidence, start
        progress(Progress(total, total, "complete"))
    _, solution = best
    if solution is None:
        remedy = "raise the temperatures" if named.is_gaussian else "lower the scales"
        raise ValueError(f"no minimisation converged; {remedy}")
    chosen = {
        "scale": scale,
        "width": solution.network.width,
        "temperature": solution.temperature,
    }
    ends = {name: {values[0], values[-1]} for name, values in grid.items() if len(values) > 1}
    if "width" in ends and grid["width"][0] < 2 * smallest:
        ends["width"] = {grid["width"][-1]}
    edges = tuple(name for name, values in ends.items() if chosen[name] in values)
    return NetworkChoice(
        train=scaled, solution=solution, table=pd.DataFrame(rows), edges=edges, **chosen
    )


def _at(temperature: float) -> str:
    return "" if math.isnan(temperature) else f", T = {temperature:g}"


def _scores(solution: Solution, train: Captured) -> dict[str, float]:
    if not solution.problem.likelihood.is_gaussian:
        return {"log_evidence": solution.log_evidence}
    return {
        "temperature": solution.temperature,
        "squared_error": leave_one_out(solution, train.xi, train.labels).squared_error,
        "log_evidence": solution.log_evidence,
    }
