"""The page of families has a row for every configuration, and some rows are made again."""

import re

import pytest

torch = pytest.importorskip("torch", reason="live models are of PyTorch")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)

from small_models import SMALL_MODELS
from write_table import PAGE, TITLES, read_rows, row_of, with_rows

import pathkernel as pk
from pathkernel_models.families import latent, recognition

# with parts beside the projections, layers that are left whole, or one module that runs twice
SOME = ("Qwen3-Next, a layer linear", "DeBERTa", "Swin", "Swin v2", "BEiT", "ALBERT", "BLOOM")
SOME += ("nn.TransformerEncoder, tokens first",)


def test_every_configuration_has_a_row_and_its_versions():
    rows = read_rows(PAGE.read_text(encoding="utf-8"))
    assert [*rows] == [*SMALL_MODELS]
    assert len(rows) >= 35
    for name, row in rows.items():
        assert len(row) == len(TITLES)
        assert all(row)
        assert SMALL_MODELS[name].library in row[-1]
        assert all(made.rpartition(" ")[2][0].isdigit() for made in row[-1].split(", "))


def test_other_rows_leave_the_page_as_it_is():
    page = PAGE.read_text(encoding="utf-8")
    rows = read_rows(page)
    assert with_rows(page, rows) == page
    assert read_rows(with_rows(page, {"Llama": rows["Llama"]})) == {"Llama": rows["Llama"]}


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("name", SOME)
def test_rows(name):
    small, written = SMALL_MODELS[name], read_rows(PAGE.read_text(encoding="utf-8"))[name]
    if small.library == "transformers" and not hasattr(transformers, small.kind):
        pytest.skip(f"transformers {transformers.__version__} has no {small.kind}")
    row = row_of(name, small)
    if row[-1] == written[-1]:
        assert row == written
    assert row[1] == row[4] == "yes"


def test_blocks_without_heads_are_named():
    encoder = torch.nn.TransformerEncoderLayer(4, 2, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), encoder, torch.nn.ReLU(), encoder)
    assert pk.list_heads(model).attrs["without_heads"] == ("0",)
    assert pk.list_heads(torch.nn.MultiheadAttention(4, 2)).attrs["without_heads"] == ()


def test_the_template_of_a_family(monkeypatch):
    """That of the page, put beside the others, for a module that has no description."""

    class Joint(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = 4
            self.to_qkv, self.to_out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

        def forward(self, states):
            q, k, v = (
                part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in self.to_qkv(states).chunk(3, dim=-1)
            )
            heads = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return self.to_out(heads.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model, batch = torch.nn.Sequential(Joint(), Joint()).eval(), torch.randn(2, 5, 8)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    with pytest.raises(pk.CaptureError, match="no attention of a known form"):
        pk.plugins.check_heads(model, batch, "to_out", heads=4)
    page = (PAGE.parent / "models.md").read_text(encoding="utf-8")
    (template,) = re.findall(r"```python\n([^`]*def describe_joint.*?)```", page, re.DOTALL)
    namespace = vars(latent).copy()  # whose imports it has
    exec(template, namespace)
    monkeypatch.setattr(recognition, "FAMILIES", (namespace["describe_joint"],))
    answers = pk.plugins.check_heads(model, batch, "to_out", heads=4)
    assert answers == dict.fromkeys(answers, "yes") | {"loaded": "load_model with model="}
