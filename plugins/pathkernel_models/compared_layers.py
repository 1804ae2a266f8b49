"""Remember which layers of a model have been compared, so that each is compared once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

from pathkernel_models.attention_module import AttentionModule


class ComparedLayers:
    """Layers of a model whose attention times values agreed with the outputs of their heads.

    Made empty for a model, and passed to all that runs it: a layer is compared in the first forward
    pass that allows it, and not again.
    """

    def __init__(self) -> None:
        self._numbers = set[int]()

    def include(self, layers: Iterable[AttentionModule]) -> bool:
        """Whether all of these layers have been compared."""
        return all(attention.number in self._numbers for attention in layers)

    def compare(self, attention: AttentionModule) -> AbstractContextManager[None]:
        """Compare a layer in a pass inside the context, unless it has been compared.

        The pass raises a CaptureError if attention times values are not the outputs of its heads.
        """
        if attention.number in self._numbers:
            return nullcontext()
        return attention.compare(partial(self._numbers.add, attention.number))

    @contextmanager
    def compare_all(self, layers: Iterable[AttentionModule]) -> Iterator[None]:
        """Compare several layers, see :meth:`compare`."""
        with ExitStack() as stack:
            for attention in layers:
                stack.enter_context(self.compare(attention))
            yield
