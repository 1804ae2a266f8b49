"""Remakes the documentation's figures and numbers, and lists those that changed.

    python docs/remake.py                  # all: hours, mostly for studies of one-shot images
    python docs/remake.py markov temper    # those whose names start with markov or temper
    python docs/remake.py --folder DIR     # folder of the studies, to resume with later

A page has a number or a table between two comments, `<!-- made: NAME -->` and `<!-- end -->`. It is
replaced there, and changes are printed. Pictures go to `docs/images`. Nothing
is trained: heads are those of the trained networks that the project ships. Not remade are the
times and other measurements of `benchmarks/`, the results of `examples/minilm.py`, and numbers in
sentences without such comments.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the benchmarks are no package of ours

from benchmarks.classes.losses import LOSSES
from benchmarks.classes.samples import SAMPLES
from benchmarks.studies.choices import choice_rows
from pathkernel_core.system.text import number
from pathkernel_datasets.folder.reading import open_study
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_datasets.selection.finite_width_gain import finite_width_gain
from pathkernel_datasets.selection.selection import Selection
from pathkernel_phases.learning import stored_learning_curves
from pathkernel_trained.bundled import bundled_digests, heads_path
from pathkernel_trained.path_network import read_paths

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE = re.compile(r"(<!-- made: ([\w-]+) -->)(.*?)(<!-- end -->)", re.DOTALL)

MARKOV = "hidden-markov"
VARIANTS = {  # folder of a study: options
    MARKOV: (),
    "first-token": ("--readout", "first"),
    "strong-noise": ("--variant", "strong-noise"),
    "strong-noise-uniform": ("--variant", "strong-noise-uniform"),
}
PUBLISHED = {  # by the published code on its own draw of the data, at the widths and in the limit
    "accuracy": ("0.964", "0.961", "0.945", "0.911", "0.855", "0.840", "0.834", "0.826"),
    "action S/N": ("8.420", "8.599", "8.294", "7.853", "7.373", "7.244", "7.133", ""),
    "strong noise, random head": ("0.945", "", "", "", "", "", "0.774", "0.764"),
    "strong noise, uniform head": (
        "0.957",
        "0.955",
        "0.954",
        "0.925",
        "0.881",
        "0.862",
        "0.857",
        "0.843",
    ),
}
NETWORKS = {  # bundled network: options of its study
    "2-4-512-128": ("--seed", "0-4"),
    "2-4-512-128-seed1": ("--seed", "0-4", "--widths", "10,100"),
    "2-4-512-128-seed2": ("--seed", "0-4", "--widths", "10,100"),
    "3-3-512-170": ("--seed", "0-2", "--widths", "10,100,10000"),
    "3-3-512-170-seed1": ("--seed", "0-2", "--widths", "10,100"),
    "3-3-512-170-seed2": ("--seed", "0-2", "--widths", "10,100"),
    "2-8-512-64": ("--seed", "0-2", "--widths", "10,100,10000"),
    "2-8-512-64-seed1": ("--seed", "0-2", "--widths", "10,100"),
    "2-8-512-64-seed2": ("--seed", "0-2", "--widths", "10,100"),
}


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command and return its standard output."""
    print("$", *command, flush=True)
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, cwd=cwd).stdout


@functools.cache
def pathkernel(*arguments: str) -> str:
    """Run a command of the project, once."""
    return run(sys.executable, "-m", "pathkernel", *arguments)


def markov_folder(folder: str = MARKOV) -> str:
    """Folder of a study of five draws of hidden Markov chains."""
    pathkernel("run", "hidden-markov", "--seed", "0-4", *VARIANTS[folder], "--out", folder)
    return folder


def markov(folder: str = MARKOV) -> xr.Dataset:
    """Dataset of five draws of hidden Markov chains."""
    return open_study(markov_folder(folder)).load()


def images(network: str) -> str:
    """Folder of a study of one-shot images with the heads of a bundled network."""
    options = ("--heads", f"trained:{network}", *NETWORKS[network], "--out", network)
    pathkernel("run", "one-shot-images", *options)
    return network


