"""Compare a model that was built or loaded again with the one that is saved."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pathkernel_core.system.memory import check_memory
from pathkernel_models.errors import CaptureError
from pathkernel_pruning.live.saved.confinement import confined
from pathkernel_pruning.live.saved.rebuilding import tied_names, timm_options
from pathkernel_pruning.live.saved.structure import Difference, passing_tensors, structure_of
from pathkernel_pruning.live.smaller import check_same, outputs_of

_ROUNDINGS = 4  # of single precision: devices compute the same tables with other last digits


def faults(loaded: nn.Module, model: nn.Module, *, same_sizes: bool = True) -> Iterator[Difference]:
    """Describe how a loaded model, on the CPU, differs from the one that is saved.

    ``same_sizes`` says whether their configurations, and numbers of modules, must be the same.
    """
    structures = [structure_of(one) for one in (model, loaded)]
    if not same_sizes:
        structures = [structure.without_sizes() for structure in structures]
    yield from structures[0].differences(structures[1])
    yield from map(Difference, _tensor_faults(loaded, model))


def _tensor_faults(loaded: nn.Module, model: nn.Module) -> Iterator[str]:
    state, again = model.state_dict(), loaded.state_dict()
    for name in state.keys() | again.keys():
        if name not in state or name not in again:
            yield f"{name} is {'missing' if name in state else 'not of the model'}"
        elif state[name].dtype != again[name].dtype:
            yield f"{name} is {again[name].dtype}, not {state[name].dtype}"
        elif not _is_equal(state[name].cpu(), again[name]):
            yield f"{name} has other values"
    if tied_names(loaded) != tied_names(model):
        yield "other weights are tied"
    others = passing_tensors(loaded)
    for name, value in passing_tensors(model).items():
        if name not in others or not _is_close(others[name], value):
            yield f"{name} has other values"


def _is_equal(one: Tensor, other: Tensor) -> bool:
    if torch.equal(one, other):
        return True
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    dtype = torch.promote_types(one.dtype, other.dtype)
    if other.device.type == "cpu" or not dtype.is_floating_point:
        return _is_equal(one.to(dtype), other.cpu().to(dtype))
    roundings = _ROUNDINGS * torch.finfo(torch.float32).eps
    return torch.allclose(one.to(dtype), other.cpu().to(dtype), rtol=roundings, atol=0)


def _check_outputs(loaded: nn.Module, model: nn.Module) -> bool:
    """Raise a ValueError if a loaded model gives other outputs on a small batch.

    Return False, and compare nothing, where no batch can be made from the configuration, or it
    does not run.
    """
    try:
        batch = _small_batch(model)
        # a copy with the same weights: some models exchange modules in a forward pass
        model = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
        expected = outputs_of(model, _to(batch, next(model.parameters()).device), ())
    except Exception:  # whatever a model raises to which other inputs belong
        return False
    outputs = outputs_of(loaded, batch, ())
    check_same(outputs, [output.cpu() for output in expected])
    return True


def _small_batch(model: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    if not hasattr(model, "main_input_name"):  # of timm
        options = timm_options(model)
        return torch.randn(2, options["in_chans"], *options["img_size"], generator=generator)
    config, name = model.config, model.main_input_name
    if name == "pixel_values":
        size = config.image_size
        size = size if isinstance(size, list | tuple) else (size, size)
        images = torch.randn(2, config.num_channels, *size, generator=generator)
        return {name: images.to(model.dtype)}
    words = model.get_input_embeddings().weight.shape[0]
    batch = {name: torch.randint(words, (2, 6), generator=generator)}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = batch[name]
    return batch


def _to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    return {name: value.to(device) for name, value in batch.items()}


def check_library(model: Any, folder: Path, *, same_sizes: bool) -> None:
    """Load a folder by ``from_pretrained``; raise a CaptureError if that is another model.

    Files of the folder and of installed packages are opened, and no others: the library looks for
    names of code and weights in a configuration, which :func:`pathkernel.load_model` leaves out.
    """
    size = sum(value.nbytes for value in model.state_dict().values())
    check_memory("the model loaded again", size, "load it by load_model")
    try:
        # the library reads weights in threads
        with _quiet(), confined(folder, folder.iterdir(), threads=True):
            loaded = type(model).from_pretrained(folder, local_files_only=True).eval()
        check_reproduction(loaded, model, same_sizes=same_sizes)
    except Exception as error:  # whatever the library raises that cannot load it
        raise CaptureError(f"from_pretrained: {type(error).__name__}: {error}") from error


def check_reproduction(
    loaded: nn.Module, model: nn.Module, *, same_sizes: bool = True
) -> tuple[str, ...]:
    """Compare a loaded model with the one that is saved, by :func:`faults` and outputs.

    Returns the attributes that only the saved model has, and on which no output depends. Raises a
    ValueError that names the first other fault, or tells of other outputs.
    """
    further: list[str] = []
    for fault in faults(loaded, model, same_sizes=same_sizes):
        if fault.cause != "attribute":
            raise ValueError(fault.text)
        further.append(fault.text)
    if not _check_outputs(loaded, model) and further:
        raise ValueError(further[0])
    return tuple(further)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from telling of what it loads, inside the context."""
    logging: Any = sys.modules["transformers"].utils.logging
    verbosity, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
