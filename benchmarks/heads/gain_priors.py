"""Priors of the gains from the theory: does U say how far the gain of a head may go?

``python -m benchmarks.heads.gain_priors`` removes half and three quarters of the heads of the
models of ``benchmarks.heads.models``, and refits the gains of the rest with the prior N(1, S): S =
τ·1 of ``refit_gains``, or a multiple of U, of U∘C̄, or of the inverse of the diagonal of U∘C̄,
where large contributions are held fast. U and the mean kernels C̄ are of the tangent picture. The
multiple has either the mean variance τ, or the largest evidence. It writes a table of losses on
test examples, their paired differences from τ·1 and log evidences. An interrupted run resumes.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.linalg import block_diag
from torch import Tensor

import pathkernel as pk
from benchmarks.heads.models import DRAWS, HEAD_MODELS, Batch, HeadModel, head_model
from benchmarks.heads.tables import RESULTS, paired
from benchmarks.heads.trials import Gained
from benchmarks.measuring import one_thread
from pathkernel_core.system.atomic import replace_file
from pathkernel_core.system.progress import silent
from pathkernel_pruning.heads.loss_form import LossForm
from pathkernel_pruning.live.gains import LiveNetwork

VARIANCE = 0.3
"""Mean variance τ of a gain; the default of ``refit_gains``."""
WIDTH, TEMPERATURE = 10.0, 0.1
"""N and T of the theory, as for its orders in ``benchmarks.heads``."""
QUARTERS = {2: "half", 3: "three quarters"}
"""Quarters of the heads that are removed, and their names."""
PRIORS = ("1", "U", "U∘C̄", "1 / diag U∘C̄")
"""Prior covariances of gains, up to a factor; the first is what others are compared with."""
SCALES = ("mean variance τ", "by evidence")

_STEPS = 2  # linearised steps of a refit, as of ``refit_gains``
_DAMPINGS = (0.0, 10.0, 100.0, 1000.0)  # of a step, in units of the precision of the prior
_ROUNDING = 0.01  # relative rise of the loss that is none
_NUGGET = 1e-3  # share of the identity, which keeps covariances from being singular
_FLOOR = 0.02  # of the mean, added to a diagonal before it is inverted
_MULTIPLES = np.geomspace(0.01, 100, 25)  # of τ, among which the evidence chooses
_PREFIXES = range(8, 65, 8)  # numbers of tokens of a window of a language model
_SYMBOLS = 10  # most frequent symbols, which are its classes for the theory


@dataclass(frozen=True)
class Picture:
    """Order parameter and mean kernels (H, H) of all heads, in the tangent picture of a model."""

    order_parameter: np.ndarray
    mean_kernels: np.ndarray


def tangent_picture(model: HeadModel, batches: Sequence[Batch]) -> Picture:
    """Tangent picture of a model; U is the mean over its outputs, each as a network's only one.

    Layers of several widths make no one network: they are captured one by one, and U is 0 between.
    """
    rows, outputs = _sequence_outputs(model, batches)
    options = {"picture": "tangent", "outputs": outputs}
    try:
        captured = [pk.capture(model.model, rows, **options)]
    except pk.CaptureError:
        numbers = range(1, len(Gained(model).layers) + 1)
        captured = [pk.capture(model.model, rows, layers=[n], **options) for n in numbers]
    parts = [_of_captured(part) for part in captured]
    # each part is scaled to tokens of deviation 1
    sizes = [float(part.deviations[0]) ** 2 for part in captured]
    return Picture(
        block_diag(*(part.order_parameter for part in parts)),
        block_diag(*(size * part.mean_kernels for size, part in zip(sizes, parts))),
    )


def _of_captured(captured: pk.Captured) -> Picture:
    captured = captured.scale_tokens(1)
    order_parameters = []
    for column in captured.labels.reshape(len(captured.labels), -1).T:
        problem = pk.Problem(captured.xi, column)
        network = pk.Network(captured.heads, WIDTH)
        solution = pk.minimise_action(problem, network, temperature=TEMPERATURE)
        order_parameters.append(np.asarray(solution.order_parameter))
    return Picture(np.mean(order_parameters, axis=0), np.asarray(problem.mean_kernels))


def _sequence_outputs(
    model: HeadModel, batches: Sequence[Batch]
) -> tuple[list[Batch], Callable[[Batch], tuple[Tensor, Tensor]]]:
    """Batches, and a function that gives a row of outputs and targets for each sequence.

    The sequences of a language model are the prefixes of its windows, and its outputs the logits of
    frequent symbols after them.
    """
    if model.theory is not None:
        return list(batches), model.outputs
    labels = torch.cat([batch["labels"].flatten() for batch in batches])
    common = labels.bincount().topk(_SYMBOLS).indices
    frequencies = (labels[:, None] == common).float().mean(dim=0)
    prefixes = [
        {"input_ids": batch["input_ids"][:, :size], "labels": batch["labels"][:, size - 1]}
        for batch in batches
        for size in _PREFIXES
    ]

    def outputs(batch: Batch) -> tuple[Tensor, Tensor]:
        logits = model.model(input_ids=batch["input_ids"], use_cache=False).logits[:, -1]
        is_symbol = batch["labels"][:, None] == common
        return logits[:, common], is_symbol.float() - frequencies

    return prefixes, outputs


def covariances(picture: Picture) -> dict[str, np.ndarray]:
    """Prior covariances (H, H) of the gains by name, of any scale; those of :data:`PRIORS`."""
    contributions = picture.order_parameter * picture.mean_kernels
    sizes = np.diag(contributions)
    inverse = np.diag(1 / (sizes + _FLOOR * sizes.mean()))
    values = (np.eye(len(sizes)), picture.order_parameter, contributions, inverse)
    regular = {}
    for name, value in zip(PRIORS, values):
        mean = np.trace(value) / len(value)
        regular[name] = (1 - _NUGGET) * value / mean + _NUGGET * np.eye(len(value))
    return regular


def scale_to(covariance: np.ndarray, left: np.ndarray, variance: float) -> np.ndarray:
    """Covariance (K, K) of the K heads that are left, with this mean variance."""
    part = covariance[np.ix_(left, left)]
    return part * (variance * len(part) / np.trace(part))


def log_evidence(form: LossForm, left: np.ndarray, covariance: np.ndarray) -> float:
    """ln of the evidence of the linearised model, less that of gains which are 1.

    With w = P/T, A = w G and F = w g of the heads that are left, about gains of 1, it is
    ½ Fᵀ(1 + S A)^{-1} S F − ½ ln det(1 + S A).

    Parameters
    ----------
    form : LossForm
        About gains that are 1, and 0 of the heads that are off.
    left : array of bool, shape (H,)
    covariance : array, shape (K, K)
        Prior covariance S of the heads that are left.
    """
    weight = form.examples / form.temperature
    force = weight * form.gradient[left]
    matrix = np.eye(len(force)) + covariance @ (weight * form.form[np.ix_(left, left)])
    gain = force @ np.linalg.solve(matrix, covariance @ force)
    return float(gain - np.linalg.slogdet(matrix)[1]) / 2


def refit(
    network: LiveNetwork, form: LossForm, left: np.ndarray, covariance: np.ndarray
) -> np.ndarray:
    """Gains (H,) of largest posterior density, in linearised steps from those of a form.

    With a multiple of the identity these are the gains of ``refit_gains``. A step that makes the
    density smaller is shortened, or left out.
    """
    precision = np.linalg.inv(covariance)

    def cost(loss: float, gains: np.ndarray) -> float:
        away = gains[left] - 1
        return form.examples / form.temperature * loss + away @ precision @ away / 2

    gains = form.gains
    for step in range(_STEPS):
        form = form if step == 0 else network.form(gains)
        weight = form.examples / form.temperature
        curvature = weight * form.form[np.ix_(left, left)] + precision
        force = weight * form.gradient[left] + precision @ (gains[left] - 1)
        for damping in _DAMPINGS:
            moved = gains.copy()
            damped = curvature + damping * np.diag(np.diag(precision))
            moved[left] -= np.linalg.solve(damped, force)
            if cost(network.loss(moved), moved) < cost((1 + _ROUNDING) * form.loss, gains):
                gains = moved
                break
    return gains


def measure_draw(model: HeadModel, draw: int) -> dict[str, Any]:
    """Losses (count, prior, scale, P) of test examples, and log evidences (count, prior, scale).

    Besides those with gains of 1, ``plain`` (count, P), and the variances that the evidence chose.
    """
    gained, batches = Gained(model), model.batches("validation", draw, model.sizes[0])
    test, priors = model.batches("test"), covariances(tangent_picture(model, batches))
    rows: dict[str, list] = {"plain": [], "loss": [], "evidence": [], "variance": []}
    counts = [len(gained.heads) * quarter // 4 for quarter in QUARTERS]
    for count in counts:
        choice = pk.choose_heads(
            model.model, batches, model.outputs, count, loss=model.loss, report=silent
        )
        left = np.ones(len(gained.heads), dtype=bool)
        left[[gained.heads.index(head) for head in choice.heads]] = False
        network = LiveNetwork(model.model, batches, model.outputs, model.loss)
        form = network.form(left.astype(float))
        measured = [_of_prior(gained, network, form, left, prior) for prior in priors.values()]
        rows["plain"].append(gained.measure(test, form.gains)["loss"])
        rows["loss"].append(
            [[gained.measure(test, gains)["loss"] for gains in each] for each, *_ in measured]
        )
        rows["evidence"].append([evidence for _, evidence, _ in measured])
        rows["variance"].append([variance for *_, variance in measured])
    return {"counts": counts, "heads": len(gained.heads)} | rows


def _of_prior(
    gained: Gained,
    network: LiveNetwork,
    form: LossForm,
    left: np.ndarray,
    covariance: np.ndarray,
) -> tuple[list[np.ndarray], list[float], list[float]]:
    """Gains, log evidence and mean variance at every scale of a prior covariance."""

    def evidence(variance: float) -> float:
        return log_evidence(form, left, scale_to(covariance, left, variance))

    variances = [VARIANCE, max(VARIANCE * _MULTIPLES, key=evidence)]
    priors = [scale_to(covariance, left, variance) for variance in variances]
    gains = [refit(network, form, left, prior) for prior in priors]
    return gains, [evidence(variance) for variance in variances], variances


def _read(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Arrays of a model, its draws first."""
    draws = []
    for file in sorted(folder.glob(f"{name}-draw*.npz")):
        with np.load(file) as arrays:
            draws.append({key: arrays[key] for key in arrays.files})
    return {key: np.array([draw[key] for draw in draws]) for key in draws[0]}


