"""Reads checkpoints into host memory, and casts models before they move to the GPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from oomph._import_hooks import on_import
from oomph.levers._shared.base import Lever
from oomph.levers._shared.half import DTYPES
from oomph.levers._shared.job import Job
from oomph.levers.half_weights import cast


class LoadOnCpu(Lever):
    """Loads into host memory first, so that the GPU holds each weight once.

    Needs: a script that loads state dictionaries to the GPU (`torch.load(…, map_location="cuda")`,
    safetensors' `load_file(…, device="cuda")`, `from_pretrained(…, device_map="cuda")`), or casts a
    model there. Changes: dictionaries of tensors stay in host memory, from where `load_state_dict`
    copies into the model; Hugging Face models are loaded on the CPU and then moved. With `dtype`,
    the cast that the script makes after the move happens before it. Results: exact.

    Limits: if the script computes with a loaded tensor, it finds the tensor on the CPU, and PyTorch refuses to mix
    devices. Checkpoints that contain whole modules or lone tensors are loaded as the script asks.
    """

    name = "load_on_cpu"

    def __init__(self, dtype: str | None = None) -> None:
        """`dtype`: `bf16`, `fp16`, or None to leave types alone."""
        super().__init__()
        if dtype is not None and dtype not in DTYPES:
            raise self.refuse(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
        self.dtype = None if dtype is None else DTYPES[dtype]
        self.note = "nothing was loaded to a GPU, and no model in fp32 was moved to one"

    def install(self, job: Job) -> None:
        """Around the functions that load."""
        self._watch_load()
        on_import("safetensors.torch", self._watch_safetensors)
        on_import("transformers.modeling_utils", self._watch_pretrained)
        # Levers that cast must see models move, too.
        job.on_move.append(self._move)

    def _move(self, root: torch.nn.Module, device: torch.device) -> None:
        if self.dtype is not None and cast(root, self.dtype):
            self._took_effect()

    def _took_effect(self) -> None:
        self.applied += 1
        self.note = None

    def _watch_load(self) -> None:
        original, lever = torch.load, self

        @functools.wraps(original)
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            to_gpu: list[bool] = []

            def on_cpu(storage: Any, location: str) -> Any:
                to_gpu.append(_goes_to_gpu(map_location, location))
                return storage

            again = f.tell() if hasattr(f, "tell") else None
            loaded = original(f, on_cpu, *args, **kwargs)
            if not any(to_gpu):
                # As if the script had asked for the CPU.
                if map_location is None or _names(map_location) == "cpu":
                    return loaded
            elif _is_state(loaded):
                lever._took_effect()
                return loaded
            del loaded
            if again is not None:
                f.seek(again)
            return original(f, map_location, *args, **kwargs)

        torch.load = load  # type: ignore[assignment]

    def _watch_safetensors(self, module: Any) -> None:
        original, lever = module.load_file, self

        @functools.wraps(original)
        def load_file(filename: Any, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
            if _is_gpu(device):
                lever._took_effect()
                device = "cpu"
            return original(filename, device, *args, **kwargs)

        module.load_file = load_file

    def _watch_pretrained(self, module: Any) -> None:
        kind, lever = module.PreTrainedModel, self
        original = kind.from_pretrained.__func__

        @functools.wraps(original)
        def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
            place = kwargs.get("device_map")
            if isinstance(place, dict) and set(place) == {""}:
                place = place[""]
            if place is None or not _is_gpu(place):
                return original(cls, *args, **kwargs)
            kwargs.pop("device_map")
            lever._took_effect()
            return original(cls, *args, **kwargs).to(torch.device(place))

        kind.from_pretrained = classmethod(from_pretrained)


def _names(place: Any) -> str:
    """The type of device that `place` means, or an empty string."""
    if isinstance(place, bool):
        return ""
    if isinstance(place, int):
        return "cuda"
    if isinstance(place, (str, torch.device)):
        return str(place).split(":")[0]
    return ""


def _is_gpu(place: Any) -> bool:
    return _names(place) == "cuda"


def _goes_to_gpu(map_location: Any, location: str) -> bool:
    """Whether a storage that was saved from `location` would be put on a GPU."""
    if map_location is None:
        return location.startswith("cuda")
    if isinstance(map_location, dict):
        return _is_gpu(map_location.get(location, location))
    # A function decides for each storage: it is asked when it is loaded as the script wants.
    return _is_gpu(map_location)


def _is_state(loaded: Any) -> bool:
    """A dictionary of tensors, perhaps in others, and no modules."""
    if not isinstance(loaded, Mapping):
        return False
    values = list(loaded.values())
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    inner = [value for value in values if isinstance(value, Mapping)]
    if any(isinstance(value, torch.nn.Module) for value in values):
        return False
    return bool(tensors) or any(_is_state(value) for value in inner)


LEVER = LoadOnCpu
