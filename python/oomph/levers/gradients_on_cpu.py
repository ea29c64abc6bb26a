"""Gradients wait in host memory until the optimizer steps."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from oomph._older_python import zip
from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Backward, Clipped, Job, nested
from oomph.levers._shared.parameter_steps import (
    AT_ONCE,
    LEAST_GRADIENT,
    NOT_CLEARED,
    AroundStep,
    OnGradient,
    bytes_at_once,
    cleared,
    only_per_parameter,
    step_only,
    what_is_left,
)
from oomph.levers._shared.streams import BothWays


class GradientsOnCpu(Lever):
    """Copies each gradient to pinned host memory as soon as it is complete, and fetches it for the step.

    Needs: optimizers whose update of a parameter depends on that parameter alone, and host memory for the gradients. Changes:
    gradients never exist all at once on the GPU, neither in the backward pass nor in the step. Clipping knows their norms, and
    what it multiplies or clamps them by takes effect when they come back. Accumulation adds to what is fetched for it.
    Results: the same to rounding. The script sees no gradients of 256 KiB or more after `backward()`.

    Refused by name: gradient scaling, L-BFGS, unknown optimizers, distributed training.
    """

    name = "gradients_on_cpu"

    def __init__(self) -> None:
        """It has no parameters."""
        super().__init__()
        self._waiting: Any = WeakTensorKeyDictionary()
        """Gradients on the host, by parameter."""
        self._spent: Any = WeakTensorKeyDictionary()
        """Parameters that have stepped, whose gradients the script has not cleared since."""
        self._homes: Any = WeakTensorKeyDictionary()
        """The memory there, by parameter."""
        self.streams = BothWays()
        self._leaving: deque[tuple[torch.Tensor, Any]] = deque()
        """On their way to the host."""
        self._stepped = False

    def install(self, job: Job) -> None:
        """Hook the parameters when an optimizer has them, and go inside of the hooks that PyTorch puts around its step."""
        self.job = job
        job.gradients_elsewhere = self
        self._hooks = OnGradient(self._send)
        job.on_optimizer.append(self._optimizer)
        job.on_backward.append(self._before_backward)
        job.around_zero_grad.append(self._zero_grad)
        job.around_clip.append(self._clip)
        job.around_scaler.append(self._scaler)
        AroundStep(self._step).install()

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        only_per_parameter(self, optimizer, steps=False)
        self._hooks.of(optimizer)

    # ---- to the host ----

    def takes(self, p: torch.Tensor) -> bool:
        """Whether gradients of `p` may come here before autograd has them, for which nobody else waits."""
        mine = id(p) in self._hooks.hooked and p.is_cuda and p.nbytes >= LEAST_GRADIENT
        return mine and self.waits_alone(p)

    def waits_alone(self, p: torch.Tensor) -> bool:
        """Whether nobody else is told of the gradients of `p`."""
        hooks = len(getattr(p, "_post_accumulate_grad_hooks", None) or ())
        return hooks == (id(p) in self._hooks.hooked) and not p._backward_hooks

    def _send(self, p: torch.Tensor) -> None:
        grad = p.grad
        if (
            grad is None
            or not grad.is_cuda
            or grad.layout != torch.strided
            or grad.nbytes < LEAST_GRADIENT
        ):
            return
        p.grad = None
        self.take(p, grad)

    def take(self, p: torch.Tensor, grad: torch.Tensor) -> None:
        """Begin to copy a gradient of `p` to the host, with what waits there of earlier ones."""
        if p in self._spent:
            raise self.refuse(NOT_CLEARED)
        known = self._waiting.get(p)
        if known is not None:
            grad = known.here().add_(grad)
        host = self._homes.get(p)
        if host is None or host.dtype != grad.dtype:
            host = torch.empty(grad.shape, dtype=grad.dtype, device="cpu", pin_memory=True)
            self._homes[p] = host
        norm = torch.linalg.vector_norm(grad)
        away = self.streams(grad.device)[1]
        away.wait_stream(torch.cuda.current_stream(grad.device))
        with torch.cuda.stream(away):
            host.copy_(grad, non_blocking=True)
            done = away.record_event()
        self._waiting[p] = _Waiting(self, host, grad.device, norm)
        self._leaving.append((grad, done))
        del grad, known
        while sum(gone.nbytes for gone, _ in self._leaving) > AT_ONCE:
            self._settle_one()
        self.applied += 1

    def _settle_one(self) -> None:
        """The GPU's memory may be used again once it has been copied."""
        grad, done = self._leaving.popleft()
        torch.cuda.current_stream(grad.device).wait_event(done)

    def _settle(self) -> None:
        while self._leaving:
            self._settle_one()

    # ---- what looks at gradients ----

    def multiply(self, p: torch.Tensor, factor: Any) -> None:
        """Multiply the gradient of `p`, if it waits."""
        if p in self._waiting:
            self._waiting[p].change(lambda grad: grad.mul_(factor))

    def has(self, p: torch.Tensor) -> bool:
        """Whether the gradient of `p` waits on the host."""
        return p in self._waiting

    def _before_backward(self, call: Backward) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise self.refuse("gradients are reduced over several processes before a step")

    def _zero_grad(self, target: Any, proceed: Callable[[], Any]) -> Any:
        for p in cleared(target):
            self._waiting.pop(p, None)
            self._spent.pop(p, None)
        return proceed()

    def _clip(self, parameters: Clipped, proceed: Callable[[], Any]) -> Any:
        self._settle()
        limit, given = parameters.limit, parameters.given
        if not any(p in self._waiting for p in parameters):
            return proceed()
        if "clip_value" in given:
            for p in parameters:
                if p in self._waiting:
                    self._waiting[p].change(lambda grad: grad.clamp_(-limit, limit))
            return proceed()
        kind = float(given.get("norm_type", 2.0))
        norms = [
            self._waiting[p].norm(kind)
            if p in self._waiting
            else torch.linalg.vector_norm(p.grad, kind)
            for p in parameters
            if p in self._waiting or p.grad is not None
        ]
        total = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]), kind)
        if given.get("error_if_nonfinite") and not torch.isfinite(total):
            raise RuntimeError(
                f"The total norm of order {kind} for gradients from `parameters` is non-finite, so it cannot be clipped."
            )
        factor = (limit / (total + 1e-6)).clamp(max=1.0)
        for p in parameters if limit != float("inf") else ():
            if p in self._waiting:
                self.multiply(p, factor)
            elif p.grad is not None:
                p.grad.mul_(factor.to(p.grad.device))
        return total

    def _scaler(self, method: str, scaler: Any, proceed: Callable[[], Any]) -> Any:
        if scaler.is_enabled():
            raise self.refuse(
                "it scales gradients (GradScaler), which looks at all of them before a step; bf16 needs no scaling"
            )
        return proceed()

    # ---- the step ----

    def _step(self, optimizer: torch.optim.Optimizer, original: Callable[..., Any]) -> None:
        """Step all parameters whose gradients wait, some at a time; the script's own step has the others left."""
        self._settle()
        mine = [p for g in optimizer.param_groups for p in g["params"] if p in self._waiting]
        only_per_parameter(self, optimizer)
        self._stepped = self._stepped or bool(mine)
        parts = list(_parts(mine))
        weights = self.job.weights_elsewhere
        for index, part in enumerate(parts):
            for coming in (part, *parts[index + 1 : index + 2]):
                _fetch([self._waiting[p] for p in coming])
                if weights is not None:
                    weights.fetch(coming)
            if weights is not None:
                weights.come(part)
            for p in part:
                p.grad = self._waiting.pop(p).here()
            early = functools.partial(step_only, optimizer, {id(p) for p in part})
            nested(self.job.around_early_step, optimizer, part, early)
            for p in part:
                p.grad = None
                self._spent[p] = True
            if weights is not None:
                weights.leave(part)
        if weights is not None:
            weights.settle()
        what_is_left(optimizer, original)

    def finish(self) -> None:
        """Report why nothing moved."""
        if not self.applied:
            self.add_note("no parameter of an optimizer got a gradient of 256 KiB or more on a GPU")
        elif not self._stepped:
            self.add_note("no step of the script followed a backward pass")


