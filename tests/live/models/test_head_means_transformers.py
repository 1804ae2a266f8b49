"""Heads of transformers at their means over real tokens, however padding is told."""

import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)

from small_configurations import SMALL, SPECIAL, WAVES

from pathkernel_models.cross_attention import include_cross_attention
from pathkernel_models.heads_off import heads_off
from pathkernel_pruning.live.head_scores import gradient_scores

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own

PAIR = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 20} | SPECIAL
PAIR |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
PAIR |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
TOWER = {"patch_size": 4, "image_size": 8}
CLIP = {"text_config": SMALL | {"eos_token_id": 2}, "vision_config": SMALL | TOWER}
SINKS = SMALL | {"num_key_value_heads": 2, "head_dim": 4, "num_local_experts": 2}
SINKS |= {"num_experts_per_tok": 1}
LANGUAGES = {"src_vocab_size": 20, "tgt_vocab_size": 20, "langs": ["a", "b"]}


def made(kind, options):
    torch.manual_seed(0)
    config = getattr(transformers, kind.replace("ForCausalLM", "Model").replace("Model", "Config"))(
        **options
    )
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def ids(number=6, seed=2):
    return torch.randint(3, 20, (3, number), generator=torch.Generator().manual_seed(seed))


def mask(number=6, seed=0, left=False):
    """1 for tokens of three sequences, one of which is full."""
    lengths = torch.randint(2, number, (3, 1), generator=torch.Generator().manual_seed(seed))
    lengths[seed % 3] = number
    marks = (torch.arange(number) < lengths).long()
    return marks.flip(1) if left else marks


def call(model, inputs):
    with torch.no_grad():
        given = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    return given if isinstance(given, torch.Tensor) else given[0]


def check(model, projection, inputs, tokens, *, layer=1, run=call, **options):
    """Compare with a hook that puts the mean of the first head over tokens in."""
    module, seen = model.get_submodule(projection), []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    whole = run(model, inputs)
    handle.remove()
    size = seen[0].shape[-1] // 4
    mean = seen[0][tokens.bool()][:, :size].mean(dim=0)

    def replace(_, args):
        return torch.cat([mean.expand(*args[0].shape[:-1], -1), args[0][..., size:]], dim=-1)

    handle = module.register_forward_pre_hook(replace)
    expected = run(model, inputs)
    handle.remove()
    batch = inputs if isinstance(inputs, dict) else (inputs, None)
    with heads_off(model, [(layer, 1)], replace="mean", batches=[batch], **options):
        changed = run(model, inputs)
    effect = float((expected - whole).abs().max())
    assert effect > 1e-4
    torch.testing.assert_close(changed, expected, rtol=1e-5, atol=1e-4 * effect)


BERT, LLAMA = "encoder.layer.0.attention.output.dense", "layers.0.self_attn.o_proj"


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("left", [False, True])
def test_mask_by_name_and_by_position(implementation, left):
    shown, tokens = mask(left=left), ids()
    for kind, projection in (("BertModel", BERT), ("LlamaModel", LLAMA)):
        model = made(kind, SMALL)
        model.set_attn_implementation(implementation)
        check(model, projection, {"input_ids": tokens, "attention_mask": shown}, shown)
        check(model, projection, (tokens, shown), shown)
        # a sequence of nothing but padding has no tokens
        empty = shown * torch.tensor([[1], [0], [1]])
        check(model, projection, (tokens, empty), empty)


def test_masks_of_four_dimensions():
    shown, tokens = mask(seed=1), ids()
    allowed = torch.ones(6, 6).tril().bool() & shown[:, None, None].bool()
    for four in (allowed, torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)):
        for kind, projection in (("BertModel", BERT), ("LlamaModel", LLAMA)):
            batch = {"input_ids": tokens, "attention_mask": four}
            check(made(kind, SMALL), projection, batch, shown)


