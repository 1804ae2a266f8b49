"""Padding of transformers' models, of one sequence or two, against single sequences without any."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)

from small_configurations import SMALL, SPECIAL, WAVES

from pathkernel_capture.capture import capture
from pathkernel_models.agreement import with_own_function
from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.head_choice import curvature_scores
from pathkernel_pruning.live.head_scores import gradient_scores

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own

PAIR = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 20} | SPECIAL
PAIR |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
T5 = {"d_model": 16, "d_kv": 4, "num_layers": 2, "num_heads": 4, "d_ff": 24, "vocab_size": 20}
TOWER = {"patch_size": 4, "image_size": 8, "projection_dim": 8}
CLIP = {"text_config": SMALL | {"eos_token_id": 2}, "vision_config": SMALL | TOWER}
MODERN = SMALL | SPECIAL | {"local_attention": 2, "cls_token_id": 1, "sep_token_id": 2}
WINDOWS = SMALL | {"num_key_value_heads": 2, "sliding_window": 2}


def made(kind, options):
    torch.manual_seed(0)
    config = getattr(transformers, kind.replace("Model", "Config"))(**options)
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def ids(number=6, seed=2):
    return torch.randint(3, 20, (2, number), generator=torch.Generator().manual_seed(seed))


def mask(number, length, left=False):
    marks = torch.ones(2, number, dtype=torch.long)
    marks[1, slice(number - length) if left else slice(length, None)] = 0
    return marks


def check_alone(model, padded, alone, layers=None):
    for readout, attend in (("last", "states"), ("mean", "tokens")):
        options = {"readout": readout, "attend": attend, "layers": layers}
        captured, expected = (capture(model, [batch], **options) for batch in (padded, alone))
        largest = abs(expected.xi).max()
        np.testing.assert_allclose(captured.xi[1], expected.xi[0], atol=2e-6 * largest)


@pytest.mark.parametrize(
    ("kind", "options", "length"), [("BartModel", PAIR, 6), ("T5Model", T5, 6), ("T5Model", T5, 5)]
)
def test_encoder_and_decoder(kind, options, length):
    """Each has the padding of its own sequence, also if both are of one length."""
    model, source, target = made(kind, options), ids(), ids(length, seed=3)
    padded = {"input_ids": source, "attention_mask": mask(6, 4), "decoder_input_ids": target}
    alone = {"input_ids": source[1:, :4], "decoder_input_ids": target[1:]}
    for layers in ((1, 2), (3, 4)):
        check_alone(model, padded, alone, layers)
    padded["decoder_attention_mask"] = mask(length, 3)
    check_alone(model, padded, alone | {"decoder_input_ids": target[1:, :3]}, (3, 4))


@pytest.mark.parametrize("number", [5, 7])
def test_towers(number):
    """The mask of a text is not that of an image, also if both have five tokens."""
    model, text, images = made("CLIPModel", CLIP), ids(number), numbers(2, 3, 8, 8)
    padded = {"input_ids": text, "attention_mask": mask(number, 3), "pixel_values": images}
    alone = {"input_ids": text[1:, :3], "pixel_values": images[1:]}
    for layers in ((1, 2), (3, 4)):
        check_alone(model, padded, alone, layers)


def test_frames_without_a_mask():
    """Whisper's encoder attends to all frames; its decoder is not affected by their mask."""
    options = PAIR | {"num_mel_bins": 4, "max_source_positions": 10}
    model, frames, target = made("WhisperModel", options), numbers(2, 4, 20), ids()
    padded = {"input_features": frames, "decoder_input_ids": target, "attention_mask": mask(20, 8)}
    padded["decoder_attention_mask"] = mask(6, 4)
    alone = {"input_features": frames[1:], "decoder_input_ids": target[1:, :4]}
    check_alone(model, padded, alone, (3, 4))
    with pytest.raises(
        CaptureError, match=r"attention_mask .*encoder.layers.0.self_attn\) attends"
    ):
        capture(model, [padded], layers=(1, 2))
    captured = capture(model, [padded], layers=(1, 2), readout="last", masks=[mask(10, 4)])
    expected = capture(model, [alone], layers=(1, 2), readout=3)
    np.testing.assert_allclose(captured.xi[1], expected.xi[0], atol=1e-6)


@pytest.mark.parametrize("samples", [130, 195])
def test_mask_of_samples(samples):
    """Becomes one of frames, of which few samples of padding leave all."""
    model, waves = made("Wav2Vec2Model", WAVES), numbers(2, 200)
    waves[1, samples:] = 0
    padded = {"input_values": waves, "attention_mask": mask(200, samples)}
    check_alone(model, padded, {"input_values": waves[1:, :samples]})


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("GPT2Model", SMALL), ("MistralModel", WINDOWS), ("ModernBertModel", MODERN)],
)
def test_windows_and_padding_before_the_tokens(kind, options, left):
    model, tokens, shown = made(kind, options), ids(), mask(6, 4, left)
    padded = {"input_ids": tokens, "attention_mask": shown}
    padded["position_ids"] = (shown.cumsum(dim=1) - 1).clamp(min=0)
    check_alone(model, padded, {"input_ids": tokens[1:, -4:] if left else tokens[1:, :4]})


