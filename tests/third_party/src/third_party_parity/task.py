"""The task: are there an even number of minus signs?"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import pathkernel as pk


@dataclass(frozen=True)
class ThirdPartyParity(pk.plugins.Task):
    """Tokens carry a sign and noise; the label is the product of the signs."""

    name: ClassVar[str] = "third-party-parity"
    summary: ClassVar[str] = "Learn the parity of a few signs, from another distribution"
    widths: ClassVar[tuple[float, ...]] = (10, 100)
    temperatures: ClassVar[tuple[float, ...]] = (0.1,)

    examples: int = pk.plugins.option(16, "training examples", minimum=2)
    tokens: int = pk.plugins.option(2, "signs of each example", minimum=1)

    def realise(self, seed):
        """Draw random heads in two layers, and random signs."""
        generator = np.random.default_rng(seed)
        width = self.tokens + 3
        return pk.plugins.Realisation(
            layers=[
                pk.AttentionProduct(3 * generator.standard_normal((heads, width, width)))
                for heads in (2, 2)
            ],
            readout="first",
            train=self._draw(self.examples, generator),
            test_sets={"test": self._draw(20, generator)},
            sub_networks={"first heads": ((1,), (1,))},
        )

    def _draw(self, examples, generator):
        signs = generator.choice([-1.0, 1.0], size=(examples, self.tokens))
        signs[0, :], signs[1, :] = 1.0, 1.0
        signs[1, 0] = -1.0  # both labels occur
        noise = generator.standard_normal((examples, self.tokens, 2))
        positions = np.broadcast_to(np.eye(self.tokens), (examples, self.tokens, self.tokens))
        inputs = np.concatenate([signs[..., None], positions, noise], axis=2)
        return pk.plugins.Examples(inputs, signs.prod(axis=1))
