"""Load saved models after random edits, and tell what was opened: ``edited_models.py ROOT SEED N``.

Run as a program, since an audit hook cannot be removed. It prints a JSON list with an entry for
each load: the edit, what came of it, files and acts that it should not need, seconds and bytes.
"""

import hashlib
import importlib.machinery
import json
import os
import random
import resource
import shutil
import site
import sys
import sysconfig
import time
import warnings
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

import pathkernel as pk
from pathkernel_models.errors import CaptureError

ACTS = ("socket.", "urllib.", "subprocess.", "os.exec", "os.system", "os.posix_spawn", "os.fork")
PACKAGES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {
    *site.getsitepackages(),
    *transformers.__path__,
    *torch.__path__,
}
CODE = tuple(importlib.machinery.all_suffixes())
FILES = {"pathkernel.json", "config.json", "generation_config.json"} | {
    f"{name}.safetensors" for name in ("model", "weights", "buffers")
}
KEYS = [
    "num_labels",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "vocab_size",
    "max_position_embeddings",
    "id2label",
    "label2id",
    "intermediate_size",
    "hidden_act",
    "dtype",
    "torch_dtype",
    "auto_map",
    "attn_implementation",
    "_attn_implementation",
    "quantization_config",
    "backbone",
    "backbone_config",
    "backbone_kwargs",
    "use_timm_backbone",
    "use_pretrained_backbone",
    "architecture",
    "model_args",
    "custom_pipelines",
    "_name_or_path",
    "name_or_path",
    "text_config",
    "vision_config",
    "encoder",
    "decoder",
    "per_layer_config",
    "layer_types",
    "depths",
    "rope_theta",
    "rope_scaling",
    "tokenizer_class",
    "model_type",
    "trust_remote_code",
    "use_kernels",
    "num_key_value_heads",
    "head_dim",
    "is_decoder",
    "sinusoidal_pos_embds",
    "image_size",
    "patch_size",
    "num_channels",
    "torchscript",
    "pruned_heads",
    "kernel_config",
]
CLASSES = [
    "DetrModel",
    "DetrForObjectDetection",
    "UperNetForSemanticSegmentation",
    "DPTForDepthEstimation",
    "VitMatteForImageMatting",
    "TimmWrapperModel",
    "TimmBackbone",
    "RagModel",
    "EncoderDecoderModel",
    "SwinModel",
    "VisionEncoderDecoderModel",
    "GPT2Model",
    "DistilBertModel",
    "LlavaForConditionalGeneration",
    "BertModel",
    "MusicgenForConditionalGeneration",
    "LlamaForCausalLM",
    "BertForSequenceClassification",
    "AutoModel",
    "pipeline",
    "os.system",
    "JambaModel",
    "EfficientNetModel",
    "ASTModel",
]


def hostile_values(root):
    """Values that a configuration should not have: sizes, names of files, servers and code."""
    outside = str(root / "outside")
    nested = {"model_type": "bert"}
    for _ in range(60):
        nested = {"text_config": nested, "backbone": outside}
    return [
        *(10**9, 10**6, 10**5, 2**31, 999, 40, 8, 0, -1, 1e12, 1e300, True, None, [], {}),
        *([10**9] * 3, [65536] * 5000, [[1, 2]] * 5000, list(range(3000))),
        *(outside, f"{outside}/config.json", f"local-dir:{outside}", "../outside", "outside"),
        *("hf-hub:nobody/nothing", "nobody/nothing", "https://example.invalid/x", "resnet18"),
        *("Model.py", "Model", {"AutoModel": "Model.Model", "AutoConfig": "Model.Config"}),
        *("hub", "ops", "float64", "gelu", nested, {"model_type": "timm_backbone"}),
        {"model_type": "timm_backbone", "backbone": f"local-dir:{outside}"},
        {"model_type": "detr", "backbone": outside, "use_timm_backbone": False},
        {"checkpoint_path": f"{outside}/weights.pth", "pretrained": True},
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
    ]


def edit_configuration(folder, draw, values):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    edits = []
    for _ in range(draw.choice([1, 1, 2, 4])):
        key, value = draw.choice([*KEYS, *content, *content]), draw.choice(values)
        if (kind := type(content.get(key))) in (int, str) and draw.random() < 0.8:
            # else most are refused for their types alone
            value = draw.choice([value for value in values if type(value) is kind])
        content[key] = value
        edits.append(f"{key} = {value!r:.60}")
    path.write_text(json.dumps(content))
    return edits


