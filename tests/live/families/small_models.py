"""The table of families: a small model of each, with random weights, and a batch for it.

A new family is one more line here: ``nox -s families`` then runs it, and writes docs/families.md.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

HEADS, TOKENS = 4, 7


@dataclass(frozen=True)
class SmallModel:
    """A kind of model, and how a small one is built.

    Attributes
    ----------
    library : str
        Its distribution.
    kind : str
        Class, or whatever else the builder makes it by.
    options : dict
        Of its configuration.
    projection : str or tuple of str
        Ends of the names of its output projections.
    heads : int or sequence of int
        Of every layer.
    build : callable
        Takes this record, and returns the model and a batch.
    layers : tuple of int, optional
        Layers of one sequence, for the picture.
    """

    library: str
    kind: str
    options: dict[str, Any]
    projection: str | tuple[str, ...]
    heads: int | Sequence[int]
    build: Callable[[SmallModel], tuple[nn.Module, Any]]
    layers: tuple[int, ...] | None = None

    def make(self) -> tuple[nn.Module, Any]:
        """Return the model, in evaluation mode with weights in which every head matters."""
        torch.manual_seed(0)
        model, batch = self.build(self)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.3)
            else:  # norms, biases and sinks
                parameter.data += 0.1 * torch.randn_like(parameter)
        return model.eval(), batch


def _ids(tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, 20, (2, tokens), generator=torch.Generator().manual_seed(1))


def _padded() -> dict[str, torch.Tensor]:
    """Tokens, of which the last two of one sequence are padding."""
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, -2:] = 0
    return {"input_ids": _ids(), "attention_mask": mask}


def _images(size: int = 8, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, channels, size, size, generator=generator)


def _of_transformers(small: SmallModel) -> nn.Module:
    kind = getattr(importlib.import_module("transformers"), small.kind)
    return kind(kind.config_class(**small.options))


def _text(small: SmallModel) -> tuple[nn.Module, Any]:
    return _of_transformers(small), _padded()


def _without_mask(small: SmallModel) -> tuple[nn.Module, Any]:
    return _of_transformers(small), {"input_ids": _ids()}


def _translation(small: SmallModel) -> tuple[nn.Module, Any]:
    return _of_transformers(small), {"input_ids": _ids(), "decoder_input_ids": _ids(5)}


def _speech(small: SmallModel) -> tuple[nn.Module, Any]:
    features = torch.randn(2, 4, 20, generator=torch.Generator().manual_seed(1))
    return _of_transformers(small), {"input_features": features, "decoder_input_ids": _ids(5)}


def _vision(small: SmallModel) -> tuple[nn.Module, Any]:
    size = small.options.get("image_size", 8)
    return _of_transformers(small), {"pixel_values": _images(size)}


def _towers(small: SmallModel) -> tuple[nn.Module, Any]:
    return _of_transformers(small), {"input_ids": _ids(), "pixel_values": _images()}


def _of_timm(small: SmallModel) -> tuple[nn.Module, Any]:
    timm = importlib.import_module("timm")
    model = timm.create_model(small.kind, **small.options)
    return model, _images(small.options.get("img_size", 224))


def _of_torch(small: SmallModel) -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(32, HEADS, 40, **small.options)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    tokens = torch.randn(2, TOKENS, 32, generator=torch.Generator().manual_seed(1))
    return model, tokens if small.options.get("batch_first") else tokens.transpose(0, 1)


def _bridge(small: SmallModel) -> tuple[nn.Module, Any]:
    """Return a model of transformers inside a bridge of TransformerLens, which needs its files."""
    transformers = importlib.import_module("transformers")
    tokenizers = importlib.import_module("tokenizers")
    bridges = importlib.import_module("transformer_lens.model_bridge")
    model = _of_transformers(small)
    words = tokenizers.models.WordLevel({f"w{n}": n for n in range(50)}, unk_token="w0")
    special = {"unk_token": "w0", "bos_token": "w1", "eos_token": "w2", "pad_token": "w0"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), **special
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        options = {"hf_model": model, "device": "cpu", "dtype": torch.float32}
        options["tokenizer"] = transformers.AutoTokenizer.from_pretrained(folder)
        bridge = bridges.TransformerBridge.boot_transformers(folder, **options)
    return bridge, {"input": _ids()}


_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MANY = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
_MANY |= {"num_attention_heads": HEADS}
_DECODER = _MANY | _SPECIAL
_DECODER |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
_FULL = {"layer_types": ["full_attention"] * 2}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
_MIXED = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2}
_MIXED |= {"linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_MIXED |= {"linear_conv_kernel_dim": 2}
_EXPERTS = {"num_experts": 2, "num_local_experts": 2, "num_experts_per_tok": 1}
_EXPERTS |= {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
_LATENT = {"num_key_value_heads": HEADS, "q_lora_rank": 16, "kv_lora_rank": 16}
_LATENT |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": 4}
_LATENT |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
_LATENT |= {"moe_intermediate_size": 16, "first_k_dense_replace": 2}
_LAST = {"n_routed_experts": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
_STATE_SPACE = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 4}
_SMALL_GPT = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": HEADS, "n_positions": 64}
_BART = {"vocab_size": 50, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
_BART |= {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
_BART |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 64}
_BART |= _SPECIAL | {"decoder_start_token_id": 1, "forced_eos_token_id": None}
_WHISPER = _BART | {"num_mel_bins": 4, "max_source_positions": 10, "max_target_positions": 20}
_T5 = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": HEADS, "d_ff": 40}
_T5 |= {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2}
_IMAGE = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
_IMAGE |= {"num_attention_heads": HEADS, "image_size": 8, "patch_size": 4}
_TOWER = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
_TOWER |= {"num_attention_heads": HEADS}
_PAIR = {
    "text_config": _TOWER | _SPECIAL | {"vocab_size": 50, "max_position_embeddings": 16},
    "vision_config": _TOWER | {"image_size": 8, "patch_size": 4},
}
_TIMM = {"img_size": 8, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": HEADS}
_TIMM |= {"num_classes": 2}


def _language(kind: str, options: dict[str, Any], projection: str = "self_attn.o_proj", **others):
    return SmallModel("transformers", kind, options, projection, HEADS, _text, **others)


def _decoder(kind: str, projection: Any = "self_attn.o_proj", **options: Any) -> SmallModel:
    return _language(kind, _DECODER | options, projection)


def _encoder(kind: str, options: dict[str, Any], projection: str) -> SmallModel:
    return _language(kind, options | {"pad_token_id": 0}, projection)


def _pictures(kind: str, projection: str, options: dict[str, Any] = _IMAGE, heads: Any = HEADS):
    return SmallModel("transformers", kind, options, projection, heads, _vision)


def _timm(kind: str, options: dict[str, Any], heads: Any = HEADS) -> SmallModel:
    return SmallModel("timm", kind, options, "attn.proj", heads, _of_timm)


SMALL_MODELS: dict[str, SmallModel] = {
    "Llama": _decoder("LlamaForCausalLM"),
    "Mistral": _decoder("MistralForCausalLM", sliding_window=3),
    "Mixtral": _decoder("MixtralForCausalLM", **_EXPERTS),
    "Qwen2": _decoder("Qwen2ForCausalLM"),
    "Qwen3": _decoder("Qwen3ForCausalLM"),
    "Qwen3-MoE": _decoder("Qwen3MoeForCausalLM", **_EXPERTS),
    "Qwen3-Next": _decoder("Qwen3NextForCausalLM", **_EXPERTS, **_FULL),
    "Qwen3-Next, a layer linear": _decoder("Qwen3NextForCausalLM", **_EXPERTS, **_MIXED),
    "Qwen3.5": _decoder("Qwen3_5ForCausalLM", **_FULL),
    "Qwen3.5, a layer linear": _decoder("Qwen3_5ForCausalLM", **_MIXED),
    "Gemma 2": _decoder("Gemma2ForCausalLM", **_SLIDING),
    "Gemma 3": _decoder("Gemma3ForCausalLM", **_SLIDING),
    "Gemma 4": _decoder(
        "Gemma4ForCausalLM",
        **_SLIDING,
        global_head_dim=8,
        vocab_size_per_layer_input=50,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=0,
    ),
    "GPT-OSS": _decoder("GptOssForCausalLM", **_EXPERTS, **_SLIDING),
    "OLMo 2": _decoder("Olmo2ForCausalLM"),
    "OLMo 3": _decoder("Olmo3ForCausalLM", **_SLIDING),
    "Phi-3": _decoder("Phi3ForCausalLM"),
    "Phi-1.5": _language(
        "PhiForCausalLM", _MANY | _SPECIAL | {"num_key_value_heads": 4}, "self_attn.dense"
    ),
    "DeepSeek-V2": _decoder("DeepseekV2ForCausalLM", **_LATENT),
    "DeepSeek-V3": _decoder("DeepseekV3ForCausalLM", **_LATENT),
    "Granite": _decoder("GraniteForCausalLM"),
    "Granite SWA": _decoder("GraniteSWAForCausalLM", **_SLIDING),
    "Cohere 2": _decoder("Cohere2ForCausalLM", **_SLIDING),
    "StableLM": _decoder("StableLmForCausalLM"),
    "SmolLM3": _decoder("SmolLM3ForCausalLM"),
    "MiMo-V2-Flash": _decoder("MiMoV2FlashForCausalLM", **_EXPERTS, **_SLIDING),
    "AFMoE": _decoder("AfmoeForCausalLM", **_EXPERTS, **_SLIDING),
    "Laguna": _decoder("LagunaForCausalLM", **_EXPERTS, **_SLIDING),
    "GLM-4": _decoder("Glm4ForCausalLM"),
    "GLM-4.5": _decoder("Glm4MoeForCausalLM", **_EXPERTS, **_LAST),
    "Llama 4": _decoder(
        "Llama4ForCausalLM",
        **_EXPERTS,
        intermediate_size_mlp=40,
        no_rope_layers=[1, 1],
        attention_chunk_size=8,
    ),
    "Ministral": _decoder("MinistralForCausalLM", **_SLIDING),
    "Nemotron": _decoder("NemotronForCausalLM"),
    "ERNIE 4.5": _decoder("Ernie4_5ForCausalLM"),
    "Hunyuan": _decoder("HunYuanDenseV1ForCausalLM"),
    "EXAONE 4": _decoder("Exaone4ForCausalLM", **_SLIDING),
    "Seed-OSS": _decoder("SeedOssForCausalLM"),
    "Apertus": _decoder("ApertusForCausalLM"),
    "OLMoE": _decoder("OlmoeForCausalLM", **_EXPERTS),
    "Gemma 3n": _decoder(
        "Gemma3nForCausalLM",
        **_SLIDING,
        vocab_size_per_layer_input=50,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=0,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0, 0.0],
    ),
    "DeepSeek-V3.2": _decoder(
        "DeepseekV32ForCausalLM", **_LATENT, index_n_heads=2, index_head_dim=8, index_topk=8
    ),
    "MiniCPM 3": _decoder("MiniCPM3ForCausalLM", **_LATENT),
    "LongCat-Flash": _decoder(
        "LongcatFlashForCausalLM",
        ("self_attn.0.o_proj", "self_attn.1.o_proj"),
        **_LATENT,
        num_layers=1,
        ffn_hidden_size=40,
        expert_ffn_hidden_size=16,
        moe_topk=1,
        zero_expert_num=1,
    ),
    "BitNet": _decoder("BitNetForCausalLM"),
    "Doge": _decoder("DogeForCausalLM"),
    "DiffLlama": _decoder("DiffLlamaForCausalLM"),
    "StarCoder 2": _decoder("Starcoder2ForCausalLM"),
    "LFM2, a layer of convolutions": _decoder(
        "Lfm2ForCausalLM", "self_attn.out_proj", layer_types=["conv", "full_attention"]
    ),
    "Falcon-H1": _decoder(
        "FalconH1ForCausalLM", **_STATE_SPACE | {"mamba_n_heads": 4, "mamba_d_ssm": 32}
    ),
    "Jamba, a layer of Mamba": _decoder(
        "JambaForCausalLM",
        **_EXPERTS,
        attn_layer_period=2,
        attn_layer_offset=1,
        use_mamba_kernels=False,
        mamba_d_state=4,
        mamba_d_conv=2,
    ),
    "Bamba, a layer of Mamba": _decoder("BambaForCausalLM", attn_layer_indices=[1], **_STATE_SPACE),
    "Granite 4, a layer of Mamba": _decoder(
        "GraniteMoeHybridForCausalLM",
        **_EXPERTS,
        **_STATE_SPACE,
        layer_types=["mamba", "attention"],
        shared_intermediate_size=16,
    ),
    "MiniMax, a layer linear": _decoder(
        "MiniMaxForCausalLM",
        ("self_attn.o_proj", "self_attn.out_proj"),
        **_EXPERTS,
        layer_types=["linear_attention", "full_attention"],
    ),
    "OLMo Hybrid, a layer linear": _decoder("OlmoHybridForCausalLM", **_MIXED),
    "RecurrentGemma, a layer recurrent": _decoder(
        "RecurrentGemmaForCausalLM",
        "temporal_block.o_proj",
        block_types=["recurrent", "attention"],
        lru_width=32,
        attention_window_size=8,
    ),
    "Falcon": _language(
        "FalconForCausalLM",
        _MANY | _SPECIAL | {"new_decoder_architecture": False, "multi_query": False},
        "self_attention.dense",
    ),
    "Falcon, one group": _language("FalconForCausalLM", _MANY | _SPECIAL, "self_attention.dense"),
    "MPT": _language(
        "MptForCausalLM",
        {"vocab_size": 50, "d_model": 32, "n_heads": HEADS, "n_layers": 2, "max_seq_len": 64},
        "attn.out_proj",
    ),
    "BLOOM": _language(
        "BloomForCausalLM",
        _SPECIAL | {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": HEADS},
        "self_attention.dense",
    ),
    "OPT": _language(
        "OPTForCausalLM",
        _MANY | _SPECIAL | {"ffn_dim": 40, "word_embed_proj_dim": 32},
        "self_attn.out_proj",
    ),
    "GPT-2": _language("GPT2LMHeadModel", _SMALL_GPT | _SPECIAL, "attn.c_proj"),
    "GPT-BigCode": _language("GPTBigCodeForCausalLM", _SMALL_GPT | _SPECIAL, "attn.c_proj"),
    "GPT-J": _language(
        "GPTJForCausalLM", _SMALL_GPT | _SPECIAL | {"rotary_dim": 4}, "attn.out_proj"
    ),
    "GPT-NeoX": _language("GPTNeoXForCausalLM", _MANY | _SPECIAL, "attention.dense"),
    "CodeGen": _language(
        "CodeGenForCausalLM", _SMALL_GPT | _SPECIAL | {"rotary_dim": 4}, "attn.out_proj"
    ),
    "BERT": _encoder("BertModel", _MANY, "attention.output.dense"),
    "RoBERTa": _encoder("RobertaModel", _MANY, "attention.output.dense"),
    "ELECTRA": _encoder("ElectraModel", _MANY | {"embedding_size": 32}, "attention.output.dense"),
    "ALBERT": _encoder(
        "AlbertModel", _MANY | {"embedding_size": 16, "num_hidden_groups": 1}, "attention.dense"
    ),
    "DeBERTa": _encoder(
        "DebertaV2Model",
        _MANY | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
        "attention.output.dense",
    ),
    "DistilBERT": _encoder(
        "DistilBertModel",
        {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 40},
        "attention.out_lin",
    ),
    "ModernBERT": _encoder(
        "ModernBertModel",
        _MANY | _SPECIAL | {"cls_token_id": 1, "sep_token_id": 2} | {"local_attention": 4},
        "attn.Wo",
    ),
    "T5": SmallModel(
        "transformers", "T5Model", _T5, "SelfAttention.o", HEADS, _translation, layers=(1, 2)
    ),
    "BART": SmallModel(
        "transformers", "BartModel", _BART, "self_attn.out_proj", HEADS, _translation, (1, 2)
    ),
    "Whisper": SmallModel(
        "transformers", "WhisperModel", _WHISPER, "self_attn.out_proj", HEADS, _speech, (1, 2)
    ),
    "ViT": _pictures("ViTModel", "attention.o_proj"),
    "DINOv2": _pictures("Dinov2Model", "attention.o_proj"),
    "DINOv3": _pictures("DINOv3ViTModel", "attention.o_proj"),
    "BEiT": _pictures(
        "BeitModel", "attention.o_proj", _IMAGE | {"use_relative_position_bias": True}
    ),
    "CLIP": SmallModel(
        "transformers", "CLIPModel", _PAIR, "self_attn.out_proj", HEADS, _towers, (1, 2)
    ),
    "SigLIP": SmallModel(
        "transformers", "SiglipModel", _PAIR, "self_attn.out_proj", HEADS, _towers, (1, 2)
    ),
    "Swin": _pictures(
        "SwinModel",
        "attention.o_proj",
        {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4]}
        | {"window_size": 2},
        (2, 2, 4),
    ),
    "Swin v2": _pictures(
        "Swinv2Model",
        "attention.output.dense",
        {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4]}
        | {"window_size": 2},
        (2, 2, 4),
    ),
    "timm: ViT": _timm("vit_tiny_patch16_224", {}, 3),
    "timm: DeiT, distilled": _timm("deit_tiny_distilled_patch16_224", {}, 3),
    "timm: BEiT": _timm("beit_base_patch16_224", _TIMM),
    "timm: EVA-02": _timm("eva02_tiny_patch14_224", {}, 3),
    "timm: CaiT": _timm("cait_xxs24_224", _TIMM),
    "timm: Swin": _timm(
        "swin_tiny_patch4_window7_224",
        {"img_size": 16, "patch_size": 2, "embed_dim": 16, "num_classes": 2}
        | {"depths": (2, 1), "num_heads": (2, 4), "window_size": 2},
        heads=(2, 2, 4),
    ),
    "nn.TransformerEncoder": SmallModel(
        "torch",
        "nn.TransformerEncoder",
        {"batch_first": True, "dropout": 0.0},
        "self_attn.out_proj",
        HEADS,
        _of_torch,
    ),
    "nn.TransformerEncoder, tokens first": SmallModel(
        "torch",
        "nn.TransformerEncoder",
        {"dropout": 0.0},
        "self_attn.out_proj",
        HEADS,
        _of_torch,
    ),
}


def _lens(name: str, projection: str) -> SmallModel:
    inside = SMALL_MODELS[name]
    return replace(inside, library="transformer-lens", projection=projection, build=_bridge)


SMALL_MODELS |= {
    "TransformerLens: Llama": _lens("Llama", "o_proj._original_component"),
    "TransformerLens: GPT-2": _lens("GPT-2", "attn.o._original_component"),
}
