"""Splits batches inside the steps of frameworks' training loops.

Their own counting (steps, schedules, logs, accumulation over batches) does not change,
because they never see the parts.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from oomph._import_hooks import on_import
from oomph.levers._shared import switches
from oomph.levers._shared.splitting import CannotSplit, sample_layout


class SplittingLever(Protocol):
    """A lever that gives the script a batch in parts, as a framework's training asks it."""

    parts: int
    """Parts of a batch."""
    batch: Any
    """The batch in progress, else None."""
    job: Any
    """The `Job` that the lever is installed in."""
    refuse: Callable[..., BaseException]
    by_hand: Callable[..., str]
    switch: str | None
    """The framework's own arguments that come to the same, if any do."""
    switched: Iterator[int] | None
    """The numbers of the parts that come next, where the framework's own accumulation splits batches."""

    def external(self) -> AbstractContextManager[None]:
        """Within it, DataLoaders yield whole batches: a framework splits them."""

    def batch_of(self, samples: int, parts: int) -> Any:
        """A batch of so many samples, which a framework's step computes in parts."""

    def begin(self, batch: Any) -> None:
        """The next part of `batch` is computed."""

    def complete(self, batch: Any) -> None:
        """All parts of `batch` are computed."""


def install(lever: SplittingLever) -> None:
    """Wait for the frameworks to be imported."""
    on_import("transformers.trainer", functools.partial(_trainer, lever))
    on_import("accelerate.accelerator", functools.partial(_accelerate, lever))
    for package in ("lightning.pytorch", "pytorch_lightning"):
        on_import(f"{package}.loops.optimization.automatic", functools.partial(_lightning, lever))
        results = f"{package}.trainer.connectors.logger_connector.result"
        on_import(results, functools.partial(_logged, lever))
        on_import(f"{package}.loops.optimization.manual", functools.partial(_manual, lever))
        on_import(f"{package}.trainer.trainer", functools.partial(_within, lever, "fit"))


def _within(lever: SplittingLever, method: str, module: Any) -> None:
    """While `Trainer.fit` or `Trainer.train` runs, DataLoaders yield whole batches."""
    original = getattr(module.Trainer, method)

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        with lever.external():
            return original(*args, **kwargs)

    setattr(module.Trainer, method, run)


def _pieces(lever: SplittingLever, batch: Any) -> list[tuple[Any, int]]:
    try:
        return sample_layout(batch).split(batch, lever.parts)
    except CannotSplit as error:
        raise lever.refuse(str(error), manually=True) from None


