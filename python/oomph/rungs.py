"""What to do when even one sample at a time does not fit: levers, tried in order.

A rung is any object with a `name`, `apply(model)` and `undo(model)`; it must not change results
beyond what its documentation says. `CheckpointBlocks` comes with the library.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from oomph.coupled import changes_statistics

log = logging.getLogger("oomph")


@runtime_checkable
class Rung(Protocol):
    """A lever that makes a step need less memory."""

    name: str

    def apply(self, model: nn.Module) -> None:
        """Pull the lever; raise `Unsuitable` where the model has nothing to pull it on."""

    def undo(self, model: nn.Module) -> None:
        """Leave the model as it was before `apply`."""


class Unsuitable(Exception):
    """The rung does nothing for this model; the message says why. The next one is tried."""


def next_rung(rungs: list[Rung], model: nn.Module) -> Rung | None:
    """Take rungs off the front of `rungs` until one applies to `model`; that one, or None."""
    while rungs:
        rung = rungs.pop(0)
        try:
            rung.apply(model)
        except Unsuitable as error:
            log.info("%s: %s", rung.name, error)
            continue
        return rung
    return None


class CheckpointBlocks:
    """Activation checkpointing of a model's repeated blocks: forward runs again in backward.

    Results are the same to the bit: the random state is restored, and blocks that keep statistics
    of their inputs (BatchNorm in training) are left out, as a second forward would count twice.
    Models of Hugging Face are switched by their own method.
    """

    name = "activation checkpointing"

    def __init__(self, blocks: Sequence[nn.Module] | None = None) -> None:
        """`blocks`: which ones; by default the largest group of like children."""
        self._chosen = blocks
        self._wrapped: list[tuple[nn.Module, Any]] = []
        self._by_method = False

    def apply(self, model: nn.Module) -> None:
        """Checkpoint the blocks."""
        enable = getattr(model, "gradient_checkpointing_enable", None)
        if self._chosen is None and callable(enable):
            if getattr(model, "is_gradient_checkpointing", False):
                raise Unsuitable("it is on already")
            enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            self._by_method = True
            return
        blocks = self._chosen if self._chosen is not None else repeated_blocks(model)
        blocks = [block for block in blocks if not changes_statistics(block)]
        if not blocks:
            raise Unsuitable(f"{type(model).__name__} has no repeated blocks that it could be for")
        for block in blocks:
            self._wrapped.append((block, block.__dict__.get("forward")))
            block.forward = _checkpointed(block.forward)  # type: ignore[method-assign]

    def undo(self, model: nn.Module) -> None:
        """Take it off again."""
        if self._by_method:
            model.gradient_checkpointing_disable()  # type: ignore[operator]
            self._by_method = False
        for block, own in self._wrapped:
            if own is None:
                del block.forward
            else:
                block.forward = own
        self._wrapped.clear()


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)

    return run


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that a model repeats: the like children of one container, with most parameters."""
    best: list[nn.Module] = []
    most = 0
    for group in _groups(model):
        size = sum(p.numel() for block in group for p in block.parameters())
        if size > most:
            best, most = group, size
    return best


def _groups(model: nn.Module) -> Iterator[list[nn.Module]]:
    for module in model.modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        kinds: dict[type[nn.Module], list[nn.Module]] = {}
        for child in module.children():
            # A single operator saves nothing: its input is what would be kept.
            if next(child.children(), None) is not None:
                kinds.setdefault(type(child), []).append(child)
        yield from (group for group in kinds.values() if len(group) > 1)