def fraction(value: float, digits: int = 3) -> str:
    """An accuracy or correlation as it is written."""
    return f"{value:.{digits}f}"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of Markdown, the first of them the heading."""
    heading, *body = (f"| {' | '.join(row)} |" for row in rows)
    line = "|" + " --- |" * (heading.count(" | ") + 1)
    return "\n" + "\n".join((heading, line, *body)) + "\n"


def _median_and_range(values: np.ndarray) -> tuple[float, float, float]:
    """Median and range of some numbers."""
    return float(np.nanmedian(values)), float(np.nanmin(values)), float(np.nanmax(values))


def _accuracies(dataset: xr.Dataset) -> list[tuple[float, float, float]]:
    """Accuracy at every width and in the limit, over the seeds."""
    selection = Selection(dataset)
    finite = selection.point("accuracy").isel(test_set=0).transpose("width", "seed")
    limit = selection.reference("accuracy_gp").isel(test_set=0)
    return [_median_and_range(values) for values in (*finite.values, limit.values)]


def _spread_rows(name: str, spreads: Sequence[tuple[float, float, float]]) -> list[list[str]]:
    names = (name, "ours, lowest", "ours, highest")
    return [[name, *map(fraction, row)] for name, row in zip(names, zip(*spreads))]


def markov_accuracies() -> str:
    """Accuracy of every variant at each width, next to the published code's."""
    datasets = {folder: markov(folder) for folder in VARIANTS}
    dataset = datasets[MARKOV]
    median = Selection(dataset).point("action").median("seed").values
    ours = "ours, median of 5 draws"
    first = "first token, ours, median of 5 draws"
    published = [[f"{name}, published code", *values] for name, values in PUBLISHED.items()]
    spreads = [_accuracies(datasets[folder]) for folder in VARIANTS]
    return table(
        [
            ["N", *map(number, dataset["width"].values), "GP"],
            published[0],
            *_spread_rows(ours, spreads[0]),
            published[1],
            ["ours, median", *(f"{value:.3f}" for value in median), ""],
            *_spread_rows(first, spreads[1]),
            published[2],
            *_spread_rows(ours, spreads[2]),
            published[3],
            *_spread_rows(ours, spreads[3]),
        ]
    )


def first_table() -> str:
    """Table that the first command of a newcomer prints, without its caption."""
    printed = pathkernel("run", "hidden-markov", "--out", "first")
    rows = [line.strip() for line in printed.splitlines()]
    first = next(number for number, row in enumerate(rows) if row.startswith("network "))
    last = next(number for number, row in enumerate(rows) if row.startswith("Accuracy "))
    return "\n```text\n" + "\n".join(rows[first:last]).rstrip() + "\n```\n"


def markov_part(name: str) -> str:
    """Accuracy of a sub-network in the Gaussian process limit."""
    selection = Selection(markov())
    part = selection.sub_networks("accuracy_sub_network").sel(sub_network=name)
    median, lowest, highest = map(fraction, _median_and_range(part.values))
    return f"{median} [{lowest}, {highest}]"


def bundled() -> str:
    """How well the bundled networks were trained."""
    rows = [["network", "best step", "validation", "test"]]
    for name in bundled_digests():
        about = read_paths(heads_path(name)).about
        right = (f"{100 * about[f'{which}_accuracy']:.1f} %" for which in ("validation", "test"))
        rows.append([f"`{name}`", f"{about['step']:,}", *right])
    return table(rows)


def image_gains(network: str) -> str:
    """Accuracy and gain of every width on every test set, with both errors."""
    dataset = finite_width_gain(open_study(images(network)).load())
    sets = [str(name) for name in dataset["test_set"].values]
    rows = [["N", "T", *(heading for name in sets for heading in (name, "gain"))]]
    for width in dataset["width"].values:
        point = dataset.sel(width=width)
        row = [number(width), f"{float(point['temperature']):g}"]
        for name in sets:
            row += _gain(point.sel(test_set=name))
        rows.append(row)
    last = ["GP", f"{float(dataset['temperature_gp']):g}"]
    for name in sets:
        last += [fraction(float(dataset["accuracy_gp"].sel(test_set=name))), ""]
    rows.append(last)
    return table(rows)


def _gain(point: xr.Dataset) -> list[str]:
    names = ("gain", "example_error", "seed_error")
    gain, error, seed_error = (100 * float(point[name]) for name in names)
    return [fraction(float(point["accuracy"])), f"{gain:+.1f} ± {error:.1f} ({seed_error:.1f})"]