def test_mask_of_samples():
    model, waves = made("Wav2Vec2Model", WAVES), torch.randn(3, 200)
    samples = torch.ones(3, 200).long()
    samples[1, 100:], samples[2, 40:] = 0, 0
    count = model.feature_extractor(waves).shape[2]
    frames = model._get_feature_vector_attention_mask(count, samples)
    assert 3 < frames.sum() < frames.numel()
    batch = {"input_values": waves, "attention_mask": samples}
    check(model, "encoder.layers.0.attention.out_proj", batch, frames)


def test_encoder_and_decoder():
    """Each has the tokens of its own sequence; those of cross-attention ask."""
    model, source, target = made("BartModel", PAIR), mask(), mask(seed=1)
    batch = {"input_ids": ids(), "attention_mask": source, "decoder_input_ids": ids(seed=3)}
    check(model, "encoder.layers.0.self_attn.out_proj", batch, source)
    decoder = "decoder.layers.0.self_attn.out_proj"
    check(model, decoder, batch, torch.ones(3, 6), layer=2)
    both = batch | {"decoder_attention_mask": target}
    check(model, decoder, both, target, layer=2)

    include_cross_attention(model)
    crossing = "decoder.layers.0.encoder_attn.out_proj"
    check(model, crossing, both, target, layer=3)
    check(model, crossing, both, target, layer=3, masks=[target])
    plain = {"input_ids": ids(), "decoder_input_ids": ids(seed=3)}
    check(model, crossing, plain, torch.ones(3, 6), layer=3)


def test_towers():
    """The mask of a text is not that of an image of as many patches."""
    model, shown = made("CLIPModel", CLIP), mask(5)
    images = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids(5), "attention_mask": shown, "pixel_values": images}

    def towers(model, inputs):
        with torch.no_grad():
            given = model(**inputs)
        return torch.cat([given.text_embeds, given.image_embeds])

    check(model, "text_model.encoder.layers.0.self_attn.out_proj", batch, shown, run=towers)
    projection = "vision_model.encoder.layers.0.self_attn.out_proj"
    check(model, projection, batch, torch.ones(3, 5), layer=3, run=towers)


def test_sequences_on_the_second_axis():
    model, source = made("FSMTModel", PAIR | LANGUAGES), mask(3)  # as many tokens as sequences
    batch = {"input_ids": ids(3), "attention_mask": source, "decoder_input_ids": ids()}
    check(model, "encoder.layers.0.self_attn.out_proj", batch, source.T)


def test_gradients_of_examples_on_the_second_axis():
    """Against differences of each example's loss in the gain of a head."""
    model, source = made("FSMTModel", PAIR | LANGUAGES), mask(5)
    batch = {"input_ids": ids(5), "attention_mask": source, "decoder_input_ids": ids()}
    projection = model.encoder.layers[0].self_attn.out_proj

    def losses(batch):
        return model(**batch)[0].square().mean(dim=(1, 2))

    scores = gradient_scores(model, [batch], losses, normalised=False)
    for head in range(4):
        changed = []
        for factor in (1.01, 0.99):

            def scale(_, args, head=head, factor=factor):
                heads = args[0].clone()
                heads[..., 4 * head : 4 * head + 4] *= factor
                return heads

            handle = projection.register_forward_pre_hook(scale)
            with torch.no_grad():
                changed.append(losses(batch))
            handle.remove()
        slope = float(((changed[0] - changed[1]) / 0.02).abs().mean())
        assert float(scores.sel(head=f"1-{head + 1}")) == pytest.approx(slope, rel=0.01)


def test_sinks_are_no_tokens():
    model, shown = made("GptOssModel", SINKS), mask()
    check(model, LLAMA, {"input_ids": ids(), "attention_mask": shown}, shown)
    check(model, LLAMA, {"input_ids": ids()}, torch.ones(3, 6))
    check(model, LLAMA, (ids(), shown), shown)


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_virtual_tokens(kind):
    """Count where they are tokens of the layer; those of a prefix have keys alone."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    shown = mask()
    tokens = torch.cat([torch.ones(3, 3), shown], dim=1) if "Prompt" in kind else shown
    options = getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(made("LlamaForCausalLM", SMALL), options).eval()
    batch = {"input_ids": ids(), "attention_mask": shown}
    check(model, f"base_model.model.{LLAMA}", batch, tokens)
