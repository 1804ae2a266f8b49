"""Small random models of an encoder and a decoder, for tests of cross-attention."""

from contextlib import contextmanager

import torch
import transformers
from small_configurations import SMALL, SPECIAL

from pathkernel_models.heads_table import list_heads

HEADS, SOURCE, TARGET = 4, 7, 5
PAIR = SPECIAL | {"d_model": 16, "vocab_size": 40, "max_position_embeddings": 32}
for _part in ("encoder", "decoder"):
    PAIR |= {f"{_part}_layers": 2, f"{_part}_attention_heads": HEADS, f"{_part}_ffn_dim": 24}
T5 = SPECIAL | {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": HEADS}
T5 |= {"vocab_size": 40}
WHISPER = PAIR | {"num_mel_bins": 4, "max_source_positions": 10, "max_target_positions": 32}
WHISPER |= {"suppress_tokens": None, "begin_suppress_tokens": None}
PATCHES = {"hidden_size": 16, "d_ff": 24, "d_kv": 4, "num_hidden_layers": 1, "seq_len": 16}
PATCHES |= {"num_attention_heads": HEADS}
TEXT = {"vocab_size": 40, "hidden_size": 16, "d_ff": 24, "d_kv": 4, "num_layers": 2}
PIX2STRUCT = {"text_config": TEXT | {"num_heads": HEADS}, "vision_config": PATCHES}
WORDS = SMALL | SPECIAL | {"vocab_size": 40}
DECODER = {"is_decoder": True, "add_cross_attention": True}
KINDS = {
    "bart": ("BartForConditionalGeneration", PAIR),
    "t5": ("T5ForConditionalGeneration", T5),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "marian": ("MarianMTModel", PAIR),
    "pegasus": ("PegasusForConditionalGeneration", PAIR),
    "mbart": ("MBartForConditionalGeneration", PAIR),
    "blenderbot": ("BlenderbotForConditionalGeneration", PAIR),
    "plbart": ("PLBartForConditionalGeneration", PAIR),
    "m2m100": ("M2M100ForConditionalGeneration", PAIR),
    "umt5": ("UMT5ForConditionalGeneration", T5),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "longt5": ("LongT5ForConditionalGeneration", T5 | {"local_radius": 3}),
    "pix2struct": ("Pix2StructForConditionalGeneration", PIX2STRUCT),
    "bert and bert": ("BertConfig", WORDS),
    "bert and gpt2": ("GPT2Config", WORDS | {"n_embd": 16, "n_layer": 2, "n_head": HEADS}),
}


def built(name):
    """A model with random weights, and a batch with padding in both sequences."""
    kind, options = KINDS[name]
    torch.manual_seed(0)
    if " and " in name:
        encoder = transformers.BertConfig(**WORDS)
        decoder = getattr(transformers, kind)(**options, **DECODER)
        config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
        config.decoder_start_token_id, config.pad_token_id = 1, 0
        model = transformers.EncoderDecoderModel(config)
    else:
        model = getattr(transformers, kind)
        model = model(model.config_class(**options))
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.4)
        else:  # biases, and factors of norms
            weight.data += 0.2 * torch.randn_like(weight)
    return model.double().eval(), batch_of(name)


def batch_of(name, source=SOURCE, target=TARGET):
    """A batch of three examples, some of which are padded."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(3, 40, (3, source), generator=generator)
    batch = {"input_ids": tokens, "attention_mask": lengths(source, 1, 2, 0)}
    if name == "whisper":
        features = torch.randn(3, 4, 20, generator=generator, dtype=torch.float64)
        batch = {"input_features": features}
    if name == "pix2struct":  # row, column and pixels of every patch
        pixels = torch.randn(3, source, 768, generator=generator, dtype=torch.float64)
        places = torch.randint(1, 4, (3, source, 2), generator=generator)
        batch = {"flattened_patches": torch.cat([places, pixels], dim=-1)}
        batch["attention_mask"] = lengths(source, 1, 2, 0)
    batch["decoder_input_ids"] = torch.randint(3, 40, (3, target), generator=generator)
    return batch | {"decoder_attention_mask": lengths(target, 2, 0, 1)}


def lengths(number, *missing):
    """Mask of sequences that lack some of their tokens at the end."""
    return (torch.arange(number) < number - torch.tensor(missing)[:, None]).long()


def sources_of(batch):
    """What a model generates from."""
    return {name: value for name, value in batch.items() if "decoder" not in name}


# without repeated tokens, random models tell different sequences
GENERATED = {"max_new_tokens": 6, "do_sample": False, "no_repeat_ngram_size": 1}
GENERATED |= {"eos_token_id": None}


def crossed_layers(model):
    """Numbers of the layers of cross-attention, and their output projections."""
    modules = {}
    for number, row in list_heads(model).iterrows():
        if row["attention"] == "cross":
            module = model.get_submodule(row["module"])
            names = ("out_proj", "o", "c_proj")
            if type(module).__name__ == "Pix2StructTextAttention":
                names = ("output",)
            found = [getattr(module, name) for name in names if hasattr(module, name)]
            # BERT's is in the module around
            around = model.get_submodule(row["module"].rpartition(".")[0])
            modules[number] = found[0] if found else around.output.dense
    return modules


@contextmanager
def put_in(projection, heads, means=None, count=HEADS):
    """Put zeros or means, (heads, G), in for the outputs of heads, numbered from 1."""

    def replace(_, args):
        outputs = args[0].unflatten(-1, (count, -1)).clone()
        for index, head in enumerate(heads):
            outputs[..., head - 1, :] = 0 if means is None else means[index]
        return (outputs.flatten(-2), *args[1:])

    handle = projection.register_forward_pre_hook(replace)
    try:
        yield
    finally:
        handle.remove()


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch).logits
