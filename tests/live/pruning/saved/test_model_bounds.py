"""What a description of a model may ask for: notes of users count for nothing, tensors once."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)
from test_saving_transformers import built
from torch import nn

from pathkernel_pruning.live.saved.bounds import Bounds, BoundsError
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own
SMALL = Bounds.of_shapes([(4, 4)])
CONFIGS = ("LlamaConfig", "BertConfig", "GPT2Config", "ViTConfig", "T5Config")


def test_notes_of_users_are_not_compared():
    rng = np.random.default_rng(0)
    stems, ends = ("num", "my", "seen", "total"), ("steps", "tokens", "layers", "blocks", "label")
    for draw in range(20):
        default = getattr(transformers, CONFIGS[draw % len(CONFIGS)])()
        options = default.to_dict()
        note = f"{rng.choice(stems)}_pretraining_{rng.choice(ends)}"
        number = int(rng.integers(10**8, 10**15))
        notes = (number, [number], {"num_layers": number}, {"kind": [{"n_seen": number}]})
        options[note] = notes[draw % len(notes)]
        SMALL.check(options, default)
        with pytest.raises(BoundsError, match=f"{number}"):
            SMALL.check(options)  # of a class that is not known
        whole = [name for name, value in options.items() if type(value) is int and name != note]
        name = str(rng.choice([*whole, "num_labels", *default.attribute_map]))
        with pytest.raises(BoundsError, match=f"{name} = {number}"):
            SMALL.check(options | {name: number}, default)


def test_notes_in_a_part_of_a_configuration():
    default = transformers.LlavaConfig()
    options = default.to_dict()
    options["text_config"]["num_examples"] = 10**12
    SMALL.check(options, default)
    for change in ({"num_hidden_layers": 10**9}, {"model_type": "gpt2"}):  # the latter: not known
        part = {"text_config": options["text_config"] | change}
        with pytest.raises(BoundsError):
            SMALL.check(options | part, default)


def test_the_size_of_notes_is_bounded():
    default = transformers.BertConfig()
    deep = note = {}
    for _ in range(40):
        deep = {"note": deep}
    for _ in range(10):
        note = {"note": [note] * 4}
    for value, message in ((deep, "nested more than 32"), (note, "more than 262144 entries")):
        with pytest.raises(BoundsError, match=message):
            SMALL.check({"note": value}, default)
    with pytest.raises(BoundsError, match="num_labels"):  # of a part that the library looks up
        SMALL.check({"text_config": {"num_labels": 10**9}}, default)


def test_a_model_with_notes_is_loaded(tmp_path):
    model, _ = built("llama")
    model.config.update({"tokens_seen": 10**12, "num_steps": [10**6]})
    assert save_model(model, tmp_path / "model").loaded_by == "from_pretrained"
    assert load_model(tmp_path / "model").config.tokens_seen == 10**12


def test_excess_is_no_change(tmp_path):
    model, _ = built("bert")
    model.config.type_vocab_size = 10**9
    saved = save_model(model, tmp_path / "model")
    assert (saved.loaded_by, saved.changes) == ("load_model with model=", ())
    assert "type_vocab_size = 1000000000" in saved.excess
    with pytest.raises(Exception, match="build the whole model") as raised:
        load_model(tmp_path / "model")
    assert "changed" not in str(raised.value)
    other, _ = built("bert")
    assert save_model(other, tmp_path / "other").excess == ""


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_storages_count_once(device):
    """Of 5/8 GiB that may be there, 0.4 are, under several names; what is gone counts no more."""
    module = nn.Module()
    with SMALL.watch(), torch.device(device):
        for i in range(100):
            table = torch.empty(2**20)
            module.register_buffer(f"table_{i}", table.view(2**10, 2**10).T)
            module.register_buffer(f"other_{i}", table[None])
            torch.empty(2**20)
        with pytest.raises(BoundsError, match="asks for tensors of"):
            module.tables = [torch.empty(0).resize_(2**20) for _ in range(100)]


LARGE = 10**10
CLAIMS = {
    "zeros": lambda: torch.zeros(LARGE),
    "zeros on a device": lambda: torch.zeros(LARGE, device="cpu"),
    "out": lambda: torch.zeros(LARGE, out=torch.empty(0)),
    "normal": lambda: torch.normal(0.0, 1.0, (LARGE,)),
    "of another": lambda: torch.ones(3).new_zeros(LARGE, device="cpu"),
    "of one on meta": lambda: torch.ones(3, device="meta").new_zeros(LARGE, device="cpu"),
    "window": lambda: torch.hann_window(LARGE),
    "repeated": lambda: torch.ones(3).repeat(LARGE),
    "in a tuple": lambda: torch.meshgrid(torch.ones(10**5), torch.ones(10**5), indexing="ij"),
    "resized": lambda: torch.ones(3).resize_(LARGE),
    "joined": lambda: torch.cat([torch.ones(2**20)] * 2**10),
    "nested": lambda: torch.block_diag(*[torch.ones(1, 2**14)] * 2**8),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", CLAIMS)
def test_large_tensors_are_refused_before_they_are_made(name, device):
    with (
        SMALL.watch(),
        torch.device(device),
        pytest.raises(BoundsError, match="asks for tensors of"),
    ):
        CLAIMS[name]()


ORDINARY = {
    "out": lambda: torch.zeros(3, out=torch.empty(3)),
    "out of a sum": lambda: torch.add(torch.ones(3), 1, out=torch.empty(3)),
    "on a device": lambda: torch.arange(3, device="cpu", dtype=torch.float64),
    "of a list": lambda: torch.tensor([[1.0, 2.0]]),
    "of NumPy": lambda: torch.from_numpy(np.arange(3.0)),
    "numbers": lambda: torch.ones(3).nonzero()[torch.tensor([True, False, True])],
    "moved": lambda: torch.ones(3).to("cpu").double(),
    "named": lambda: torch.ones(2, 3).max(dim=1).values,
    "indices": lambda: torch.tensor(torch.ones(3).sum().item()),
    "filled": lambda: nn.init.ones_(torch.empty(3)),
    "sparse": lambda: torch.ones(3).to_sparse() * 2,
}


@pytest.mark.parametrize("name", ORDINARY)
def test_results_are_those_of_torch(name):
    expected = ORDINARY[name]()
    with SMALL.watch():
        result = ORDINARY[name]()
    assert (result.dtype, result.device) == (expected.dtype, expected.device)
    assert torch.equal(result.to_dense(), expected.to_dense())


def test_errors_are_those_of_torch():
    with SMALL.watch(), pytest.raises(RuntimeError, match="size"):
        torch.ones(3) + torch.ones(4)
    with SMALL.watch(), pytest.raises(TypeError, match="zeros"):
        torch.zeros("three")
