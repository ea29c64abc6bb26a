"""Autocast around the forward pass; with gradient scaling for fp16."""

from __future__ import annotations

from typing import Any

import torch

from oomph.levers._shared import switches
from oomph.levers._shared.base import Lever
from oomph.levers._shared.half import DTYPES, HALF, full
from oomph.levers._shared.job import Backward, Clipped, Job, Proceed


class MixedPrecision(Lever):
    """Products and convolutions in 16 bits, the rest in 32.

    Needs: a model in fp32; a GPU with bf16 for `bf16` (Ampere or later). Changes: activations take
    about half, and products are faster; weights, gradients and optimizer state stay in fp32, and so
    do normalizations and losses (autocast's lists) and the outputs of the model. For fp16 the
    gradients are scaled up in the backward pass and down before they are clipped or used, and a step
    with infinite ones is skipped. Results: other numerics.

    bf16 becomes the default precision of accelerate, Hugging Face's `Trainer` and Lightning's, by the variables that they
    have for it. What they then run in bf16 is left to them.

    Inert for a script that uses autocast itself, or has its weights in 16 bits.
    """

    name = "mixed_precision"

    def __init__(self, dtype: str) -> None:
        """`dtype`: `bf16` or `fp16`."""
        super().__init__()
        if dtype not in DTYPES:
            raise self.refuse(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
        self.dtype = DTYPES[dtype]
        self.note = "no model in fp32 was called"
        self.context: Any = None
        self.scaler: Any = None
        self.lowered = False
        """Whether a forward pass was in 16 bits since the last backward pass."""
        self.scaled = False
        """Whether the gradients are scaled, by this lever."""
        self.own_scaler = False
        """Whether the script scales by itself."""
        self.unscaled: set[int] = set()
        self.update_due = False
        self.by_default = False
        """Whether frameworks compute in `dtype` where neither the script nor the user says in what."""

    def install(self, job: Job) -> None:
        """Around forward passes; for fp16 also around what meets gradients."""
        self.job = job
        # With fp16, a loop of accelerate's would have to clip by its means.
        if self.dtype == torch.bfloat16:
            self.by_default = switches.compute_in_bf16()
        job.on_model.append(self._check)
        job.on_enter.append(self._enter)
        job.on_leave.append(self._leave)
        if self.dtype == torch.float16:
            job.on_backward.append(self._backward)
            job.around_clip.append(self._clip)
            job.around_step.append(self._step)
            self._watch_own_scaler()

    # ---- forward ----

    def _check(self, module: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        on_gpu = any(p.device.type == "cuda" for p in module.parameters())
        if (
            on_gpu
            and self.dtype == torch.bfloat16
            and not torch.cuda.is_bf16_supported(including_emulation=False)
        ):
            raise self.refuse(
                f"{torch.cuda.get_device_name()} does not support bf16. Use fp16",
            )

    def _enter(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        first = next((p for p in module.parameters() if p.is_floating_point()), None)
        if first is None:  # a loss: in fp32, as its inputs
            return
        if torch.is_autocast_enabled(first.device.type) or hasattr(module, "_original_forward"):
            own = switches.autocasts(module) if self.by_default else None
            if own is None:
                self.add_note("the script uses autocast itself")
            else:
                self.switch = own
                self.note = self.note if self.applied else None
                self.applied += 1
            return
        if any(p.dtype in HALF for p in module.parameters()):
            self.add_note(f"the weights of {type(module).__name__} are already in 16 bits")
            return
        if not self.applied:
            self.note = None
        self.applied += 1
        self.lowered = True
        self.context = torch.autocast(first.device.type, dtype=self.dtype)
        self.context.__enter__()

    def _leave(self, module: torch.nn.Module, output: Any) -> Any:
        if self.context is None:
            return None
        self.context.__exit__(None, None, None)
        self.context = None
        return full(output)

    # ---- scaling ----

    def _watch_own_scaler(self) -> None:
        from torch.amp import GradScaler

        original, lever = GradScaler.scale, self

        def scale(scaler: Any, outputs: Any) -> Any:
            if scaler is not lever.scaler and scaler.is_enabled():
                lever.own_scaler = True
            return original(scaler, outputs)

        GradScaler.scale = scale  # type: ignore[method-assign]

    def _backward(self, call: Backward) -> None:
        if self.own_scaler or not (self.lowered or self.scaled):
            return
        self.lowered = False
        if self.scaler is None:
            self.scaler = torch.amp.GradScaler(call.tensors[0].device.type)
            self.scaler.oomph_own = True
        if self.update_due:
            self.scaler.update()
            self.update_due = False
            self.unscaled.clear()
        self.scaled = True
        for index, tensor in enumerate(call.tensors):
            call.scale(index, self.scaler.scale(torch.ones((), device=tensor.device)))

    def _unscale(self, optimizer: torch.optim.Optimizer) -> None:
        has_gradients = any(p.grad is not None for g in optimizer.param_groups for p in g["params"])
        if id(optimizer) not in self.unscaled and has_gradients:
            self.scaler.unscale_(optimizer)
            self.unscaled.add(id(optimizer))

    def _clip(self, parameters: Clipped, proceed: Proceed) -> Any:
        if self.scaled and not self.update_due:
            clipped = {id(p) for p in parameters}
            for optimizer in list(self.job.optimizers):
                if any(id(p) in clipped for g in optimizer.param_groups for p in g["params"]):
                    self._unscale(optimizer)
        return proceed()

    def _step(self, optimizer: torch.optim.Optimizer, proceed: Proceed) -> Any:
        closure, result = self.job.closure, None
        if closure is not None and not self.own_scaler:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise self.refuse(
                    "LBFGS evaluates its closure several times per step, which cannot be scaled"
                )
            # The backward pass is inside; the step comes after it.
            with torch.enable_grad():
                result = closure()
        if not self.scaled or self.own_scaler:
            return (
                proceed() if closure is None or self.own_scaler else (optimizer.step(), result)[1]
            )
        # This calls the optimizer's own step, unless gradients are infinite.
        stepped = self.scaler.step(optimizer) if self._has_gradients(optimizer) else None
        self.update_due = True
        return result if closure is not None else stepped

    def _has_gradients(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(p.grad is not None for g in optimizer.param_groups for p in g["params"])

    def finish(self) -> None:
        """Report whose scaler was used."""
        if self.own_scaler and self.applied:
            self.add_note("gradients are scaled by the script's own GradScaler")


LEVER = MixedPrecision
