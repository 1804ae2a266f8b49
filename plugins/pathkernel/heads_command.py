"""``pathkernel heads``: a heads file from a model's state dict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from pathkernel.options import options_of
from pathkernel.output import say
from pathkernel_core.options import Options, option
from pathkernel_tasks.layouts import LAYOUT_NAMES


@dataclass(frozen=True)
class _Layers(Options):
    layers: tuple[int, ...] | None = option(
        None,
        "Attention modules to take, by number, such as 1,2 or 1-4.  [default: all]",
        type=tuple[int, ...],
        metavar="L,L,…",
    )


@click.command(params=options_of(_Layers))
@click.argument("state_dict", metavar="STATE_DICT.safetensors", type=click.Path(path_type=Path))
@click.option(
    "--heads-per-layer", type=click.IntRange(min=1), help="Number H of heads of each layer."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Heads file to write, .safetensors or .npz.  [default: only list the attention modules]",
)
@click.option(
    "--layout",
    type=click.Choice(("auto", *LAYOUT_NAMES)),
    default="auto",
    show_default=True,
    help="Naming scheme of the model's library.",
)
@click.option(
    "--biases/--no-biases",
    default=True,
    show_default=True,
    help="Widen the heads by their biases; tokens then need a constant 1 (run custom --constant).",
)
@click.option(
    "--scale", type=float, help="Factor of the attention scores.  [default: 1/√G for width G]"
)
def heads(
    state_dict: Path,
    heads_per_layer: int | None,
    out: Path | None,
    layout: str,
    layers: tuple[int, ...] | None,
    biases: bool,
    scale: float | None,
) -> None:
    """Read queries and keys out of a model's state dict.

    Reads four layouts: torch.nn.MultiheadAttention, separate queries and keys (BERT, ViT, CLIP,
    Llama), GPT-2, and fused ones (timm, GPT-NeoX), saved as safetensors in one file or several with
    an index. Writes a heads file for pathkernel run custom --heads FILE.
    """
    from pathkernel_tasks.heads_file import save_heads
    from pathkernel_tasks.layouts import find_modules
    from pathkernel_tasks.state_dicts import extract_heads, state_dict_shapes

    if out is None:
        modules = find_modules(state_dict_shapes(state_dict), layout)
        for name, origin in dict.fromkeys((row.name, row.origin) for row in modules.values()):
            say(f"Layout: {name} ({origin})")
        for number, prefix in enumerate(modules, start=1):
            say(f"{number:>4}  {prefix or '(the whole file)'}")
        say("Write them with --heads-per-layer H --out heads.safetensors")
        return
    if heads_per_layer is None:
        raise click.UsageError("--heads-per-layer is needed: a state dict does not tell it")
    if out.exists():  # it may be the model itself
        raise click.UsageError(
            f"--out: {out} exists already and is not replaced; name another file"
        )
    extracted = extract_heads(state_dict, heads_per_layer, layout, layers, biases, scale)
    save_heads(out, extracted.layers, approximation=extracted.approximation)
    for number, (prefix, layer) in enumerate(zip(extracted.modules, extracted.layers), start=1):
        count, qk_width, width = layer.queries.shape
        say(
            f"Layer {number}: {prefix or '(the whole file)'}  {count} heads, width of queries and "
            f"keys {qk_width}, token width {width}, scale {layer.scale:.6g}"
        )
    if extracted.constant:
        say("With biases: tokens need a constant 1 appended (run custom --constant).")
    if extracted.approximation:
        say(f"Approximation: {extracted.approximation}")
    say(f"Heads: {out.resolve()}")
