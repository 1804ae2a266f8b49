"""Likelihoods of classes: against samples, against the squared loss, and against other libraries.

python -m benchmarks.classes samples FOLDER   # twelve cases against NUTS, and a figure: minutes
python -m benchmarks.classes losses           # log loss and accuracy beside the squared loss
python -m benchmarks.classes images           # ten classes of images beside others: minutes
python -m benchmarks.classes heads [CACHE]    # heads of MiniLM and vision transformers: minutes
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.measuring import one_thread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("samples", "losses", "images", "heads"))
    parser.add_argument("folder", nargs="?", type=Path, help="of the figure; of trained weights")
    options = parser.parse_args()
    with one_thread():
        if options.part == "samples":
            from benchmarks.classes.samples import against_samples

            against_samples(options.folder)
        elif options.part == "losses":
            from benchmarks.classes.losses import losses

            losses()
        elif options.part == "heads":
            from benchmarks.classes.heads import class_heads

            class_heads(options.folder)
        else:
            from benchmarks.classes.images import images

            images()


if __name__ == "__main__":
    sys.exit(main())