class _Waiting:
    """A gradient on the host."""

    def __init__(
        self,
        lever: GradientsOnCpu,
        host: torch.Tensor,
        device: torch.device,
        norm: torch.Tensor,
    ) -> None:
        self.lever, self.host, self.device = lever, host, device
        self._norm: torch.Tensor | None = norm
        self._changes: list[Callable[[torch.Tensor], Any]] = []
        self.coming: tuple[torch.Tensor, Any] | None = None
        """On the GPU, and when it is there."""

    def change(self, change: Callable[[torch.Tensor], Any]) -> None:
        """Change it in place when it comes back."""
        self._norm = None
        self._changes.append(change)

    def norm(self, kind: float) -> torch.Tensor:
        """Its norm of this order."""
        if self._norm is not None and kind == 2.0:
            return self._norm
        return torch.linalg.vector_norm(self.here(), kind)

    def here(self) -> torch.Tensor:
        """It, as it is by now, on the GPU."""
        _fetch([self])
        assert self.coming is not None
        (grad, done), self.coming = self.coming, None
        torch.cuda.current_stream(self.device).wait_event(done)
        with torch.no_grad():
            for change in self._changes:
                change(grad)
        return grad


def _fetch(waiting: list[_Waiting]) -> None:
    """Begin to copy those to the GPU that are not on their way yet."""
    waiting = [one for one in waiting if one.coming is None]
    for device in {one.device for one in waiting}:
        some = [one for one in waiting if one.device == device]
        found, done = some[0].lever.streams.bring([one.host for one in some], device)
        for one, gradient in zip(some, found, strict=True):
            one.coming = gradient, done


def _parts(parameters: list[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    """Parameters that step together: of a sixteenth of all, but of 4 MiB at least."""
    most = bytes_at_once(parameters)
    part: list[torch.Tensor] = []
    for p in parameters:
        if part and sum(q.nbytes for q in part) + p.nbytes > most:
            yield part
            part = []
        part.append(p)
    if part:
        yield part


LEVER = GradientsOnCpu