def aligned(network: str, variable: str) -> str:
    """Per cent of the labels in the ten largest principal components, range over the seeds."""
    dataset = open_study(images(network)).load()
    overlap = dataset[variable].sel(temperature=0.5)
    if "width" in overlap.dims:
        overlap = overlap.sel(width=10)
    (component,) = set(overlap.dims) - {"seed", "output"}
    percent = 100 * (overlap.isel({component: slice(10)}) ** 2).sum(component).values
    return f"{percent.min():.2g} to {percent.max():.2g} %"


def comparison(network: str) -> xr.Dataset:
    """Agreement of the theory's U with that of the trained network."""
    folder = images(network)
    pathkernel("compare", folder, "--temperature", "0.5")
    return xr.open_zarr(f"{folder}/comparison.zarr", chunks=None).load()


COMPARED = {  # heading: statistic
    "all of U": "correlation",
    "off diag.": "correlation_off_diagonal",
    "off d. ranks": "rank_correlation_off_diagonal",
    "signs by U": "equal_signs_weighted",
    "head scores": "head_scores",
}


def compared(network: str, widths: Sequence[float]) -> str:
    """Agreement of U with that of the trained network at T = 0.5, with p-values."""
    agreement = comparison(network).sel(source="theory", temperature=0.5).isel(seed=0)
    rows = [["N", *COMPARED]]
    for width in widths:
        point = agreement.sel(width=width)
        rows.append([number(width), *(_agreement(point, name) for name in COMPARED.values())])
    return table(rows)


def _agreement(point: xr.Dataset, statistic: str) -> str:
    point = point.sel(statistic=statistic)
    return f"{fraction(float(point['agreement']), 2)} ({fraction(float(point['p_value']))})"


def signs(network: str) -> str:
    """Share of the off-diagonal entries of U at N = 10 that have the trained network's sign."""
    agreement = comparison(network).sel(source="theory", temperature=0.5, width=10).isel(seed=0)
    shares = []
    for statistic in ("equal_signs", "equal_signs_weighted"):
        point = agreement.sel(statistic=statistic)
        share, p_value = (fraction(float(point[name]), 2) for name in ("agreement", "p_value"))
        shares.append(f"{share} (p = {p_value})")
    return f"{shares[0]} of the entries, weighted by their magnitudes {shares[1]}"


def traces(network: str, trained: bool) -> str:
    """Range over the heads of a layer of the trace of U over the paths through one head."""
    if trained:
        matrix, digits = comparison(network)["order_parameter_trained"], 2
    else:
        point = {"seed": 0, "temperature": 0.5, "width": 10}
        matrix, digits = open_study(images(network)).load()["order_parameter"].sel(point), 1
    diagonal = np.diag(matrix.values)
    layers = [
        [diagonal[matrix[f"path_layer_{layer}"].values == head].sum() for head in range(1, 5)]
        for layer in (1, 2)
    ]
    first, second = (" to ".join(fraction(end(of), digits) for end in (min, max)) for of in layers)
    return f"{first} in the first layer, {second} in the second"


def pruning(network: str) -> xr.Dataset:
    """Heads of a bundled network removed in every order."""
    folder = images(network)
    if network == MAIN:
        _draw(folder)
    pathkernel("prune", folder, "--temperature", "0.5", "--widths", "10,100", "--refit")
    dataset = xr.open_zarr(f"{folder}/pruning.zarr", chunks=None).load()
    return dataset.squeeze(("quantity", "draw"))


def pruned(network: str) -> str:
    """Per cent of unseen characters classified correctly as heads are removed in every order."""
    dataset = pruning(network).isel(test_set=0)
    rows = [["heads removed", *map(str, dataset["removed"].values)]]
    curves = [(str(curve["order"].item()), curve.values) for curve in dataset["measured"]]
    for name, values in (*curves, ("best", dataset["best_measured"].values)):
        if not name.endswith(REFITTED):
            rows.append([name, *("" if np.isnan(v) else f"{100 * v:.1f}" for v in values)])
    return table(rows)


def pruned_elsewhere(network: str) -> str:
    """Per cent of Fashion-MNIST classified correctly without 0, 1 and 2 heads, theory's order."""
    curve = pruning(network)["measured"].sel(test_set="fashion-mnist").isel(order=0)
    per_cent = np.round(100 * curve.sel(removed=[0, 1, 2]).values, 1)
    return " → ".join(map(str, per_cent)) + " %"


