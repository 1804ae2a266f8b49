"""Habits of training, after which a model must load: in silence, or with a warning by name."""

import random
import time
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
from test_saving_changes import FAMILIES, IDS, SMALL, STATES, Own, are_equal, built, outputs
from torch import nn

from pathkernel_models.errors import CaptureError
from pathkernel_models.inputs.batches import tensors_of
from pathkernel_pruning.live.removal import remove_heads
from pathkernel_pruning.live.saved.loading import load_model
from pathkernel_pruning.live.saved.saving import save_model

LANGUAGE = ["llama", "bert", "gpt2"]


def resize(model):
    model.resize_token_embeddings(41)


def checkpoint(model):
    model.gradient_checkpointing_enable()
    model.config.use_cache = False


def require_gradients(model):
    model.enable_input_require_grads()


def generate(model):
    if model.can_generate():
        model.generate(IDS, max_new_tokens=2, do_sample=False, pad_token_id=0)


def train(model):
    model.train()
    options = {"labels": IDS} if model.can_generate() else {}
    first = next(value for value in tensors_of(model(IDS, **options)) if value.requires_grad)
    first.sum().backward()
    model.zero_grad()
    model.eval()


def name_labels(model):
    model.config.id2label = {0: "no", 1: "yes"}
    model.config.label2id = {"no": 0, "yes": 1}


def keep_books(model):
    model.warnings_issued = {"estimate_tokens": True}
    model.hf_device_map, model.is_quantized = {"": "cpu"}, False


HABITS = [resize, checkpoint, require_gradients, generate, train, name_labels, keep_books]


def fresh(name, model):
    """Build a model anew, with as many words as another one has."""
    transformers = pytest.importorskip("transformers", minversion="5")
    kind = getattr(transformers, FAMILIES[name][0])
    words = {"vocab_size": model.get_input_embeddings().weight.shape[0]}
    return kind(kind.config_class(**FAMILIES[name][1] | words))


@pytest.mark.filterwarnings("ignore:.*checkpointing_enable. is deprecated")
@pytest.mark.parametrize("name", LANGUAGE)
def test_habits_of_training(tmp_path, name):
    """One after the other, and all that came before, in random order."""
    model, habits = built(name), HABITS.copy()
    random.Random(name).shuffle(habits)
    for habit in habits:
        habit(model)
        if habit not in (resize, habits[-1]):
            continue  # the library is tried at every saving, which takes time
        saved = save_model(model, tmp_path)
        assert (saved.loaded_by, saved.changes) == ("from_pretrained", ()), habit
        expected = outputs(model.eval())
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            for loaded in (load_model(tmp_path), load_model(tmp_path, fresh(name, model))):
                assert are_equal(outputs(loaded)[:1], expected[:1])


