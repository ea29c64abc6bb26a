"""Adam with its state in 8 bits, by torchao."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job

LEFT_OUT = ("foreach", "fused", "capturable", "maximize", "differentiable")
"""Options of PyTorch's Adam that torchao's lacks; all but `maximize` do not change results."""


class Optimizer8bit(Lever):
    """`torch.optim.Adam` and `AdamW` become torchao's, whose state takes a quarter of the memory.

    Needs: torchao, and Triton as PyTorch brings it (the step is compiled at the first use, some
    seconds). Changes: the two moments of each parameter of 4096 elements or more are kept in 8 bits,
    a scale for every 256. Results: close, not the same.
    """

    name = "optimizer_8bit"

    def __init__(self) -> None:
        """Raises `CannotApply` without torchao."""
        super().__init__()
        if importlib.util.find_spec("torchao") is None:
            raise self.refuse(
                "torchao is not installed. Install it (pip install torchao), or plan without this "
                "lever (oomph fit --forbid optimizer_8bit)"
            )

    def install(self, job: Job) -> None:
        """Replace the two classes where scripts find them."""
        for name in ("Adam", "AdamW"):
            original = getattr(torch.optim, name)
            replacement = self._replacement(original)
            for place in (torch.optim, __import__(original.__module__, fromlist=[name])):
                setattr(place, name, replacement)

    def _replacement(self, original: type) -> type:
        lever = self

        class Metaclass(type(original)):  # type: ignore[misc]
            """Calls create torchao's optimizer; subclasses derive from the original."""

            def __call__(cls, params: Any, *args: Any, **kwargs: Any) -> Any:
                if cls is not Replaced:
                    return super().__call__(params, *args, **kwargs)
                return lever._make(original, params, *args, **kwargs)

            def __instancecheck__(cls, instance: Any) -> bool:
                if cls is not Replaced:
                    return super().__instancecheck__(instance)
                return isinstance(instance, (original, *_torchao(original)))

        class Replaced(original, metaclass=Metaclass):  # type: ignore[valid-type, misc]
            __doc__ = original.__doc__

        functools.update_wrapper(Replaced, original, updated=())
        return Replaced

    def _make(self, original: type, params: Any, lr: Any = 1e-3, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("maximize"):
            raise self.refuse("torchao's optimizer cannot maximize")
        if original.__name__ == "Adam" and kwargs.pop("decoupled_weight_decay", False):
            original = torch.optim.AdamW
        for option in LEFT_OUT:
            kwargs.pop(option, None)
        (kind,) = _torchao(original)
        if isinstance(lr, torch.Tensor):
            lr = lr.item()
        params = list(params)
        if params and isinstance(params[0], tuple):  # named parameters
            params = [p for _, p in params]
        optimizer = kind(params, lr, *args, **kwargs)
        # PyTorch's lets scripts assign a learning rate; torchao's wants its own tensor filled.
        optimizer.register_step_pre_hook(_learning_rates)
        self.applied += 1
        return optimizer

    def finish(self) -> None:
        """Report why nothing was replaced."""
        if not self.applied:
            self.add_note("the script did not create torch.optim.Adam or AdamW")


def _torchao(original: type) -> tuple[type]:
    from torchao import optim

    return (optim.AdamW8bit if original.__name__ == "AdamW" else optim.Adam8bit,)


def _learning_rates(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], torch.Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32)


LEVER = Optimizer8bit
