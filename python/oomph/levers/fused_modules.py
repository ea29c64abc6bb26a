"""Replaces modules of several operators by PyTorch's single kernel."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch.nn import functional

from oomph._older_python import zip
from oomph.levers._shared.base import Lever
from oomph.levers._shared.compiled import refuse_compiled
from oomph.levers._shared.forward import NamedModules, around_forward
from oomph.levers._shared.job import Job

Function = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]
"""`function(module, x)` is what the module does to `x`."""

TOLERANCE = 2e-5
"""Relative distance in fp32 up to which two computations count as equal to rounding."""


class FusedModules(Lever):
    """Activations and normalizations that consist of several operators become one kernel.

    Needs: modules of one tensor in and one out that compute the tanh form of GELU (`NewGELUActivation`
    of Hugging Face) or a root-mean-square normalization (`LlamaRMSNorm` and its like, or your own).
    Changes: one kernel instead of six or more, which saves its input and no intermediate results:
    less memory, and less time. Results: equal to rounding; under autocast, in the type of the values. The
    lever compares each module and its gradients with the kernel on the CPU with random values; it skips
    modules that compute something else, and says so.
    """

    name = "fused_modules"

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        self.places = NamedModules(modules)
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
                self._keep("they take arguments other than one tensor", name)
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
        """Count the modules, and report those that were skipped."""
        self.applied = len(self.used)
        if problem := self.places.problem():
            self.add_note(problem)
        self.left_alone = [name for names in self.kept.values() for name in names]
        for why, names in self.kept.items():
            self.add_note(f"{len(names)} skipped because {why}: {', '.join(names[:3])}")


def one_kernel(module: torch.nn.Module) -> Function | None:
    """The kernel that computes the same as `module`; None if there is none."""
    if isinstance(module, (torch.nn.GELU, torch.nn.RMSNorm)) or any(
        True for _ in module.children()
    ):
        return None
    parameters = dict(module.named_parameters())
    if not parameters:
        return _gelu if _same(module, _gelu, 64) else None
    plain = list(parameters) == ["weight"] and parameters["weight"].dim() == 1
    if plain and isinstance(_epsilon(module), float):
        return _rms_norm if _same(module, _rms_norm, parameters["weight"].numel()) else None
    return None


def _gelu(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def _rms_norm(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), module.weight, _epsilon(module))


def _epsilon(module: torch.nn.Module) -> float | None:
    """What is added to the mean square; None if the module does not say, which a kernel takes for
    another number in each type."""
    eps = getattr(module, "variance_epsilon", None)
    return getattr(module, "eps", None) if eps is None else eps


SCALES = (1.0, 1e-3, 30.0)
"""Of the values that are tried: an epsilon of another size shows in small ones, a limit in large ones."""


def _same(module: torch.nn.Module, function: Function, width: int) -> bool:
    """Whether both do the same on the CPU, where a virtual GPU has values too, in fp32: values and
    gradients, in training and in evaluation, of each row for itself."""
    generator = torch.Generator().manual_seed(0)

    def random(shape: Any) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cpu")

    try:
        with (
            # Leave the script's random state and its hooks on saved tensors alone.
            torch.random.fork_rng(devices=[]),
            torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            twin = copy.deepcopy(module).to("cpu", torch.float32)
            for p in twin.parameters():
                p.requires_grad_().data.copy_(random(p.shape))
            for training, shape, scale in product(
                (True, False), ((5, width), (2, 3, width)), SCALES
            ):
                twin.train(training)
                x = random(shape) * scale
                weights = random(shape)
                # Hooks are the script's, and see its calls only.
                theirs = _tried(twin, twin.forward, x, weights)
                mine = _tried(twin, lambda x: function(twin, x), x, weights)
                for a, b in zip(mine, theirs, strict=True):
                    if a.shape != b.shape or a.dtype != b.dtype:
                        return False
                    if not (a - b).norm() <= TOLERANCE * b.norm():
                        return False
    except Exception:  # whatever it is, it is not a function of one tensor alone
        return False
    return True


def _tried(
    module: torch.nn.Module, call: Callable[..., Any], x: torch.Tensor, weights: torch.Tensor
) -> list[torch.Tensor]:
    """The result for `x`, and the gradients of its sum by `weights`."""
    x = x.clone().requires_grad_()
    result = call(x)
    gradients = torch.autograd.grad(result, [x, *module.parameters()], weights)
    return [result.detach(), *gradients]


LEVER = FusedModules
