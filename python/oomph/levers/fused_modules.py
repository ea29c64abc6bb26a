"""Modules of several operators that PyTorch has one kernel for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from oomph.levers.base import Lever
from oomph.levers.checkpoint import refuse_compiled
from oomph.levers.forward import Places, around_forward
from oomph.levers.job import Job

Function = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]
"""`function(module, x)` is what the module does to `x`."""

TOLERANCE = 2e-5
"""Relative distance in fp32 up to which two ways of computing are the same but for rounding."""


class FusedModules(Lever):
    """Activations and normalizations that are written out in several operators become one kernel.

    Needs: modules of one tensor in and one out that compute the tanh form of GELU (`NewGELUActivation`
    of Hugging Face) or a root-mean-square normalization (`LlamaRMSNorm` and its like, and people's own).
    Changes: one kernel in place of six or more, which saves its input and nothing of what was in between:
    less memory, and less time. Results: equal to rounding. What a module computes is tried on the CPU
    with random values; one that does something else is left alone, and said so.
    """

    name = "fused_modules"
    order = 80  # inside of checkpointing, offloading and recomputation

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        self.places = Places(modules)
        self.kept: dict[str, list[str]] = {}
        self.used: set[str] = set()

    def install(self, job: Job) -> None:
        """Step in when a model is called first."""
        job.on_model.append(self._model)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        for name, module in self.places.take(named).items():
            refuse_compiled(self, name, named)
            function = one_kernel(module)
            if function is None:
                self._keep("no kernel of PyTorch does the same", name)
            else:
                around_forward(module, self._around(name, function), self.order)

    def _keep(self, why: str, name: str) -> None:
        names = self.kept.setdefault(why, [])
        if name not in names:
            names.append(name)

    def _around(self, name: str, function: Function) -> Callable[..., Any]:
        def around(
            module: torch.nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
        ) -> Any:
            if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
                self._keep("they take other arguments than one tensor", name)
                return forward(*args, **kwargs)
            weight = getattr(module, "weight", None)
            if isinstance(weight, torch.Tensor) and weight.dtype != args[0].dtype:
                # The result has the wider type then, by operators of their own.
                self._keep("weights and values have different types", name)
                return forward(*args, **kwargs)
            self.used.add(name)
            return function(module, args[0])

        return around

    def finish(self) -> None:
        """Count the modules, and say which were left alone."""
        self.applied = len(self.used)
        if problem := self.places.problem():
            self.add_note(problem)
        for why, names in self.kept.items():
            self.add_note(f"{len(names)} left as they are, as {why}: {', '.join(names[:3])}")

    @classmethod
    def by_hand(cls, modules: list[str]) -> str:
        """The functions to call."""
        return (
            f"# in {', '.join(modules[:3])}{', …' if len(modules) > 3 else ''}:\n"
            '# GELU by tanh:  return torch.nn.functional.gelu(x, approximate="tanh")\n'
            "#   (Hugging Face: config.activation_function or hidden_act = 'gelu_pytorch_tanh')\n"
            "# RMSNorm:       return torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight, eps)\n"
        )


def one_kernel(module: torch.nn.Module) -> Function | None:
    """What does the same as `module` in one kernel; None if nothing that is known here does."""
    if isinstance(module, (torch.nn.GELU, torch.nn.RMSNorm)) or any(
        True for _ in module.children()
    ):
        return None
    parameters = dict(module.named_parameters())
    if not parameters:
        return _gelu if _same(module, _gelu, 64) else None
    if list(parameters) == ["weight"] and parameters["weight"].dim() == 1:
        return _rms_norm if _same(module, _rms_norm, parameters["weight"].numel()) else None
    return None


def _gelu(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def _rms_norm(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    eps = getattr(module, "variance_epsilon", None)
    if eps is None:
        eps = getattr(module, "eps", None)
    return functional.rms_norm(x, (x.shape[-1],), module.weight, eps)


def _same(module: torch.nn.Module, function: Function, width: int) -> bool:
    """Whether both do the same on the CPU, where a virtual GPU has values too, in fp32."""
    try:
        twin = copy.deepcopy(module).to("cpu", torch.float32)
        # The script's random numbers are its own.
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for p in twin.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
            # Large and small values: an epsilon of another size shows in the small ones.
            for scale in (1.0, 1e-3):
                x = torch.randn(16, width, generator=generator) * scale
                mine, theirs = function(twin, x.clone()), twin(x.clone())
                if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                    return False
                if (mine - theirs).norm() > TOLERANCE * theirs.norm():
                    return False
    except Exception:  # whatever it is, it is not a function of one tensor alone
        return False
    return True


LEVER = FusedModules
