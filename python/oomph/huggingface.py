"""Hugging Face `Trainer`: computes batches that do not fit in parts, and changes nothing else.

::

    trainer = Trainer(…)
    trainer.add_callback(oomph.huggingface.MemoryCallback(trainer))
    trainer.train()

`per_device_train_batch_size`, `gradient_accumulation_steps`, the learning rate and its schedule do
not change; only the part of a batch in memory at a time does. The Trainer's `auto_find_batch_size`
restarts training with another batch size instead; leave it off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import TrainerCallback

from oomph._older_python import zip
from oomph._training import nested
from oomph._training.batch_shrinker import BatchShrinker
from oomph._training.errors import Refused
from oomph._training.ladder import Ladder, Rung
from oomph._training.loss_weights import samples, tokens
from oomph._training.memory_model import GpuMemory
from oomph._training.size_limit import GROW_AFTER
from oomph._training.step_state import StepState


class MemoryCallback(TrainerCallback):
    """Retries training steps that run out of memory, in smaller parts; logs memory with the loss.

    An error in any micro-batch of an accumulation undoes what was accumulated, buffers and random
    states, and computes the micro-batches since the last optimizer step again, in more parts. Parts are
    weighted exactly: by what the Trainer divides by (`num_items_in_batch`), else by labelled tokens,
    else by samples. One process with one GPU; raises `Refused` otherwise.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        rungs: Ladder | Sequence[Rung] | None = None,
        coupled: str = "refuse",
        protect: str = "auto",
        grow_after: int = GROW_AFTER,
    ) -> None:
        """`rungs`, `coupled` and `protect` are those of `TrainStep`; `grow_after` counts micro-batches."""
        if trainer.args.world_size > 1 or trainer.args.n_gpu > 1:
            raise Refused(
                "steps of several processes or GPUs cannot be retried inside the Trainer, whose "
                "collectives run in backward. Use oomph.TrainStep with DistributedDataParallel in "
                "a loop of your own, or find a batch size first: oomph.find_batch_size."
            )
        self._trainer = trainer
        self._shrinker = BatchShrinker(rungs, coupled, "per_device_train_batch_size", grow_after)
        self._protect = protect
        self._scale: float | None = None
        self._window: list[tuple[Any, Any]] = []
        self._state: StepState | None = None
        self._own_step: Callable[..., Any] | None = None
        self.errors = self._shrinker.errors
        """The first lines of the errors that were survived."""

    # ---- the Trainer's events ----

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Intercept the Trainer's step."""
        trainer = self._trainer
        model = trainer.model
        device = next(model.parameters()).device
        self._model = model
        self._state = StepState(model, [device])
        self._gpu_memory = GpuMemory(device)
        self._shrinker.bind(model, self._gpu_memory)
        self._training_step, self._compute_loss = trainer.training_step, trainer.compute_loss
        trainer.training_step, trainer.compute_loss = self._step, self._scaled_loss

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the Trainer."""
        for name in ("training_step", "compute_loss"):
            self._trainer.__dict__.pop(name, None)
        self._window.clear()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the optimizer's step atomic."""
        wrapper = self._trainer.optimizer
        optimizer = getattr(wrapper, "optimizer", wrapper)
        if getattr(wrapper, "scaler", None) is not None:
            return  # accelerate patches the step itself to see whether the scaler skipped it
        guard, own = self._shrinker.guard(optimizer, self._protect), optimizer.step
        self._own_step = optimizer.__dict__.get("step")

        def whole(*arguments: Any, **named: Any) -> None:
            guard.step(own)

        optimizer.step = whole

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove the wrapper."""
        optimizer = getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)
        if "step" in optimizer.__dict__:
            if self._own_step is None:
                del optimizer.step
            else:
                optimizer.step = self._own_step
        self._own_step = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add memory to the logs, for the reporters that run after this callback."""
        if logs is not None and self._gpu_memory.measures:
            logs["memory/allocated"] = self._gpu_memory.allocated()
            logs["memory/reserved"] = self._gpu_memory.reserved()
            logs["memory/peak"] = self._gpu_memory.peak()

    # ---- a step ----

    def _scaled_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with self._shrinker.forward():
            result = self._compute_loss(model, inputs, *args, **kwargs)
        if self._scale is None:
            return result
        if isinstance(result, tuple):
            return (result[0] * self._scale, *result[1:])
        return result * self._scale

    def _step(self, model: Any, inputs: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        assert self._state is not None
        if all(p.grad is None for p in self._model.parameters()):
            self._window = []
            self._state.save()
            self._shrinker.begin()
        self._window.append((inputs, num_items_in_batch))
        todo = self._window[-1:]

        def attempt() -> Any:
            loss = None
            try:
                for inputs, items in todo:
                    loss = self._in_parts(model, inputs, items, kwargs)
            finally:
                self._scale = None
            return loss

        state = self._state

        def undo() -> None:
            state.restore()
            todo[:] = self._window

        size = nested.batch_size(inputs)
        return self._shrinker.until_it_fits(attempt, undo, lambda: size)

    def _in_parts(self, model: Any, inputs: Any, items: Any, kwargs: Any) -> Any:
        size = nested.batch_size(inputs)
        parts = self._shrinker.parts(size)
        if parts == 1:
            return self._training_step(model, dict(inputs), items, **kwargs)
        cut = [nested.part(inputs, a, b, size) for a, b in nested.bounds(size, parts)]
        summed = items is not None and (
            self._trainer.model_accepts_loss_kwargs or self._trainer.compute_loss_func is not None
        )
        weigh = self._weight(inputs)
        weights = [weigh(part) for part in cut]
        total = None
        for part, weight in zip(cut, weights, strict=True):
            if not weight:
                continue
            # A loss divided by the items of the whole batch adds up by itself.
            self._scale = None if summed else weight / sum(weights)
            loss = self._training_step(model, dict(part), items, **kwargs)
            total = loss if total is None else total + loss
        return total

    def _weight(self, inputs: Any) -> Callable[[Any], float]:
        labels = inputs.get("labels") if hasattr(inputs, "get") else None
        if isinstance(labels, torch.Tensor) and labels.ndim == 2 and not labels.is_floating_point():
            name = type(self._model).__name__
            causal = "CausalLM" in name or "LMHead" in name
            return tokens("labels", shift=causal)  # type: ignore[return-value]
        return samples