def edit_description(folder, draw, values):
    path = folder / "pathkernel.json"
    content = json.loads(path.read_text())
    keys = ["name", "name", "library", "layers", "tied", "options", "class"]
    key = draw.choice([*keys, "kinds", "modules", "tensors", "changes"])
    if key == "name":
        value = draw.choice([*CLASSES, *filter(lambda value: isinstance(value, str), values)])
    elif key == "library":
        content["name"] = draw.choice(["hf-hub:nobody/nothing", "resnet18", "vit_tiny_patch16_224"])
        value = draw.choice(["timm", "subprocess", None])
    elif key == "layers" and content["layers"]:
        value, name = content["layers"], draw.choice([*content["layers"]])
        value[name] |= draw.choice(
            [
                {"heads": 10**9},
                {"heads": 60000, "left": [list(range(1, 60000 - i)) for i in range(3)]},
                {"left": [[1]] * 5000, "kinds": ["width"] * 5000},
                {"left": [list(range(1, 300 - i)) for i in range(250)], "heads": 300},
                {"kinds": [10**9]},
            ]
        )
    elif key == "tied":
        value = {f"name.{i}": draw.choice(["none", *content["tied"].values()]) for i in range(9999)}
    elif key == "options":
        value = json.loads((folder / "config.json").read_text()) | {
            draw.choice(KEYS): draw.choice(values)
        }
    else:
        value = draw.choice(values)
    path.write_text(json.dumps(content | {key: value}))
    return [f"{key}: {value!r:.60}"]


def edit_buffers(folder, draw):
    path = folder / "buffers.safetensors"
    tensors = load_file(path)
    name = draw.choice([*tensors])
    value = tensors.pop(name)
    shape = draw.choice([value.shape, (2, *value.shape), (10**6,), ()])
    dtype = draw.choice([value.dtype, torch.int8])
    name = draw.choice([name, name, f"{name}.weight", "config", "training", "encoder.forward"])
    save_file(tensors | {name: torch.ones(shape, dtype=dtype)}, path)
    return [f"buffer {name}: {shape} {dtype}"]


def correct_checksums(folder):
    path = folder / "pathkernel.json"
    content = json.loads(path.read_text())
    for name in content["sha256"]:
        content["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(content))


class Watch:
    """Audit hook that lists what a load should not need."""

    def __init__(self):
        self.folder, self.seen = None, []

    def __call__(self, event, args):
        if self.folder is None:
            return
        if event.startswith((*ACTS, "pickle.")):
            self.seen.append(f"{event} {args!r:.80}")
        elif event == "open" and not isinstance(args[0], int) and not self._is_own(args[0]):
            self.seen.append(f"open {args!r:.120}")

    def _is_own(self, name):
        name = os.path.realpath(os.fsdecode(name))
        inside = os.path.relpath(name, self.folder)
        if not inside.startswith(".."):
            return inside in FILES
        roots = {*PACKAGES, *(sys.path if name.endswith(CODE) else ())}
        return name in (os.devnull, *sys.path) or any(
            name.startswith(os.path.join(os.path.realpath(root), "")) for root in roots
        )


def main(root, seed, count):
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    draw, watch, entries = random.Random(seed), Watch(), []
    values, families = hostile_values(root), sorted((root / "families").iterdir())
    for family in families:  # libraries open files of their own when they are imported
        pk.load_model(family)
    sys.addaudithook(watch)
    for number in range(count):
        family, folder = draw.choice(families), root / f"edited {number}"
        shutil.copytree(family, folder)
        (folder / "Model.py").write_text("raise SystemExit('code in the folder was run')\n")
        edits = []
        if draw.random() < 0.7:
            edits += edit_configuration(folder, draw, values)
        if not edits or draw.random() < 0.4:
            edits += edit_description(folder, draw, values)
        if draw.random() < 0.2 and (folder / "buffers.safetensors").exists():
            edits += edit_buffers(folder, draw)
        if draw.random() < 0.85:
            correct_checksums(folder)
        os.chdir(folder)  # where a relative name, or a module of this name, would be found
        start, watch.folder = time.monotonic(), os.path.realpath(folder)
        try:
            pk.load_model(folder)
            outcome = "loaded"
        except CaptureError as error:
            outcome = f"refused: {error}"
        except Exception as error:
            outcome = f"raised {type(error).__name__}: {error}"
        seconds, watch.folder = time.monotonic() - start, None
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        entry = {"family": family.name, "edits": edits, "outcome": outcome, "seen": watch.seen}
        entries.append(entry | {"seconds": seconds, "bytes": memory})
        watch.seen = []
        os.chdir(root)
        shutil.rmtree(folder)
    print(json.dumps(entries))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
