"""Streams for copies between a GPU and the host."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from oomph._older_python import zip

NON_BLOCKING = 1
"""`CU_STREAM_NON_BLOCKING` of the CUDA driver: it does not wait for the default stream, nor that for it."""

ALIGNMENT = 512
"""Where tensors in a buffer that is copied at once begin, as in PyTorch's allocator."""


def aligned(size: int) -> int:
    """The bytes of a tensor in such a buffer."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def copy_stream(device: torch.device) -> Any:
    """A stream on GPU `device` that nothing else uses, for the rest of the process.

    `torch.cuda.Stream` would make a pool of 32 streams for each priority at once, which takes 70 MiB on an H200
    (128 streams of 560 KiB, `bench/gpu/calibrate.py`). One by itself takes 560 KiB.
    """
    if torch.version.hip is not None:
        return torch.cuda.Stream(device)
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.cuda.current_stream(device)  # the driver's calls need the context that this makes
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuStreamCreate(ctypes.byref(handle), NON_BLOCKING) != 0 or not handle.value:
            return torch.cuda.Stream(device)
    return torch.cuda.ExternalStream(handle.value, device=device)


class BothWays:
    """The streams to each GPU and back from it, made when they are first asked for."""

    def __init__(self) -> None:
        """None yet."""
        self._of: dict[torch.device, tuple[Any, Any]] = {}

    def __call__(self, device: torch.device) -> tuple[Any, Any]:
        """To the GPU and back."""
        if device not in self._of:
            self._of[device] = (copy_stream(device), copy_stream(device))
        return self._of[device]

    def complete(self) -> None:
        """Wait until the host has all that is on its way there."""
        for _, away in self._of.values():
            away.synchronize()

    def bring(
        self, there: list[torch.Tensor], device: torch.device
    ) -> tuple[list[torch.Tensor], Any]:
        """Begin to copy pinned tensors to a GPU: the copies, and the event that waits for them."""
        stream = self(device)[0]
        # The computing stream's own memory, free at this point of that stream.
        here = [torch.empty_like(one, device=device, pin_memory=False) for one in there]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for target, source in zip(here, there, strict=True):
                target.copy_(source, non_blocking=True)
        return here, stream.record_event()