@pytest.mark.filterwarnings("error:.*differs in:UserWarning")
@pytest.mark.parametrize("name", ["llama", "own"])
def test_mixed_precision_of_accelerate(tmp_path, name):
    """The forward pass is wrapped for training, and stays so, but is not saved so."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    model, whole = built(name), built(name)
    expected = outputs(model)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    accelerator.prepare(model)
    forward = model.forward
    saved = save_model(model, tmp_path)
    assert (saved.loaded_by == "from_pretrained", saved.changes) == (name == "llama", ())
    assert are_equal(outputs(load_model(tmp_path, whole)), expected)
    assert model.forward == forward
    if name == "own":  # of decorated methods, this library takes off the decorators
        accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        save_model(model, tmp_path)
        assert are_equal(outputs(load_model(tmp_path, built(name))), expected)
    model.forward = torch.tanh  # by hand, and then for training
    accelerator.prepare_model(model)
    save_model(model, tmp_path)
    with pytest.raises(
        CaptureError, match=r"has forward not set, where the saved model has .*tanh"
    ):
        load_model(tmp_path, built(name))


def test_labels_of_sequences(tmp_path):
    """The library notes in the configuration which loss it chose."""
    transformers = pytest.importorskip("transformers", minversion="5")

    def whole():
        config = transformers.BertConfig(**SMALL)
        return transformers.BertForSequenceClassification(config).eval()

    model = whole()
    model(IDS, labels=torch.tensor([0, 1])).loss.backward()
    assert save_model(model, tmp_path).loaded_by == "from_pretrained"
    assert are_equal(outputs(load_model(tmp_path, whole())), outputs(model))


@pytest.mark.parametrize("name", ["llama", "vit"])
def test_further_attributes_are_told(tmp_path, name):
    """On the model or a part of it, without effect on what loads the folder."""
    model = built(name)
    rng = random.Random(name)
    part = rng.choice([key for key, _ in model.named_modules()])
    model.get_submodule(part).run_name = "x"
    saved = save_model(model, tmp_path)
    title = f"{part or 'the model itself'} has run_name"
    assert saved.loaded_by == "from_pretrained"
    assert saved.changes == (f"{title} not set, where the saved model has 'x'",)
    assert are_equal(outputs(load_model(tmp_path)), outputs(model))
    with pytest.warns(UserWarning, match=rf"differs in .*{title} not set"):
        assert are_equal(outputs(load_model(tmp_path, built(name))), outputs(model))


def test_an_attribute_that_a_class_of_a_library_has_is_no_further_one(tmp_path):
    """Though the object itself lacked it: it takes the place of a method."""
    model = built("llama")
    model.model.norm.forward = torch.tanh
    saved = save_model(model, tmp_path)
    assert saved.loaded_by == "load_model with model="
    with pytest.raises(CaptureError, match=r"differs in .*model\.norm has forward not set"):
        load_model(tmp_path, built("llama"))


class Logged(Own):
    """Counts its calls, and remembers when it was made and what it was given."""

    def __init__(self):
        super().__init__()
        self.calls, self.losses, self.history = 0, [], {"steps": []}
        self.created, self.path = time.time(), Path("runs")

    def forward(self, ids):
        self.calls += 1
        self.losses.append(0.5 / self.calls)
        self.history["steps"].append((self.calls, len(ids)))
        return super().forward(ids)


def logged():
    torch.manual_seed(0)
    return Logged().eval()


def test_run_state_of_own_classes(tmp_path):
    """A model that has run loads into one that has not; what differs is named, and stays."""
    model = logged()
    remove_heads(model, [(1, 2)], smaller=True, batch=IDS)
    expected = outputs(model)
    model.path = Path("runs", "3")
    save_model(model, tmp_path)
    with pytest.warns(UserWarning, match="differs in") as told:
        loaded = load_model(tmp_path, logged())
    (message,) = [str(one.message) for one in told]
    assert message.startswith("this Logged differs in attributes or hooks from the model in")
    for key in ("calls", "losses", "history", "created", "path"):
        assert f"the model itself has {key} " in message
    assert (loaded.calls, loaded.losses, loaded.path) == (0, [], Path("runs"))
    assert are_equal(outputs(loaded), expected)


def test_a_warning_that_is_an_error_leaves_the_model_as_it_was(tmp_path):
    model = logged()
    outputs(model)
    remove_heads(model, [(1, 2)], smaller=True, batch=IDS)
    save_model(model, tmp_path)
    whole = logged()
    weights, parts = whole.norm.weight, dict(whole.named_modules())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="differs in"):
            load_model(tmp_path, whole)
    assert dict(whole.named_modules()) == parts
    assert whole.norm.weight is weights


@pytest.mark.parametrize("name", ["own", "bert"])
def test_hooks_that_monitor(tmp_path, name):
    """On either model, with the module's name."""
    seen, model = [], built(name)
    part = next(key for key, module in model.named_modules() if isinstance(module, nn.LayerNorm))
    model.get_submodule(part).register_forward_hook(lambda *_: seen.append(1))
    save_model(model, tmp_path)
    with pytest.warns(UserWarning, match=rf"{part} has forward hooks not set, where .*lambda"):
        loaded = load_model(tmp_path, built(name))
    assert are_equal(outputs(loaded), outputs(model))


def normalised(model):
    """Another module, whose weights have the same names and shapes."""
    return nn.BatchNorm1d(len(model.norm.weight), track_running_stats=False)


OTHERS = {
    "epsilon": lambda model: setattr(model.norm, "eps", 0.5),
    "class": lambda model: setattr(model, "norm", normalised(model)),
    "order": lambda model: setattr(model.encoder.layers[1], "norm_first", True),
    "activation": lambda model: setattr(model.encoder.layers[0], "activation", torch.tanh),
    "heads": lambda model: setattr(model.encoder.layers[0].self_attn, "num_heads", 8),
}


@pytest.mark.parametrize("name", OTHERS)
def test_modules_of_torch_inside_own_classes_are_compared(tmp_path, name):
    model = logged()
    outputs(model)
    save_model(model, tmp_path)
    other = logged()
    OTHERS[name](other)
    with pytest.raises(
        CaptureError, match=r"differs in its modules .*\((norm|encoder\.l)|no layer 'enc.*4 heads"
    ):
        load_model(tmp_path, other)


class Normed(nn.LayerNorm):
    """Class of one's own, by a class of torch."""

    def __init__(self, width, factor=1.0):
        super().__init__(width)
        self.factor = factor


def test_attributes_that_a_class_inherits_from_a_library(tmp_path):
    def whole(**changes):
        layer = nn.TransformerEncoderLayer(STATES.shape[-1], 4, 24, batch_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, 1), Normed(STATES.shape[-1])).eval()
        for key, value in changes.items():
            setattr(model[1], key, value)
        return model

    save_model(whole(), tmp_path)
    with pytest.raises(CaptureError, match=r"1 has eps 0\.5"):
        load_model(tmp_path, whole(eps=0.5))
    with pytest.warns(UserWarning, match=r"1 has factor 2\.0, where the saved model has 1\.0"):
        load_model(tmp_path, whole(factor=2.0))
