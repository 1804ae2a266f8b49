"""Coverage of 95 % intervals of differences between orders of heads.

``python -m benchmarks.heads.coverage [NAME]``

First, of the difference in accuracy of two networks on 50 test examples, exactly, by the shares of
examples that one of them alone has right. Then, with a study that has pruning results, of the
difference between the rank correlations of two scores with the losses by single heads: test
examples are drawn from its own, whose value counts as the true one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import numpy as np
from scipy import stats

from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_pruning.heads.correlation import Bootstrap, interval, spearman
from pathkernel_pruning.heads.head_game import HeadGame
from pathkernel_trained.evaluator import PathEvaluator, PathOutputs

EXAMPLES, RESAMPLES, REPEATS = 50, 2000, 300
SHARES = ((0.01, 0), (0.025, 0), (0.05, 0), (0.1, 0), (0.2, 0.1), (0.02, 0.02), (0.05, 0.05))
_ROUNDING = 1e-12


def main() -> None:
    """Print the tables in Markdown."""
    print(f"accuracies on {EXAMPLES} examples")
    print("| first alone right | second alone | bootstrap | Student's t | BCa | Agresti-Min |")
    bootstrap = Bootstrap(RESAMPLES, 0)
    for shares in SHARES:
        cells = (f"{value:.2f}" for value in paired_coverage(bootstrap, *shares))
        print(f"| {' | '.join((*(f'{100 * share:g} %' for share in shares), *cells))} |")
    for path in sys.argv[1:]:
        print(f"{path}: rank correlations, differences from the first score")
        print("| test examples | mean over scores | lowest |")
        for examples, coverage in correlation_coverage(StoredStudy(path)):
            print(f"| {examples} | {coverage.mean():.2f} | {coverage.min():.2f} |")


def paired_coverage(bootstrap: Bootstrap, first: float, second: float) -> np.ndarray:
    """Chance that each interval contains the difference of two accuracies."""
    coverage = np.zeros(4)
    for more in range(EXAMPLES + 1):
        for fewer in range(EXAMPLES + 1 - more):
            counts = more, fewer, EXAMPLES - more - fewer
            chance = stats.multinomial.pmf(counts, EXAMPLES, (first, second, 1 - first - second))
            if chance > 1e-5:
                ends = np.array(_intervals(bootstrap, np.repeat([1.0, -1.0, 0.0], counts)))
                coverage += chance * _contain(ends, first - second)
    return coverage


def _intervals(bootstrap: Bootstrap, differences: np.ndarray) -> list[tuple[float, float]]:
    """By the project, Student's t, BCa, and Agresti and Min's half an example in each cell."""
    mean, error = differences.mean(), stats.sem(differences)
    adjusted, count = differences.sum() / (EXAMPLES + 2), EXAMPLES + 2
    variance = (np.sum(differences**2) + 1) / count - adjusted**2
    corrected = (mean, mean)
    if error:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn = stats.bootstrap((differences,), np.mean, n_resamples=RESAMPLES, rng=0)
        corrected = (drawn.confidence_interval.low, drawn.confidence_interval.high)
    by_t, by_normal = stats.t.ppf(0.975, EXAMPLES - 1), stats.norm.ppf(0.975)
    return [
        tuple(interval(bootstrap.means(differences[None]))[0]),
        (mean - by_t * error, mean + by_t * error),
        corrected,
        tuple(adjusted + np.array([-1, 1]) * by_normal * np.sqrt(variance / count)),
    ]


def correlation_coverage(study: StoredStudy) -> Iterator[tuple[int, np.ndarray]]:
    """Numbers of examples, and the coverage of each score's difference from the first."""
    result = study.result("pruning").to_dataset().isel(draw=0).load()
    heads, test = tuple(result.attrs["heads_per_layer"]), str(result["test_set"].values[0])
    outputs = result.sel(episode_set=test)
    values, labels = outputs["path_output"].values, outputs["episode_label"].values
    evaluator = PathEvaluator({test: PathOutputs(heads, values, labels)})
    lost = HeadGame(evaluator, test).lost_without(test)[0]
    scores = result["score"].transpose("order", "head").values
    scores = scores[~np.isnan(scores).all(axis=-1)]
    correlation = spearman(scores, lost.mean(axis=-1))
    true, generator = correlation[1:] - correlation[0], np.random.default_rng(1)
    for examples in (50, 200, 1000):
        contained = []
        for seed in range(REPEATS):
            sample = lost[:, generator.integers(lost.shape[1], size=examples)]
            resampled = spearman(scores[:, None], Bootstrap(RESAMPLES, seed).means(sample).T)
            contained.append(_contain(interval(resampled[1:] - resampled[0]), true))
        yield examples, np.mean(contained, axis=0)


def _contain(ends: np.ndarray, value: np.ndarray | float) -> np.ndarray:
    return (ends[:, 0] - _ROUNDING <= value) & (value <= ends[:, 1] + _ROUNDING)


if __name__ == "__main__":
    main()