def tabulate(folder: Path, models: Sequence[str]) -> pd.DataFrame:
    """Rows of every model, number of heads off, prior and scale, over all draws and examples."""
    return pd.DataFrame([row for name in models for row in _rows(name, _read(folder, name))])


def _rows(name: str, measured: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    for c, count in enumerate(measured["counts"][0]):
        for s, scale in enumerate(SCALES):
            for p, prior in enumerate(PRIORS):
                losses, evidences = measured["loss"][:, c, :, s], measured["evidence"][:, c, :, s]
                difference, error = paired(losses[:, p].astype(float) - losses[:, 0])
                yield {
                    "model": name,
                    "draws": len(losses),
                    "heads": int(measured["heads"][0]),
                    "off": int(count),
                    "prior": prior,
                    "scale": scale,
                    "variance": float(np.exp(np.log(measured["variance"][:, c, p, s]).mean())),
                    "plain": float(measured["plain"][:, c].mean(dtype=float)),
                    "loss": float(losses[:, p].mean(dtype=float)),
                    "difference": difference,
                    "error": error,
                    "evidence": float((evidences[:, p] - evidences[:, 0]).mean()),
                }


def write_report(frame: pd.DataFrame) -> str:
    """Markdown: on how many models every prior is better and worse, then the table."""
    lines = ["# Priors of the gains from the theory", "", _ABOUT, ""]
    lines.append("| prior | scale | off | better | worse | mean relative difference | evidence |")
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    others = frame[frame["prior"] != PRIORS[0]].copy()
    others["quarters"] = np.ceil(4 * others["off"] / others["heads"]).astype(int)
    for (prior, scale, quarters), rows in others.groupby(
        ["prior", "scale", "quarters"], sort=False
    ):
        better = int((rows["difference"] < -2 * rows["error"]).sum())
        worse = int((rows["difference"] > 2 * rows["error"]).sum())
        relative = (rows["difference"] / (rows["loss"] - rows["difference"])).mean()
        lines.append(
            f"| {prior} | {scale} | {QUARTERS[quarters]} | {better} of {len(rows)} | {worse} | "
            f"{relative:+.1%} | {rows['evidence'].mean():+.1f} |"
        )
    lines += ["", "| model | off | scale | prior | variance | loss | difference | evidence |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in frame.itertuples():
        lines.append(
            f"| {row.model} | {row.off} of {row.heads} | {row.scale} | {row.prior} | "
            f"{row.variance:.2f} | {row.loss:.4f} | {row.difference:+.4f} ± {row.error:.4f} | "
            f"{row.evidence:+.2f} |"
        )
    return "\n".join(lines) + "\n"


_ABOUT = (
    "Loss on test examples with heads off that `choose_heads` chose, after a refit of the other "
    "gains with the prior N(1, S), S a multiple of the matrix named; its paired difference from "
    "τ·1 at the same scale (standard error over draws and examples; better and worse are by two of "
    "them), and the difference of the log evidences of the linearised model, mean over draws. "
    "U and C̄ are of the tangent picture at N = 10, T = 0.1. For language models the theory sees "
    "prefixes of the windows, and as classes the ten most frequent symbols after them; for "
    "omniglot-2-8, whose layers have two widths, each layer alone."
)


def main() -> None:
    """Measure what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--models", nargs="+", choices=HEAD_MODELS, default=list(HEAD_MODELS))
    add("--cache", type=Path, help="folder of trained weights")
    add("--out", type=Path, default=Path("gain-priors"), help="folder of all measurements")
    add("--results", type=Path, default=RESULTS, help="folder written")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with one_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*examples are few.*")
        for name in options.models:
            files = [options.out / f"{name}-draw{draw + 1}.npz" for draw in range(DRAWS)]
            missing = [draw for draw, file in enumerate(files) if not file.exists()]
            model = head_model(name, options.cache) if missing else None
            for draw in missing:
                started = time.process_time()
                measured = measure_draw(model, draw)
                with replace_file(files[draw]) as partial, open(partial, "wb") as stream:
                    np.savez_compressed(stream, **measured)
                seconds = time.process_time() - started
                print(f"{files[draw]}: {seconds:.0f} CPU s", file=sys.stderr, flush=True)
    frame = tabulate(options.out, options.models)
    options.results.mkdir(parents=True, exist_ok=True)
    frame.to_csv(options.results / "gain_priors.csv", index=False, float_format="%.5g")
    report = write_report(frame)
    (options.results / "gain_priors.md").write_text(report, encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
