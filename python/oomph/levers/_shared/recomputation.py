"""Computes a forward pass again when the backward pass needs what it saved.

The idea of `torch.utils.checkpoint` without reentrance, with less of the host's time: a number stands for
what was saved, and no object. Training at small batches waits for the host, and what levers add to it is
their price there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from oomph.levers._shared.autocast import Autocast


def computed_again(
    name: str,
    forward: Callable[..., Any],
    args: tuple,
    kwargs: dict,
    first: contextlib.AbstractContextManager,
    again: contextlib.AbstractContextManager,
) -> Any:
    """Call `forward`, keeping nothing of what it saves; its arguments are kept.

    The backward pass calls it again, as far as it saves, when it needs the first of what was saved: once
    for each backward pass. `first` is around the first call, `again` around the others; autocast is in
    them as in the first. `name` is the module's, for errors.

    Raises:
        RuntimeError: in the backward pass, if the second call saves other tensors than the first.
    """
    if _is_watched():
        # Arguments that others store away, and modes that are the first call's: PyTorch's way knows them.
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


def _is_watched() -> bool:
    """Whether saved tensors go through somebody's hooks, or operators through somebody's mode."""
    return (
        torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        or torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
    )


class _Done(BaseException):
    """Everything that was saved is there: the rest of the forward pass is not needed.

    No `except Exception` of a module swallows it.
    """


class _Call:
    """One call: what it saved is a number until the backward pass asks for it."""

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
        """What the second call saved; it is let go, as a backward pass asks once."""
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
            if number == len(kinds):  # it swallowed what ends it
                raise self._unlike(f"it saves more than {number} tensors")
            if kinds[number] != (tensor.shape, tensor.dtype):
                raise self._unlike(
                    f"its saved tensor {number} was {_kind(kinds[number])} and is now "
                    f"{_kind((tensor.shape, tensor.dtype))}"
                )
            if tensor.requires_grad:
                # Its node would hold it, and it its node.
                tensor = tensor.detach()
            saved.append(tensor)
            if len(saved) == len(kinds):
                raise _Done
            return tensor

        # What an earlier backward pass left goes before there is more.
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
            f"{self.name} did something else when it was computed again than in the forward pass: {what}. "
            "Leave it out of the plan (oomph checkpoint)"
        )


def _kind(kind: tuple[torch.Size, torch.dtype]) -> str:
    return f"{str(kind[1]).removeprefix('torch.')} {list(kind[0])}"


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
