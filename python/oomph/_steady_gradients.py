"""Keeps gradients at their addresses from step to step, for the net.

Where a script frees its gradients between the forward and the backward pass, as Lightning does, the old ones lie among the
activations while those are made, and the new ones elsewhere in their turn. So PyTorch's cache has other gaps in each step, tensors
lie elsewhere in each step, and the net cannot foresee which memory is needed when (`crates/oomph-net`). Here the new gradient is
copied to where the old one lay, which is as large and was in memory through the forward pass anyway.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from oomph._torch_features import has


def install() -> None:
    """Keep gradients in their places once the net of this process has something on the host. Without the net nothing happens."""
    if is_there() and has("tensor_use_count") and has("storage_use_count"):
        register_optimizer_step_post_hook(_Steps(bytes_on_host).ended)


def is_there() -> bool:
    """Whether the net is in this process."""
    return _library() is not None


def bytes_on_host() -> int:
    """The most bytes that the net of this process has had in host memory at a time; 0 while all fits, and without the net."""
    found = _library()
    return found() if found is not None else 0


@functools.cache
def _library() -> Callable[[], int] | None:
    on_host = getattr(ctypes.CDLL(None), "oomph_net_on_host", None)
    if on_host is not None:
        on_host.restype = ctypes.c_uint64
    return on_host


class _Steps:
    """Looks after the first step of each optimizer for which memory has run out whether its gradients live on in the next forward
    pass: only then do they cost no memory that is not taken already."""

    def __init__(self, on_host: Callable[[], int]) -> None:
        """`on_host` tells the most bytes that have lain on the host."""
        self._on_host = on_host
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def ended(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """A step of `optimizer` has ended."""
        if torch.compiler.is_compiling() or optimizer in self._known or not self._on_host():
            return
        self._known.add(optimizer)
        known = weakref.ref(optimizer)

        def forward_begins(module: torch.nn.Module, inputs: Any) -> None:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return
            handle.remove()
            found = known()
            for group in found.param_groups if found is not None else ():
                for parameter in group["params"]:
                    _keep(parameter)

        handle = register_module_forward_pre_hook(forward_begins)


def _keep(parameter: torch.Tensor) -> None:
    """Keep the parameter's gradient where it lies, if it has one that is a tensor by itself."""
    gradient = parameter.grad
    if (
        gradient is not None
        and parameter.requires_grad  # a critic is frozen while its generator steps
        and type(gradient) is torch.Tensor
        and gradient.is_cuda
        and gradient.layout is torch.strided
        and gradient.untyped_storage().nbytes() == gradient.nbytes
    ):
        parameter.register_post_accumulate_grad_hook(_Place(gradient))


class _Place:
    """Where the gradient of one parameter lies."""

    def __init__(self, gradient: torch.Tensor) -> None:
        self._kept = gradient

    def __call__(self, parameter: torch.Tensor) -> None:
        """The backward pass has given the parameter its gradient."""
        new = parameter.grad
        if new is None or new is self._kept or torch.compiler.is_compiling():
            return
        # Whoever has the old gradient, or a view of it, must not see it change.
        if _are_alike(new, self._kept) and self.references() == _alone():
            with torch.no_grad():
                parameter.grad = self._kept.copy_(new)
            # Its memory may be another stream's, which would give it away before it is read.
            new.record_stream(torch.cuda.current_stream(new.device))
        else:
            self._kept = new

    def references(self) -> tuple[int, int, int, int]:
        """How many hold the gradient: the tensor and its memory, each as Python's object and beneath it."""
        kept = self._kept
        memory = kept.untyped_storage()
        return (
            sys.getrefcount(kept),
            kept._use_count(),  # type: ignore[attr-defined]
            sys.getrefcount(memory),
            torch._C._storage_Use_Count(memory._cdata),
        )


@functools.cache
def _alone() -> tuple[int, int, int, int]:
    """The same of a gradient that nobody else holds; Python's own count differs between its versions."""
    return _Place(torch.empty(0)).references()


def _are_alike(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Whether one can lie where the other does, and look the same."""
    return (
        type(new) is type(old)
        and not new.requires_grad
        and (new.shape, new.dtype, new.device, new.layout)
        == (old.shape, old.dtype, old.device, old.layout)
        and new.stride() == old.stride()
    )