def test_prompts():
    """Tokens before those of the batch count, and keys beside them are refused."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    options = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}
    padded = {"input_ids": ids(), "attention_mask": mask(6, 4)}
    alone = {"input_ids": ids()[1:, :4], "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SMALL)).eval()
    check_alone(peft.get_peft_model(model, peft.PromptTuningConfig(**options)), padded, alone)
    prefix = peft.get_peft_model(model, peft.PrefixTuningConfig(**options))
    with pytest.raises(CaptureError, match=r"9 keys for 6 tokens.*past_key_values or prefix"):
        capture(prefix, [padded])


def drawn_masks(number):
    """Boolean masks of pairs (2, 1, query, key), and the numbers that say the same."""
    generator = np.random.default_rng(number)
    allowed = torch.from_numpy(generator.random((2, 1, number, number)) < 0.6)
    allowed |= torch.eye(number, dtype=torch.bool)  # every query has a key
    allowed[1, :, :, number - generator.integers(3) :] = False  # padding
    allowed[..., 0] = True
    return allowed, torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)


LLAMA = SMALL | {"num_key_value_heads": 2, "head_dim": 4}
PAIRS = {"BertModel": SMALL, "LlamaModel": LLAMA, "GPT2Model": SMALL, "Qwen3Model": LLAMA}


@pytest.mark.parametrize("number", [4, 7])
@pytest.mark.parametrize("kind", PAIRS)
def test_boolean_masks_of_pairs(kind, number):
    """Mask as the same ones of numbers do, or are refused where the model adds them."""
    model, (allowed, added) = made(kind, PAIRS[kind]), drawn_masks(number)
    batches = [{"input_ids": ids(number), "attention_mask": mask} for mask in (allowed, added)]
    with torch.no_grad():
        own = [model(**batch)[0] for batch in batches]
    torch.testing.assert_close(*own)
    for options in ({}, {"attend": "states"}, {"picture": "product"}):
        captured, expected = (capture(model, [b], readout="mean", **options) for b in batches)
        np.testing.assert_allclose(captured.xi, expected.xi, atol=1e-6 * abs(expected.xi).max())
    model.set_attn_implementation("eager")
    with pytest.raises(CaptureError, match=r"attention_mask .* boolean .*eager .* adds it"):
        capture(model, batches[:1], readout="mean")
    eager = capture(model, batches[1:], readout="mean", picture="product")
    np.testing.assert_allclose(eager.xi, expected.xi, atol=1e-6 * abs(expected.xi).max())


def own_kernel(scale):
    """Attention of a user's own, whose weights no function of PyTorch shows."""

    def attend(module, query, key, value, attention_mask, scaling=None, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = scale * (query @ key.mT) * scaling
        allowed = torch.ones(scores.shape[-2:]).tril().bool()
        weights = scores.masked_fill(~allowed, -torch.inf).exp()
        return (weights / weights.sum(-1, keepdim=True) @ value).transpose(1, 2), None

    return attend


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_kernel_of_ones_own(scale):
    """Is replaced by eager attention where this computes the same, and else refused."""
    name = f"test-{scale}"
    transformers.AttentionInterface.register(name, own_kernel(scale))
    model, batch = made("LlamaModel", LLAMA), {"input_ids": ids()}
    expected = capture(model, [batch], readout="mean")
    model.set_attn_implementation(name)

    def outputs(batch):
        return model(**batch)[0].mean(dim=(1, 2)), torch.zeros(2)

    def losses(batch):
        return outputs(batch)[0].square()

    def captured():
        return capture(model, [batch, batch], readout="mean").xi[:2]

    functions = [captured, lambda: gradient_scores(model, [batch], losses)]
    functions.append(lambda: curvature_scores(model, [batch], outputs))
    functions.append(lambda: capture(model, [batch], picture="tangent", outputs=outputs))
    for function in functions:
        if scale == 1:
            function()
            continue
        with pytest.raises(CaptureError, match="another function by its own attention kernel"):
            function()
    if scale == 1:
        np.testing.assert_allclose(captured(), expected.xi, atol=1e-6)
    assert model.config._attn_implementation == name


@pytest.mark.parametrize("is_differentiated", [False, True])
def test_comparing_kernels_stores_nothing(is_differentiated):
    """Unless a function differentiates by itself, here by its inputs; whoever calls it."""
    transformers.AttentionInterface.register("test-1.0", own_kernel(1.0))
    model = made("LlamaModel", LLAMA)
    states = model.get_input_embeddings()(ids()).detach()
    model.set_attn_implementation("test-1.0")
    stored, results = [], []

    def run(batch):
        batch = batch.clone().requires_grad_(is_differentiated)
        outputs = model(inputs_embeds=batch)[0]
        if is_differentiated:
            (outputs,) = torch.autograd.grad(outputs[:, -1].square().sum(), batch)
        results.append(outputs)
        return outputs

    def store(value):
        stored.append(value.shape)
        return value

    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(store, lambda value: value):
        batches = list(with_own_function(model, run, [states, states]))
    assert (len(batches), len(results)) == (2, 2)  # both of the first batch
    assert bool(stored) is is_differentiated
    assert not any(result.requires_grad for result in results)
    assert all(parameter.requires_grad for parameter in model.parameters())