def _trainer(lever: SplittingLever, module: Any) -> None:
    """Hugging Face: `Trainer.training_step` makes the forward and backward pass of one batch."""
    _within(lever, "train", module)
    original, train = module.Trainer.training_step, module.Trainer.train

    @functools.wraps(train)
    def accumulating(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        with switches.accumulating(lever, trainer):
            return train(trainer, *args, **kwargs)

    module.Trainer.train = accumulating

    @functools.wraps(original)
    def training_step(
        trainer: Any, model: Any, inputs: Any, num_items_in_batch: Any = None, **kwargs: Any
    ) -> torch.Tensor:
        def run(piece: Any) -> torch.Tensor:
            if num_items_in_batch is None:
                return original(trainer, model, piece, **kwargs)
            return original(trainer, model, piece, num_items_in_batch, **kwargs)

        if lever.batch is not None:  # a subclass called it within its own
            return run(inputs)
        if lever.switched is not None:
            return _part(lever, inputs, run, num_items_in_batch)
        # A model that takes the number of targets divides the sum of its loss by it.
        sums = num_items_in_batch is not None and bool(
            getattr(trainer, "model_accepts_loss_kwargs", False)
        )
        divided = ()
        if not sums and getattr(trainer, "compute_loss_func", None) is None:
            steps = trainer.args.gradient_accumulation_steps
            divided = (float(getattr(trainer, "current_gradient_accumulation_steps", steps)),)
        loss = _parts(lever, inputs, run, num_items_in_batch, sums=sums, divided=divided)
        found = switches.arguments(trainer, lever.parts, bool(divided))
        lever.switch = found and found[-1]
        return loss

    module.Trainer.training_step = training_step


def _lightning(lever: SplittingLever, module: Any) -> None:
    """Lightning: a closure makes the forward and backward pass of one batch."""
    original = module._AutomaticOptimization._make_closure

    @functools.wraps(original)
    def make_closure(loop: Any, kwargs: Any, optimizer: Any, batch_idx: int) -> Any:
        closure = original(loop, kwargs, optimizer, batch_idx)
        whole_closure, zero_grad = closure.closure, closure._zero_grad_fn
        key = "batch" if "batch" in kwargs else next(iter(kwargs))

        def run_parts(*args: Any, **options: Any) -> Any:
            batch, results = kwargs[key], []
            closure._zero_grad_fn = zero_grad

            def run(piece: Any) -> torch.Tensor | None:
                kwargs[key] = piece
                results.append(whole_closure(*args, **options))
                closure._zero_grad_fn = None  # the parts that follow add to it
                return results[-1].loss

            try:
                divided = (float(loop.trainer.accumulate_grad_batches),)
                loss = _parts(lever, batch, run, cleared=zero_grad is not None, divided=divided)
            finally:
                kwargs[key] = batch
            results[-1].loss = loss
            lever.switch = switches.batches(loop.trainer, lever.parts)
            return results[-1]

        closure.closure = run_parts
        return closure

    module._AutomaticOptimization._make_closure = make_closure


def _accelerate(lever: SplittingLever, module: Any) -> None:
    """accelerate divides each loss by the number of batches that it accumulates, which may be one."""
    original = module.Accelerator.backward

    @functools.wraps(original)
    def backward(accelerator: Any, loss: Any, **kwargs: Any) -> None:
        batch = lever.batch
        if batch is None:
            return original(accelerator, loss, **kwargs)
        before = batch.divided
        batch.divided = (float(accelerator.gradient_accumulation_steps), *before)
        try:
            return original(accelerator, loss, **kwargs)
        finally:
            batch.divided = before

    module.Accelerator.backward = backward
    count = module.Accelerator._do_sync

    @functools.wraps(count)
    def do_sync(accelerator: Any) -> None:
        """`accelerator.accumulate` counts a batch once, and its update comes with the last part."""
        batch = lever.batch
        if batch is None or batch.external:
            return count(accelerator)
        if batch.index == 0:
            count(accelerator)
            batch.updates = accelerator.sync_gradients
            batch.had_gradients = have_gradients(lever.job)
        accelerator.gradient_state._set_sync_gradients(bool(batch.updates) and batch.last)
        return None

    module.Accelerator._do_sync = do_sync


def _logged(lever: SplittingLever, module: Any) -> None:
    """Lightning's `self.log`: combines what each part logs into what the whole batch would log."""
    original = module._ResultMetric.update

    @functools.wraps(original)
    def update(metric: Any, value: Any, batch_size: int) -> None:
        batch = lever.batch
        if batch is None or not metric.is_tensor:
            return original(metric, value, batch_size)
        # Lightning takes the size of the batch that it loaded.
        original(metric, value, batch.size if batch_size == batch.whole else batch_size)
        if not metric.meta.on_step:
            return None
        last = metric._forward_cache
        before, weight = batch.logged.get(id(metric), (None, 0))
        if before is not None and metric.meta.is_mean_reduction:
            last = (before * weight + last * batch.size) / (weight + batch.size)
        elif before is not None:
            last = metric.meta.reduce_fx(torch.stack([before, last]))
        batch.logged[id(metric)] = (last, weight + batch.size)
        metric._forward_cache = last
        if not metric.meta.on_epoch:
            metric.value = last
        return None

    module._ResultMetric.update = update


def _manual(lever: SplittingLever, module: Any) -> None:
    """Lightning's manual optimization leaves backward and step to the user's training_step."""

    def run(*args: Any, **kwargs: Any) -> Any:
        raise lever.refuse(
            "it uses Lightning's manual optimization, whose training_step makes the updates itself",
            manually=True,
        )

    module._ManualOptimization.run = run


def have_gradients(job: Any) -> bool:
    """Whether earlier batches are in the gradients."""
    groups = [group for optimizer in list(job.optimizers) for group in optimizer.param_groups]
    elsewhere = job.gradients_elsewhere
    return any(
        p.grad is not None or (elsewhere is not None and elsewhere.has(p))
        for group in groups
        for p in group["params"]
    )


def _part(lever: SplittingLever, inputs: Any, run: Any, constant: Any) -> Any:
    """Run a step on `inputs`, one of the parts that a framework accumulates; the first tells whether that comes to the same."""
    batch = lever.batch_of(1, lever.parts)
    with contextlib.suppress(CannotSplit):
        batch.size = sample_layout(inputs).total(inputs)
    batch.whole, batch.constant = batch.size * lever.parts, constant
    batch.index, batch.by_framework = next(lever.switched or iter([0])), True
    lever.begin(batch)
    try:
        return run(inputs)
    finally:
        lever.batch = None


def _parts(
    lever: SplittingLever,
    inputs: Any,
    run: Any,
    constant: Any = None,
    sums: bool = False,
    cleared: bool = False,
    divided: tuple[float, ...] = (),
) -> Any:
    """Run a step on each part of `inputs`; returns the loss of the whole.

    `constant` is a divisor for the whole batch; `sums`: whether losses were divided by it;
    `cleared`: whether the step clears the gradients itself; `divided`: the framework's own divisor of losses.
    """
    pieces = _pieces(lever, inputs)
    batch = lever.batch_of(sum(size for _, size in pieces), len(pieces))
    batch.constant, batch.divided, batch.averages = constant, divided, bool(divided)
    batch.had_gradients = not cleared and have_gradients(lever.job)
    total: Any = None
    for piece, size in pieces:
        batch.next(size)
        lever.begin(batch)
        try:
            loss = run(piece)
        finally:
            lever.batch = None
        if loss is not None:
            loss = loss if sums else loss * (size / batch.whole)
            total = loss if total is None else total + loss
    lever.complete(batch)
    return total