def four_pruned(network: str) -> str:
    """Per cent of unseen characters classified correctly without four heads."""
    four = pruning(network).isel(test_set=0).sel(removed=4)
    random = 100 * four["random_measured"]
    by_theory, best = four["measured"].isel(order=0), four["best_measured"]
    return (
        f"{100 * float(by_theory):.1f} % by the theory's order, {float(random.mean()):.1f} "
        f"(deviation {float(random.std()):.1f}) at random, {100 * float(best):.1f} at best"
    )


def lost_to_random(network: str) -> str:
    """Points that a network loses by the theory's order and by random ones."""
    lost = _points_lost(network)
    return f"{lost['theory N=10']:.1f} points lost, {lost['random']:.1f} at random"


def orders_compared() -> str:
    """Points lost on unseen characters, mean over all numbers of removals, by order."""
    lost = {network: _points_lost(network) for network in NETWORKS}
    return _by_shape(lost, [name for name in lost[MAIN] if not name.endswith(REFITTED)])


def orders_refitted() -> str:
    """Points lost by the orders that need examples, with refitted gains."""
    lost = {network: _points_lost(network) for network in NETWORKS}
    kinds = ("raw-gradient", "curvature", "renewed-curvature", "ablation", "greedy", "best-of 200")
    return _by_shape(lost, [f"{kind}{REFITTED}" for kind in kinds])


