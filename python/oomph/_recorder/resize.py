"""Makes a job smaller or larger, to measure what it needs: for `oomph fit` only, never for a plan.

Cuts or repeats the batches of the script's data loaders to another batch size or length, and
drops some of the repeated blocks of its models. For inference without a data loader, it changes the
arguments of its models. The results are meaningless, but the memory is not.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.utils.data import dataloader

from oomph._import_hooks import on_import


class Resize:
    """How the job differs; `None` keeps a size."""

    def __init__(
        self,
        batch: int | None = None,
        length: int | None = None,
        layers: float | None = None,
        height: int | None = None,
        width: float | None = None,
        separable: bool | None = None,
        member: int | None = None,
    ) -> None:
        """`batch` samples, sequences of `length`, the share `layers` of the repeated blocks, images of
        `height` rows (columns scale likewise), the share `width` of each layer's width, depthwise separable
        convolutions, and how many sizes smaller in the model's family."""
        self.batch, self.length, self.layers, self.height = batch, length, layers, height
        self.width, self.separable, self.member = width, separable, member
        self.became: list[str] = []
        """What the script's models have become, where that is another architecture."""
        self._known: set[int] = set()
        self._inside = False
        self._loaded = False

    def install(self) -> None:
        """Torch has just been imported."""
        if (self.batch, self.length, self.height) != (None, None, None):
            original = dataloader._BaseDataLoaderIter.__next__

            def resized(iterator: Any) -> Any:
                self._loaded = True
                return self._resize(original(iterator))

            dataloader._BaseDataLoaderIter.__next__ = resized
            self._resize_calls(torch.nn.Module, "__call__")
            on_import(
                "transformers.generation.utils",
                lambda module: self._resize_calls(module.GenerationMixin, "generate"),
            )
        if self.layers is not None:
            nn_module.register_module_forward_pre_hook(self._cut)
        self._install_relatives()

    def _install_relatives(self) -> None:
        from oomph._recorder import smaller_models

        if self.width is not None:
            share = self.width

            def narrow(model: torch.nn.Module) -> None:
                smaller_models.narrow(model, share)
                self.became.append(f"{share:g} of the width")

            smaller_models.once_a_model(narrow)
        if self.separable:
            separable = smaller_models.Separable()

            def separate(model: torch.nn.Module) -> None:
                separable.change(model)
                if separable.replaced:
                    self.became = [f"{separable.replaced} depthwise separable convolutions"]

            smaller_models.once_a_model(separate)
        if self.member is not None:
            member = smaller_models.Member(self.member)
            self.became = member.became
            member.install()

    def _resize_calls(self, owner: Any, name: str) -> None:
        """The outermost calls of an inference script without a data loader."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self._loaded:
                return original(model, *args, **kwargs)
            self._inside = True
            try:
                args, kwargs = self._resize((args, kwargs))
                return original(model, *args, **kwargs)
            finally:
                self._inside = False

        setattr(owner, name, call)

    def _resize(self, batch: Any) -> Any:
        size = batch_size(batch)

        def resize(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dim() == 0:
                return value
            if self.batch is not None and value.shape[0] == size:
                value = _resized(value, 0, self.batch)
            if self.length is not None and is_sequence(value):
                value = _resized(value, 1, self.length)
            if self.height is not None and is_image(value):
                height, width = value.shape[2:]
                value = _resized(value, 2, self.height)
                value = _resized(value, 3, max(1, round(width * self.height / height)))
            return value

        return _mapped(resize, batch)

    def _cut(self, module: torch.nn.Module, args: Any) -> None:
        if id(module) in self._known:
            return
        for container in list(module.modules()):
            self._known.add(id(container))
            if not isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential)):
                continue
            blocks = [child for child in container if next(child.children(), None) is not None]
            if len(blocks) < 2 or len(blocks) != len(container):
                continue
            kept = max(1, math.ceil(len(blocks) * self.layers))  # type: ignore[operator]
            for block in blocks[kept:]:
                for p in block.parameters():
                    p.data, p.grad = p.data.new_empty(0), None
            del container[kept:]


def batch_size(batch: Any) -> int:
    """The first dimension of the first tensor in `batch`; 0 without one."""
    return next(iter(_first_dimensions(batch)), 0)


def _first_dimensions(values: Any) -> list[int]:
    """Of each tensor in `values`."""
    found: list[int] = []

    def note(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            found.append(value.shape[0])
        return value

    _mapped(note, values)
    return found


def is_sequence(value: Any) -> bool:
    """Whether `value` holds sequences of integers: tokens, masks, labels of tokens."""
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 2
        and not value.is_floating_point()
        and isinstance(value.shape[1], int)  # a nested tensor's lengths are a symbol
        and value.shape[1] > 1
    )


def is_image(value: Any) -> bool:
    """Whether `value` holds images: samples, channels, rows, columns."""
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 4
        and value.is_floating_point()
        and all(isinstance(size, int) and size > 1 for size in value.shape[2:])
    )


def sizes_of_call(arguments: Any, returned: int) -> dict[str, int]:
    """As `sizes`, of a model that `returned` so many rows.

    Where samples lie one behind the other in the first tensor, as bags or sequences of unequal length, as many rows come back as another
    argument has, such as the bags' offsets: these are the batch, and have no one length.
    """
    found = sizes(arguments)
    if found.get("batch", 0) > returned > 1 and returned in _first_dimensions(arguments):
        return dict(batch=returned)
    return found


def sizes(arguments: Any) -> dict[str, int]:
    """The sizes of a model's arguments that could grow: `batch`, `length`, `height`, as far as they
    exist."""
    heights: list[int] = []

    def note(value: Any) -> Any:
        if is_image(value):
            heights.append(value.shape[2])
        return value

    _mapped(note, arguments)
    found = dict(
        batch=batch_size(arguments),
        length=sequence_length(arguments),
        height=heights[0] if heights else 0,
    )
    return {name: size for name, size in found.items() if size}


def sequence_length(batch: Any) -> int:
    """The length of the sequences in `batch`; 0 without any."""
    lengths: list[int] = []

    def note(value: Any) -> Any:
        if is_sequence(value):
            lengths.append(value.shape[1])
        return value

    _mapped(note, batch)
    return lengths[0] if lengths else 0


def _resized(value: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    index = torch.arange(size, device=value.device) % value.shape[dim]
    return value.index_select(dim, index)


def _mapped(function: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(function, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(function, item) for item in value)
    if isinstance(value, dict):
        # A dictionary of a class of its own keeps it.
        changed = {key: _mapped(function, item) for key, item in value.items()}
        return changed if type(value) is dict else type(value)(changed)
    return value
