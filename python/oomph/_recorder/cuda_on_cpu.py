"""Runs a script that says "cuda" on the CPU, for `oomph drift` without a GPU.

A function mode rewrites devices in the arguments of PyTorch's functions and tensors' methods; APIs
that bypass it (streams, events, generators, autocast, loading) are replaced by name. Things that
a CPU lacks raise an error when used: custom kernels, `torch.cuda` properties, NCCL.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from oomph._import_hooks import on_import

GPU = re.compile(r"cuda(:\d+)?")

SILENT = (
    "synchronize",
    "empty_cache",
    "ipc_collect",
    "set_device",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "set_per_process_memory_fraction",
)
"""Functions of `torch.cuda` that do nothing on a CPU."""


def cpu_for(place: Any) -> Any:
    """`place`, with a GPU replaced by the CPU."""
    if isinstance(place, torch.device):
        return torch.device("cpu") if place.type == "cuda" else place
    if isinstance(place, str):
        return "cpu" if GPU.fullmatch(place) else place
    return place


class _OnCpu(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cpu", *args[2:])  # the number of a GPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if type(kwargs.get("device")) is int:
            kwargs["device"] = "cpu"
        args = tuple(cpu_for(value) for value in args)
        return func(*args, **{key: cpu_for(value) for key, value in kwargs.items()})


class IdleStream:
    """A stream or an event without a GPU: all work is already complete."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `torch.cuda.Stream` and `torch.cuda.Event` are made."""

    def __enter__(self) -> IdleStream:
        """Nothing changes inside."""
        return self

    def __exit__(self, *exception: Any) -> None:
        """Nothing was changed."""

    def query(self) -> bool:
        """It is done."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """Milliseconds: none."""
        return 0.0

    def _nothing(self, *args: Any, **kwargs: Any) -> IdleStream:
        return self

    record = synchronize = wait = wait_event = wait_stream = record_event = _nothing


def install() -> None:
    """Redirect the whole process; torch has just been imported."""
    mode = _OnCpu()
    mode.__enter__()
    cuda = torch.cuda
    for name in SILENT:
        setattr(cuda, name, lambda *args, **kwargs: None)
    cuda.Stream = cuda.Event = IdleStream  # type: ignore[misc,assignment]
    cuda.stream = lambda stream: contextlib.nullcontext()  # type: ignore[return-value]
    cuda.current_stream = cuda.default_stream = lambda device=None: IdleStream()  # type: ignore[return-value]
    _default_device()
    _autocast()
    _generators()
    _loading()


def _default_device() -> None:
    original = torch.set_default_device

    @functools.wraps(original)
    def set_default_device(device: Any) -> None:
        original(cpu_for(device))

    torch.set_default_device = set_default_device


def _autocast() -> None:
    original = torch.autocast.__init__

    @functools.wraps(original)
    def initialize(
        self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if GPU.fullmatch(device_type) and dtype is None:
            dtype = torch.float16  # a GPU's own choice
        original(self, cpu_for(device_type), dtype, *args, **kwargs)

    torch.autocast.__init__ = initialize  # type: ignore[method-assign]


def _generators() -> None:
    original = torch.Generator

    class Kind(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    # A class, as annotations name it.
    class Generator(original, metaclass=Kind):  # type: ignore[misc,valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            return original(cpu_for(device))

    torch.Generator = Generator  # type: ignore[misc]


def _loading() -> None:
    load = torch.load

    @functools.wraps(load)
    def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(f, "cpu", *args, **kwargs)

    torch.load = loaded  # type: ignore[assignment]

    def safetensors(module: Any) -> None:
        original = module.load_file

        @functools.wraps(original)
        def load_file(filename: Any, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
            return original(filename, "cpu", *args, **kwargs)

        module.load_file = load_file

    def pretrained(module: Any) -> None:
        original = module.PreTrainedModel.from_pretrained.__func__

        @functools.wraps(original)
        def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device_map") is not None:
                kwargs["device_map"] = None
            return original(cls, *args, **kwargs)

        module.PreTrainedModel.from_pretrained = classmethod(from_pretrained)

    on_import("safetensors.torch", safetensors)
    on_import("transformers.modeling_utils", pretrained)
