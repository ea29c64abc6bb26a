"""Releases GPU memory: references in tracebacks and notebooks, garbage, caches."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Freed:
    """What `free` released, in bytes, summed over GPUs."""

    tensors: int
    """Bytes of tensors that nothing refers to any more."""
    cache: int
    """Bytes that the allocator returned to the GPU, of tensors and of its cache."""
    still_allocated: int
    """Bytes in tensors that something still refers to."""
    still_reserved: int
    """Bytes that the allocator still holds."""

    def __str__(self) -> str:
        """A summary in one line."""
        return (
            f"freed {format_bytes(self.tensors)} of tensors; {format_bytes(self.cache)} returned to the "
            f"GPU; {format_bytes(self.still_allocated)} are still in use"
        )


def format_bytes(size: float) -> str:
    """`size` bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def free() -> Freed:
    """Release all unused GPU memory, and say how much it was.

    Drops what keeps tensors alive after an error: the last traceback and its frames' variables
    (also IPython's), and the outputs that a notebook keeps (`_`, `__`, `Out`). Collects garbage, and
    empties the allocator's caches, cuBLAS's workspaces and cuFFT's plans. Your own variables stay:
    `del model, optimizer` first. Reusing cached blocks is fast, so calling this in every step
    only slows a job down.
    """
    before = _totals()
    _forget_tracebacks()
    _forget_notebook_outputs()
    for _ in range(3):  # finalizers may free more
        if not gc.collect():
            break
    release_caches()
    after = _totals()
    return Freed(
        tensors=max(0, before[0] - after[0]),
        cache=max(0, before[1] - after[1]),
        still_allocated=after[0],
        still_reserved=after[1],
    )


def release_caches() -> None:
    """Collect garbage and release cached blocks and workspaces. References stay."""
    gc.collect()
    torch.clear_autocast_cache()
    if not torch.cuda.is_initialized():
        return
    for name in ("_cuda_clearCublasWorkspaces", "_host_emptyCache"):
        clear = getattr(torch._C, name, None)
        if clear is not None:
            clear()
    with contextlib.suppress(RuntimeError, AttributeError):
        torch.backends.cuda.cufft_plan_cache.clear()
    torch.cuda.empty_cache()


def _totals() -> tuple[int, int]:
    if not torch.cuda.is_initialized():
        return 0, 0
    devices = range(torch.cuda.device_count())
    return (
        sum(torch.cuda.memory_allocated(d) for d in devices),
        sum(torch.cuda.memory_reserved(d) for d in devices),
    )


def _forget_tracebacks() -> None:
    """Empty the frames of the last uncaught error; a debugger cannot inspect them afterwards."""
    for name in ("last_exc", "last_value"):
        error = getattr(sys, name, None)
        if isinstance(error, BaseException):
            clear_error(error)
        if hasattr(sys, name):
            setattr(sys, name, None)
    for name in ("last_traceback", "last_type"):
        if hasattr(sys, name):
            setattr(sys, name, None)


def clear_error(error: BaseException) -> None:
    """Empty the frames that an error and its causes keep alive."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        at = pending.pop()
        if at is None or id(at) in seen:
            continue
        seen.add(id(at))
        pending += [at.__cause__, at.__context__]
        traceback.clear_frames(at.__traceback__)
        at.__traceback__ = None


def _forget_notebook_outputs() -> None:
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell: Any = get_ipython() if get_ipython is not None else None
    if shell is None:
        return
    # The formatter of tracebacks keeps the last one.
    formatter = getattr(shell, "InteractiveTB", None)
    for name in ("tb", "etype", "evalue"):
        if hasattr(formatter, name):
            setattr(formatter, name, None)
    names = shell.user_ns
    kept = names.get("Out")
    if isinstance(kept, dict):
        for number in [n for n, value in kept.items() if _holds_cuda(value)]:
            del kept[number]
            names.pop(f"_{number}", None)
    hook = getattr(shell, "displayhook", None)
    for name in ("_", "__", "___"):
        if _holds_cuda(names.get(name)):
            names[name] = ""
        if hook is not None and _holds_cuda(getattr(hook, name, None)):
            setattr(hook, name, "")


def _holds_cuda(value: Any, depth: int = 3) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_cuda
    if isinstance(value, torch.nn.Module):
        return any(p.is_cuda for p in value.parameters())
    if depth and isinstance(value, dict):
        return any(_holds_cuda(item, depth - 1) for item in value.values())
    if depth and isinstance(value, (list, tuple)):
        return any(_holds_cuda(item, depth - 1) for item in value)
    return False
