"""Peak memory of scores and of a choice of heads of a decoder in bfloat16.

``python -m benchmarks.heads.memory`` builds a decoder of a billion random parameters with grouped
queries, eight heads to one of keys, and runs it on two sequences of 64 tokens, in a process for
every row: a forward and a backward pass by the inputs alone, ``gradient_scores``,
``curvature_scores`` with cross-entropy, and ``choose_heads``, its passes limited by ``--passes``.
All are to need at most 1.1 times the memory of the passes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
import warnings

LIMIT = 1.1
TASKS = ("passes", "gradient_scores", "curvature_scores", "choose_heads")
HEADS, KEYS = 32, 4  # of a layer
_BLOCK = 2**20  # random numbers that fill the weights again and again


def main() -> None:
    """Run the measurement and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--off", type=float, default=0.5, help="share of the heads that go")
    parser.add_argument("--passes", type=float, help="budget of choose_heads")
    options = parser.parse_args()
    context, peaks = multiprocessing.get_context("spawn"), dict[str, float]()
    for task in dict.fromkeys(["passes", *options.tasks]):
        with context.Pool(1) as pool:
            parameters, before, peaks[task], seconds, about = pool.apply(_measured, (task, options))
        ratio = peaks[task] / peaks["passes"]
        print(
            f"{task:>16}: peak {peaks[task]:.0f} MiB, {ratio:.2f} times that of the passes; "
            f"{before:.0f} MiB with the {parameters / 1e9:.2f} billion parameters alone; "
            f"{seconds:.0f} CPU s{about}",
            flush=True,
        )
    if max(peaks.values()) > LIMIT * peaks["passes"]:
        sys.exit(f"more than {LIMIT} times the memory of the passes")


def _measured(task: str, options: argparse.Namespace) -> tuple[int, float, float, float, str]:
    """Parameters, peak MiB before and after a task, its CPU seconds, and more about it."""
    import torch

    import pathkernel as pk

    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # that examples are few
    model = _decoder(options.layers)
    sequences = torch.randint(model.config.vocab_size, (2, options.tokens + 1))

    def logits_and_classes(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return model(batch[:, :-1], use_cache=False).logits, batch[:, 1:]

    def outputs(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, classes = logits_and_classes(batch)
        return logits.flatten(0, 1), classes.flatten()

    def loss(batch: torch.Tensor) -> torch.Tensor:
        logits, classes = logits_and_classes(batch)
        entropies = torch.nn.functional.cross_entropy(logits.mT, classes, reduction="none")
        return entropies.mean(dim=1)

    # their imports take memory, but not for a model
    scores = {name: getattr(pk, name) for name in TASKS[1:]}
    before, start, about = _peak(), time.process_time(), ""
    if task == "gradient_scores":
        scores[task](model, [sequences], loss)
    elif task == "curvature_scores":
        scores[task](model, [sequences], outputs, loss="cross-entropy")
    elif task == "choose_heads":
        count = round(options.off * options.layers * HEADS)
        choice = pk.choose_heads(
            model, [sequences], outputs, count, loss="cross-entropy", passes=options.passes
        )
        ended = "" if choice.is_complete else ", by its budget"
        about = f"; {count} of {options.layers * HEADS} heads in {choice.passes:.0f} passes{ended}"
    else:
        model.requires_grad_(False)
        handle = model.get_input_embeddings().register_forward_hook(
            lambda _, inputs, embedded: embedded.requires_grad_()
        )
        loss(sequences).sum().backward()
        handle.remove()
    seconds = time.process_time() - start
    return sum(weight.numel() for weight in model.parameters()), before, _peak(), seconds, about


def _decoder(layers: int):
    """Decoder in bfloat16 with random weights, built without a copy in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEYS,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are no weights
    block = 0.02 * torch.randn(_BLOCK, dtype=torch.bfloat16)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.fill_(1.0)
                continue
            for part in weight.view(-1).split(_BLOCK):
                part.copy_(block[: len(part)])
    return model.eval()


def _peak() -> float:
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes or kilobytes in a MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


if __name__ == "__main__":
    main()
