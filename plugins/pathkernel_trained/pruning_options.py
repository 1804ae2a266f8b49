"""Options of the removal of heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pathkernel_core.contracts.options import Options, option
from pathkernel_trained.scores import NEEDS


@dataclass(frozen=True)
class PruningOptions(Options):
    """Options of :class:`pathkernel_trained.results.Pruning`."""

    checkpoint: Path | None = option(
        None, "Trained network.  [default: the one that the study was run with]", type=Path
    )
    order: str = option(
        "theory", "Order in which --remove takes heads; tables show all.", choices=tuple(NEEDS)
    )
    remove: int | None = option(None, "Number of heads to remove for --out.", type=int, minimum=1)
    out: Path | None = option(
        None, "File (.safetensors) to write the pruned network to.", type=Path
    )
    refit: bool = option(
        False,
        "Also measure every order with a gain for every head that is left, refitted on validation "
        "examples; --out writes the gains into the weights.",
    )
    episodes: int = option(
        10_000,
        "Number of examples (episodes) of each set, even; at most as many as the task has.",
        minimum=2,
    )
    widths: tuple[float, ...] | None = option(
        None,
        "Widths N, among the study's, whose order parameters score heads; --order uses the "
        "first.  [default: the best by the choice of temperature, 10, and those with draws]",
        type=tuple,
        flags=("--width", "--widths"),
    )
    temperature: float | None = option(
        None,
        "Temperature T, one of the study's.  [default: its choice at each width]",
        type=float,
    )
    seed: int | None = option(None, "Seed, one of the study's.  [default: its first]", type=int)
    sets: int = option(200, "Number of random sets that best-of tries at each size.", minimum=1)
    random: int = option(200, "Number of random orders to compare with.", minimum=2)
    resamples: int = option(2000, "Number of bootstrap resamples.", minimum=1)

    def __post_init__(self):
        if (self.remove is None) != (self.out is None):
            raise ValueError(
                "--remove is the number of heads to remove, and --out the file of the pruned "
                "network: give both or neither"
            )
