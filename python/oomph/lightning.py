"""Lightning: computes batches that do not fit in parts, and changes nothing else.

::

    trainer = lightning.Trainer(callbacks=[oomph.lightning.MemoryCallback()])

With automatic optimization, one optimizer, one device and `accumulate_grad_batches=1`: make the batch
as large as a step needs, and let the callback split it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from oomph._older_python import zip
from oomph._training import nested
from oomph._training.batch_shrinker import BatchShrinker
from oomph._training.errors import Refused
from oomph._training.ladder import Ladder, Rung
from oomph._training.loss_weights import WeightFunction, weight_function
from oomph._training.memory_model import GpuMemory
from oomph._training.size_limit import GROW_AFTER
from oomph._training.step_state import StepState


class MemoryCallback(Callback):
    """Retries optimizer steps that run out of memory, in parts; logs memory with the module's logger.

    `training_step` must return a mean loss over samples, or over what `weight` counts ("samples",
    "tokens", or a function of a part). It logs the values of the last part.
    """

    def __init__(
        self,
        *,
        weight: str | WeightFunction = "samples",
        rungs: Ladder | Sequence[Rung] | None = None,
        coupled: str = "refuse",
        protect: str = "auto",
        log_memory: bool = True,
        grow_after: int = GROW_AFTER,
    ) -> None:
        """`weight`, `rungs`, `coupled`, `protect` and `grow_after` are those of `TrainStep`."""
        self._weight = weight_function(weight)
        self._shrinker = BatchShrinker(rungs, coupled, "batch", grow_after)
        self._protect = protect
        self._log_memory = log_memory
        self._rest: list[tuple[Any, float]] = []
        self._size = 0
        self.errors = self._shrinker.errors
        """The first lines of the errors that were survived."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Intercept the module's step."""
        if trainer.world_size > 1 or trainer.accumulate_grad_batches != 1:
            raise Refused(
                "oomph.lightning.MemoryCallback works with one device and accumulate_grad_batches=1 "
                f"(found {trainer.world_size} and {trainer.accumulate_grad_batches}): make the "
                "batch that many times larger instead; the callback splits it as memory requires"
            )
        if not pl_module.automatic_optimization:
            raise Refused(
                "manual optimization: call oomph.TrainStep in training_step instead of this callback"
            )
        self._trainer, self._module = trainer, pl_module
        self._state = StepState(pl_module, [pl_module.device])
        self._gpu_memory = GpuMemory(pl_module.device)
        self._shrinker.bind(pl_module, self._gpu_memory)
        self._own = (pl_module.training_step, pl_module.backward, pl_module.optimizer_step)
        pl_module.training_step = self._training_step
        pl_module.backward = self._backward
        pl_module.optimizer_step = self._optimizer_step

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Restore the module."""
        for name in ("training_step", "backward", "optimizer_step"):
            pl_module.__dict__.pop(name, None)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """Log memory as the module logs its losses."""
        if self._log_memory and self._gpu_memory.measures:
            pl_module.log("memory/allocated", float(self._gpu_memory.allocated()))
            pl_module.log("memory/peak", float(self._gpu_memory.peak()))

    def _training_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss of the first part; the others run in backward, which frees memory as it goes."""
        size = nested.batch_size(batch)
        self._size = size
        parts = self._shrinker.parts(size)
        self._arguments = (args, kwargs)
        self._rest = []
        if parts == 1:
            with self._shrinker.forward():
                return self._own[0](batch, *args, **kwargs)
        cut = [nested.part(batch, a, b, size) for a, b in nested.bounds(size, parts)]
        weights = [float(self._weight(part)) for part in cut]
        shares = [(p, w / sum(weights)) for p, w in zip(cut, weights, strict=True) if w]
        self._rest = shares[1:]
        return self._scaled(*shares[0])

    def _scaled(self, part: Any, share: float) -> Any:
        args, kwargs = self._arguments
        with self._shrinker.forward():
            output = self._own[0](part, *args, **kwargs)
        if isinstance(output, torch.Tensor):
            return output * share
        if output is None:
            raise TypeError("training_step returned no loss for a part of the batch")
        return {**output, "loss": output["loss"] * share}

    def _backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self._own[1](loss, *args, **kwargs)
        for part, share in self._rest:
            plugin = self._trainer.precision_plugin
            with plugin.train_step_context():
                output = self._scaled(part, share)
            part_loss = output if isinstance(output, torch.Tensor) else output["loss"]
            scaler = getattr(plugin, "scaler", None)
            self._own[1](scaler.scale(part_loss) if scaler is not None else part_loss)
            del output, part_loss

    def _optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        """The whole step: the closure makes gradients, then the optimizer steps."""
        self._state.save()
        self._shrinker.begin()
        inner = getattr(optimizer, "optimizer", optimizer)
        self._shrinker.until_it_fits(
            lambda: self._attempt(epoch, batch_idx, optimizer, inner, optimizer_closure),
            self._state.restore,
            lambda: self._size,
        )

    def _attempt(self, epoch: int, number: int, optimizer: Any, inner: Any, closure: Any) -> None:
        """Gradients, then the atomic update."""
        guard = self._shrinker.guard(inner, self._protect)
        own, kept = inner.step, inner.__dict__.get("step")

        def whole(closure: Callable[[], Any] | None = None) -> Any:
            result = closure() if closure is not None else None
            guard.step(own)
            return result

        inner.step = whole
        try:
            self._own[2](epoch, number, optimizer, closure)
        finally:
            if kept is None:
                del inner.step
            else:
                inner.step = kept
