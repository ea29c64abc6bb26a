"""Recomputes a forward pass when the backward pass needs what it saved.

Like non-reentrant `torch.utils.checkpoint`, but with less work on the host: a number, not an object, stands
for each saved tensor. Training with small batches is bound by the host, so the host's work is the price of
a lever there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from oomph import _torch_features as torch_features
from oomph._older_python import zip
from oomph.levers._shared.autocast import Autocast


def recomputed_in_backward(
    name: str,
    forward: Callable[..., Any],
    args: tuple,
    kwargs: dict,
    first: contextlib.AbstractContextManager,
    again: contextlib.AbstractContextManager,
) -> Any:
    """Call `forward` without keeping its saved tensors; its arguments are kept.

    Each backward pass calls it again, up to its last saved tensor, when it needs the first
    of them. `first` wraps the first call, `again` the others; all run under the autocast
    of the first. `name` is the module's, for errors.

    Raises:
        RuntimeError: in the backward pass, if the second call saves other tensors than the first.
    """
    if _is_watched():
        # PyTorch's own implementation handles hooks on saved tensors and active modes.
        return checkpoint(
            forward,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (first, again),
            **kwargs,
        )
    call = _Call(name, forward, args, kwargs, again)
    with torch.autograd.graph.saved_tensors_hooks(call.pack, call.unpack), first:
        return forward(*args, **kwargs)


def without_graph(tensor: torch.Tensor) -> torch.Tensor:
    """What a hook keeps of a saved tensor that stays as it is.

    The tensor may be its operator's own output. Kept as that, it would keep the graph that keeps it, until a backward pass frees
    what was saved: for ever, where a graph is dropped.
    """
    return tensor if tensor.is_leaf else tensor.detach()


def has_saved_tensor_hooks() -> bool:
    """Whether hooks see what is saved for the backward pass; False if they are forbidden."""
    top = torch_features.find("saved_tensor_hooks_top")
    if top is not None:
        return top(False) is not None
    autograd = torch._C._autograd
    if not autograd._saved_tensors_hooks_is_enabled():
        return False
    try:
        autograd._saved_tensors_hooks_disable("")  # raises if there are any
    except RuntimeError:
        return True
    finally:
        autograd._saved_tensors_hooks_enable()
    return False


def _is_watched() -> bool:
    """Whether there are hooks on saved tensors, or an active mode for operators."""
    return (
        has_saved_tensor_hooks()
        or torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
    )


class _Done(BaseException):
    """All saved tensors are recomputed: the rest of the forward pass is not needed.

    Not an `Exception`, so that a module's `except Exception` does not catch it.
    """


class _Call:
    """One call: its saved tensors are numbers until the backward pass needs them."""

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        args: tuple,
        kwargs: dict,
        context: contextlib.AbstractContextManager,
    ) -> None:
        self.name, self.forward, self.args, self.kwargs = name, forward, args, kwargs
        self.context, self.autocast = context, Autocast("cuda", "cpu")
        self.kinds: list[tuple[torch.Size, torch.dtype]] = []
        self.backward = -1
        self.saved: list[torch.Tensor | None] = []

    def pack(self, tensor: torch.Tensor) -> int:
        """Its number stands for it."""
        kinds = self.kinds
        kinds.append((tensor.shape, tensor.dtype))
        return len(kinds) - 1

    def unpack(self, number: int) -> torch.Tensor:
        """What the second call saved; released at once, since a backward pass asks once."""
        backward, saved = torch._C._current_graph_task_id(), self.saved
        if backward != self.backward or number >= len(saved) or saved[number] is None:
            saved = self.saved = self._compute()
            self.backward = backward
        tensor = saved[number]
        saved[number] = None
        assert tensor is not None
        return tensor

    def _compute(self) -> list[torch.Tensor | None]:
        kinds = self.kinds
        saved: list[torch.Tensor | None] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            number = len(saved)
            if number == len(kinds):  # it caught the exception that ends it
                raise self._unlike(f"it saves more than {number} tensors")
            if kinds[number] != (tensor.shape, tensor.dtype):
                raise self._unlike(
                    f"its saved tensor {number} was {_kind(kinds[number])} and is now "
                    f"{_kind((tensor.shape, tensor.dtype))}"
                )
            tensor = without_graph(tensor)
            saved.append(tensor)
            if len(saved) == len(kinds):
                raise _Done
            return tensor

        # Free what an earlier backward pass left.
        self.saved = []
        try:
            with (
                torch.enable_grad(),
                self.autocast.again(),
                torch.autograd.graph.saved_tensors_hooks(pack, _same),
                self.context,
            ):
                self.forward(*self.args, **self.kwargs)
        except _Done:
            return saved
        raise self._unlike(
            f"it saved {len(kinds)} tensors for the backward pass and now {len(saved)}"
        )

    def _unlike(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"{self.name} behaved differently when it was recomputed: {what}. "
            "Leave it out of the plan (oomph checkpoint)"
        )


def _kind(kind: tuple[torch.Size, torch.dtype]) -> str:
    return f"{str(kind[1]).removeprefix('torch.')} {list(kind[0])}"


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def attention_kernels() -> tuple[bool, ...]:
    """Which kernels of scaled dot products PyTorch may choose."""
    cuda = torch.backends.cuda
    return (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )


def set_attention_kernels(kernels: tuple[bool, ...]) -> None:
    """Allow those of an earlier `attention_kernels()`."""
    if kernels == attention_kernels():
        return
    cuda = torch.backends.cuda
    for enable, enabled in zip(
        (
            cuda.enable_flash_sdp,
            cuda.enable_mem_efficient_sdp,
            cuda.enable_math_sdp,
            cuda.enable_cudnn_sdp,
        ),
        kernels,
        strict=True,
    ):
        enable(enabled)