def _by_shape(lost: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> str:
    rows = [["order", *(f"`{shape}`" for shape in SHAPES)]]
    for name in names:
        by_shape = [
            [lost[network][name] for network in _trainings(shape) if name in lost[network]]
            for shape in SHAPES
        ]
        rows.append([name, *(_spread(values, 1) if values else "" for values in by_shape)])
    return table(rows)


def _points_lost(network: str) -> dict[str, float]:
    """Points that one network loses on average of its accuracy without gains, by order."""
    dataset = pruning(network).isel(test_set=0)
    whole = float(dataset["measured"].isel(order=0, removed=0))
    curves = [(str(curve["order"].item()), curve.values) for curve in dataset["measured"]]
    curves.append(("best", dataset["best_measured"].values))
    return {name: float(100 * np.mean(whole - values[1:])) for name, values in curves}


def _trainings(shape: str) -> list[str]:
    return [name for name in NETWORKS if name.startswith(shape)]


def _spread(values: Sequence[float], digits: int, sign: str = "-") -> str:
    """Mean over trainings, and in brackets their values in ascending order."""
    mean, *ascending = (f"{value:{sign}.{digits}f}" for value in (np.mean(values), *sorted(values)))
    return f"{mean} ({', '.join(ascending)})"


def choices(folder: str) -> str:
    """Accuracy by every choice of the temperature, and its loss on the other test sets."""
    dataset = open_study(folder).load()
    first, *further = map(str, dataset["test_set"].values)
    rows = choice_rows(dataset, first)
    for name in further:
        _, best, *losses = choice_rows(dataset, name)[-1]
        rows.append([f"on {name}", best, *losses])
    return table(rows)


def markov_choices() -> str:
    """Choices for the hidden Markov task."""
    folder = "markov-choices"
    temperatures = ("--temperature", "0.001,0.0025,0.005,0.01,0.025,0.05,0.1,0.25,0.5,1")
    pathkernel("run", "hidden-markov", "--seed", "0-9", *temperatures, "--out", folder)
    return choices(folder)


def single_heads(network: str) -> str:
    """Per cent remaining without each head, in ascending order of the theory's score at N = 10."""
    dataset = pruning(network).isel(test_set=0)
    scores = dataset["score"].isel(order=0).values.ravel()
    drops = dataset["lost"].values.ravel()
    intact = float(dataset["measured"].isel(order=0).sel(removed=0))
    remaining = [f"{100 * (intact - drop):.1f}" for drop in drops[np.argsort(scores)]]
    return f"{', '.join(remaining[:-1])} and {remaining[-1]} % of {100 * intact:.1f} %"


def correlations(network: str, width: float) -> str:
    """Correlations of U with that of the trained network."""
    point = comparison(network).sel(source="theory", temperature=0.5, width=width).isel(seed=0)
    values = (float(point["agreement"].sel(statistic=COMPARED[key])) for key in list(COMPARED)[:2])
    return " and ".join(fraction(value, 2) for value in values)


@functools.cache
def _printed(benchmark: str, *options: str) -> dict[str, list[list[str]]]:
    """Rows that a benchmark prints, by the title above them."""
    title, tables = "", {}
    module = f"benchmarks.{benchmark}"
    for line in run(sys.executable, "-m", module, *options, cwd=ROOT).splitlines():
        if line.startswith("|"):
            tables[title].append([cell.strip() for cell in line.strip("|").split("|")])
        else:
            title = line
            tables[title] = []
    return tables


def stored_table(benchmark: str) -> str:
    """First table of the stored results of a benchmark."""
    text = (ROOT / "benchmarks" / "results" / f"{benchmark}.md").read_text(encoding="utf-8")
    rows = next(part for part in text.split("\n\n") if part.startswith("|"))
    return f"\n{rows}\n"


@functools.cache
def engine() -> tuple[Path, list[list[str]]]:
    """Folder of figures of other theories, and the table of comparisons with their papers."""
    if importlib.util.find_spec("deepbays") is None:
        raise SystemExit("the engine needs deepbays: see benchmarks/engine/sources.py")
    figures = Path("engine").resolve()
    ((heading, rows),) = _printed("engine", "--figures", str(figures)).items()
    names = heading.partition(": ")[2].split(", ", 5)[:5]
    return figures, [names, *(row[:5] for row in rows)]  # without the times, which vary


def next_order_table(
    title: str,
    *heading: str,
    benchmark: str = "sampling.corrections",
    options: tuple[str, ...] = (),
) -> str:
    """Table that a benchmark prints under the title that starts with ``title``."""
    printed = _printed(benchmark, *options)
    (rows,) = (rows for name, rows in printed.items() if name.startswith(title))
    return table([heading, *rows])


@functools.cache
def class_samples() -> tuple[Path, list[list[str]]]:
    """Folder of the figure of probabilities against samples, and the table of both."""
    folder = Path("classes").resolve()
    folder.mkdir(exist_ok=True)
    printed = _printed("classes", "samples", str(folder))
    (rows,) = (rows for name, rows in printed.items() if name.startswith("Laplace"))
    return folder, rows


def networks() -> str:
    """Figures of every bundled network."""
    heading = ["network", "paths", "test accuracy", "gain at N = 10: Omniglot", "Fashion-MNIST"]
    heading += ["MNIST", "correlation of U with the trained one", "off the diagonal"]
    rows = [[*heading, "head scores", "rank correlation of scores with the accuracy lost"]]
    for name in NETWORKS:
        gain, agreement, removed = _of_network(name)
        cells = [_gain(gain.sel(test_set=test_set))[1] for test_set in gain["test_set"].values]
        rows.append(
            [
                name,
                str(agreement.sizes["path"]),
                fraction(float(removed["measured"].isel(order=0).sel(removed=0))),
                *cells,
                *(_agreement(agreement, statistic) for statistic in AGREEMENTS),
                fraction(_rank_correlation(removed), 2),
            ]
        )
    return table(rows)


def shapes() -> str:
    """Mean figures over the trainings of every shape, and the cost of removed heads."""
    figures = [[_figures(name) for name in _trainings(shape)] for shape in SHAPES]
    rows = [["", *(f"`{shape}`" for shape in SHAPES)]]
    for name in figures[0][0]:
        digits, sign = 2 if "correlation" in name else 1, "+" if "gain" in name else "-"
        by_shape = [[training[name] for training in trainings] for trainings in figures]
        rows.append([name, *(_spread(values, digits, sign) for values in by_shape)])
    return table(rows)


def _figures(network: str) -> dict[str, float]:
    """Figures of a network by name."""
    gain, agreement, removed = _of_network(network)
    lost, tests = _points_lost(network), gain["test_set"].values
    agreeing = agreement["agreement"].sel(statistic=list(AGREEMENTS)).values
    with_trained = ("U", "U off the diagonal", "head scores")
    lost_by = {
        "by the theory's scores": "theory N=10",
        "at random": "random",
        "by raw gradients": "raw-gradient",
        "the best of 200 sets": "best-of 200",
    }
    figures = {"test accuracy, %": 100 * removed["measured"].isel(order=0).sel(removed=0)}
    figures |= {f"gain, {name}, points": 100 * gain["gain"].sel(test_set=name) for name in tests}
    figures |= {
        f"correlation with the trained network: {label}": value
        for label, value in zip(with_trained, agreeing)
    }
    figures["rank correlation of scores with the accuracy lost"] = _rank_correlation(removed)
    figures |= {
        f"points lost as heads go, {label}": lost[order] for label, order in lost_by.items()
    }
    return {name: float(value) for name, value in figures.items()}


@functools.cache
def _of_network(name: str) -> tuple[xr.Dataset, xr.Dataset, xr.Dataset]:
    """Gains, agreement of U with the trained one, and heads removed on unseen characters."""
    gain = finite_width_gain(open_study(images(name)).load()).sel(width=10)
    agreement = comparison(name).sel(source="theory", temperature=0.5, width=10).isel(seed=0)
    return gain, agreement, pruning(name).isel(test_set=0)


def _rank_correlation(removed: xr.Dataset) -> float:
    """Of the theory's scores with the accuracy that single heads cost."""
    return float(removed["rank_correlation"].isel(order=0))


def drawn(folder: str, figure: str, *options: str) -> Path:
    """A figure of a study, drawn by the command ``plot``."""
    drawings = Path("-".join(["drawn", folder, *options]).replace(",", "-"))
    pathkernel("plot", folder, "--only", "study", "--out", str(drawings), *options)
    return drawings / f"{figure}.png"


def phases() -> Path:
    """Map of hidden Markov chains over prior variance and temperature."""
    grid = ("--variance", ".02,.03,.05,.07,.1,.15,.2,.3,.5,1", "--temperature")
    grid += (".001,.003,.01,.03,.1", "--width", "10")
    pathkernel("run", "hidden-markov", *grid, "--out", "phases")
    pathkernel("phases", "phases")
    return result_figure("phases", "phases/phases_variance_temperature_width_10")


@functools.cache
def learning_curves() -> StoredStudy:
    """Study of hidden Markov chains over numbers of examples, with its learning curves."""
    grid = ("--examples", "26,50,100,200,400,800,1600", "--width", "10,25,50,100,200,400,800")
    grid += ("--seed", "0-4", "--test-examples", "4000")
    pathkernel("run", "hidden-markov", *grid, "--out", "learning")
    pathkernel("learning-curves", "learning")
    return StoredStudy("learning")


def by_script(script: str, *arguments: str) -> None:
    """Run a script of this folder, which draws into the folder of the studies."""
    subprocess.run([sys.executable, str(ROOT / "docs" / script), *arguments], check=True)


@functools.cache
def paths_drawn() -> Path:
    """Folder of the pictures of attention paths and of U."""
    by_script("draw_paths.py", os.getcwd())
    return Path()


@functools.cache
def rooms_drawn() -> Path:
    """Folder of the pictures of the packages and their imports."""
    by_script("draw_rooms.py", "--out", os.getcwd())
    return Path()


def by_benchmark(benchmark: str, part: str, picture: str) -> Path:
    """A picture that a part of a benchmark draws into a folder."""
    command = (sys.executable, "-m", f"benchmarks.{benchmark}", part, os.getcwd())
    subprocess.run(command, check=True, cwd=ROOT)
    return Path(f"{picture}.png")


def report_in_a_browser() -> Path:
    """The top of the report of the first study, by Chromium on PATH."""
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("the picture of the report needs chromium or google-chrome on PATH")
    pathkernel("report", markov_folder())
    page, picture = Path(markov_folder(), "report.html").resolve(), Path("report.png").resolve()
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    settings = ("--window-size=1280,1500", "--virtual-time-budget=20000")
    command = (browser, *options, *settings, f"--screenshot={picture}")
    subprocess.run([*command, page.as_uri()], check=True)
    return picture


def learning_table() -> str:
    """Squared errors, measured and in the average case, at fixed N and P/N, and in the limit."""
    curves = stored_learning_curves(learning_curves()).isel(temperature=0).median("seed")
    rows = [["P", "N = 10", "N = 100", "N = P/4", "limit"]]
    for examples in curves["examples"].values:
        point = curves.sel(examples=examples)
        errors = [point.sel(width=width) for width in (10, 100)]
        widths = point["width"].values
        errors += [point.sel(width=width) for width in widths if 4 * width == examples]
        cells = [_error_pair(error, "") for error in errors]
        row = [f"{examples:,}", *cells, *[""] * (3 - len(cells)), _error_pair(point, "_gp")]
        rows.append(row)
    return table(rows)


def _error_pair(errors: xr.Dataset, suffix: str) -> str:
    names = (f"error{suffix}", f"average_case_error{suffix}")
    return " / ".join(fraction(float(errors[name])) for name in names)


def result_figure(folder: str, figure: str) -> Path:
    """A figure that the command of a result wrote into the folder of the study."""
    return Path(folder, "figures", f"{figure}.png")


def sampled(figure: str) -> Path:
    """A figure of the exact posterior of the hidden Markov task, at all of the paper's widths."""
    folder, widths = "sampled", "10,30,50,100,300,500,1000"
    pathkernel("run", "hidden-markov", "--out", folder)
    pathkernel("correct", folder, "--widths", widths)
    pathkernel("sample", folder, "--widths", widths, "--draws", "4000")
    return result_figure(folder, f"samples/{figure}")


def of_weights(figure: str) -> Path:
    """A figure of U by theory at two widths, of the trained network, and sampled at N = 10."""
    folder = images(MAIN)
    _draw(folder)
    pathkernel("compare", folder, "--temperature", "0.5", "--widths", "10,100")
    return result_figure(folder, f"comparison/{figure}")


def of_deeper(figure: str) -> Path:
    """A figure of U of the deeper network by theory and of the trained weights."""
    comparison(DEEPER)
    return result_figure(images(DEEPER), f"comparison/{figure}")


def _draw(folder: str) -> None:
    """Draw U from the exact posterior at N = 10."""
    options = ("--chains", "2", "--warm-up", "300", "--draws", "200")
    pathkernel("sample", folder, "--widths", "10", "--temperature", "0.5", *options)


def of_pruning(network: str, figure: str) -> Path:
    """A figure of heads removed."""
    pruning(network)
    return result_figure(images(network), f"pruning/{figure}")


REFITTED = " refitted"  # end of the names of orders measured with refitted gains
SHAPES = MAIN, DEEPER, WIDER = "2-4-512-128", "3-3-512-170", "2-8-512-64"
AGREEMENTS = tuple(COMPARED[key] for key in ("all of U", "off diag.", "head scores"))
_OF_ONE_PATH = ("N", "ln p(Y), leading", "ln p(Y), next", "⟨U⟩, leading", "⟨U⟩, next")
_OF_PREDICTOR = ("N", "mean, leading", "mean, next", "variance, leading", "variance, next")
_OF_MARKOV = ("N", "saddle", "next order", "exact", "closed", "two-loop term, nats")
_OF_SKIPS = ("s", "N", "saddle", "next order", "Monte-Carlo error")
PICTURES: dict[str, Callable[[], Path]] = {
    "attention-jump": lambda: by_benchmark("attention.learned", "jump", "attention-jump"),
    "linear-attention": lambda: by_benchmark("attention.linear", "--images", "linear-attention"),
    "class-probabilities": lambda: class_samples()[0] / "class-probabilities.png",
    "attention-paths": lambda: paths_drawn() / "attention-paths.png",
    "order-parameter": lambda: paths_drawn() / "order-parameter.png",
    "rooms": lambda: rooms_drawn() / "rooms.png",
    "core": lambda: rooms_drawn() / "core.png",
    "report": report_in_a_browser,
    "hidden-markov-accuracy": lambda: drawn(markov_folder(), "accuracy"),
    "hidden-markov-kernels": lambda: drawn(markov_folder(), "kernels"),
    "hidden-markov-sampled-accuracy": lambda: sampled("accuracy"),
    "hidden-markov-finite-width": lambda: sampled("finite_width"),
    "phases": phases,
    "learning-curves": lambda: (
        learning_curves() and result_figure("learning", "learning-curves/learning_error")
    ),
    "one-shot-temperature-choice": lambda: drawn(images(MAIN), "temperature_choice"),
    "one-shot-alignment": lambda: drawn(images(MAIN), "alignment", "--temperature", "0.5"),
    "one-shot-order-parameters": lambda: of_weights("order_parameters"),
    "one-shot-order-parameters-3-layers": lambda: of_deeper("order_parameters"),
    "engine-convolution": lambda: engine()[0] / "engine-convolution.png",
    "engine-gates": lambda: engine()[0] / "engine-gates.png",
    "engine-depth": lambda: engine()[0] / "engine-depth.png",
    "engine-branches": lambda: engine()[0] / "engine-branches.png",
    "pruning-accuracy": lambda: of_pruning(MAIN, "removed"),
    "pruning-accuracy-16-heads": lambda: of_pruning(WIDER, "removed"),
    "pruning-heads": lambda: of_pruning(MAIN, "single_heads"),
    "pruning-scores": lambda: of_pruning(MAIN, "scores"),
}
TEXTS: dict[str, Callable[[], str]] = {
    "first-table": first_table,
    "linear-attention": lambda: stored_table("linear_attention"),
    "markov-accuracies": markov_accuracies,
    "markov-good": lambda: markov_part("good"),
    "markov-good-denoising": lambda: markov_part("good + denoising"),
    "one-shot-gains": lambda: image_gains(MAIN),
    "one-shot-aligned": lambda: aligned(MAIN, "alignment"),
    "one-shot-aligned-gp": lambda: aligned(MAIN, "alignment_gp"),
    "one-shot-compared": lambda: compared(MAIN, (10, 20, 50, 100, 500)),
    "one-shot-choices": lambda: choices(images(MAIN)),
    "one-shot-correlations-10": lambda: correlations(MAIN, 10),
    "one-shot-correlations-100": lambda: correlations(MAIN, 100),
    "one-shot-correlations-500": lambda: correlations(MAIN, 500),
    "one-shot-signs": lambda: signs(MAIN),
    "one-shot-traces": lambda: traces(MAIN, trained=False),
    "one-shot-traces-trained": lambda: traces(MAIN, trained=True),
    "one-shot-single-heads": lambda: single_heads(MAIN),
    "one-shot-fashion": lambda: pruned_elsewhere(MAIN),
    "one-shot-lost": lambda: lost_to_random(MAIN),
    "temperature-choices": markov_choices,
    "learning-curves": learning_table,
    "next-order-fixed": lambda: next_order_table("P = 8: N, ln p(Y)", *_OF_ONE_PATH),
    "next-order-proportional": lambda: next_order_table("P = 0.8 N: N, ln p(Y)", *_OF_ONE_PATH),
    "next-order-predictor": lambda: next_order_table("P = 0.8 N: N, mean", *_OF_PREDICTOR),
    "next-order-markov": lambda: next_order_table("hidden Markov", *_OF_MARKOV),
    "next-order-skips": lambda: next_order_table("T = ", *_OF_SKIPS, benchmark="sampling.skips"),
    "class-samples": lambda: table([SAMPLES, *class_samples()[1]]),
    "class-losses": lambda: next_order_table(
        "On test", *LOSSES, benchmark="classes", options=("losses",)
    ),
    "engine": lambda: table(engine()[1]),
    "one-shot-deeper-gains": lambda: image_gains(DEEPER),
    "one-shot-wider-gains": lambda: image_gains(WIDER),
    "one-shot-wider-pruned": lambda: pruned(WIDER),
    "one-shot-four": lambda: four_pruned(WIDER),
    "one-shot-networks": networks,
    "one-shot-shapes": shapes,
    "bundled-networks": bundled,
    "one-shot-pruned": lambda: pruned(MAIN),
    "one-shot-orders": orders_compared,
    "one-shot-refitted": orders_refitted,
}


def main() -> int:
    """Remake the chosen figures and numbers; return 1 if any changed."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("names", nargs="*", help="prefixes of names (default: all)")
    parser.add_argument(
        "--folder", type=Path, default="remade", help="folder of studies (default: %(default)s)"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    prefixes = tuple(options.names) or ("",)
    changed = [name for name in PICTURES if name.startswith(prefixes) and _copied(name)]
    changed += [name for name in TEXTS if name.startswith(prefixes) and _replaced(name)]
    print(f"{len(changed)} changed:", *changed)
    return bool(changed)


def _copied(name: str) -> bool:
    """Copy a picture into the documentation, and return whether it changed."""
    source, target = PICTURES[name](), IMAGES / f"{name}.png"
    changed = not target.exists() or target.read_bytes() != source.read_bytes()
    shutil.copyfile(source, target)
    return changed


def _replaced(name: str) -> bool:
    """Replace a text on all pages, and return whether it changed."""
    text, changed = TEXTS[name](), False
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = MADE.sub(lambda m: m[1] + text + m[4] if m[2] == name else m[0], before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            changed = True
            _print_changes(page.name, name, before, text)
    return changed


def _print_changes(page: str, name: str, before: str, text: str) -> None:
    for match in MADE.finditer(before):
        if match[2] == name and match[3] != text:
            old, new = match[3].splitlines(), text.splitlines()
            print(f"{page}, {name}:")
            for line in [line for line in old if line not in new]:
                print(f"  was {line}")
            for line in [line for line in new if line not in old]:
                print(f"  is  {line}")


if __name__ == "__main__":
    sys.exit(main())
