"""`TrainStep`: one call is one optimizer step over a whole batch, in as many parts as memory requires."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from oomph._containers import map_tensors, tensors
from oomph._older_python import zip
from oomph._training import nested
from oomph._training.coupled_samples import coupled_layers, loss_is_mean
from oomph._training.errors import CannotFit, MemoryNotRecovered, Refused, is_out_of_memory
from oomph._training.ladder import Ladder, Rung
from oomph._training.loss_weights import WeightFunction, weight_function
from oomph._training.memory_model import MARGIN, GpuMemory, devices_of
from oomph._training.optimizer_guard import OptimizerGuard, first_line
from oomph._training.rank_agreement import FAILED, FINE, Ranks, check_parallelism
from oomph._training.release import clear_error, format_bytes, release_caches
from oomph._training.size_limit import GROW_AFTER, LEAKED, SizeLimit
from oomph._training.step_state import StepState
from oomph.levers._shared.base import CannotApply

log = logging.getLogger("oomph")

TIGHT = 0.01
"""The share of memory left free by default: a size that turns out to be too large is undone."""

PROBE_GROWTH = 1.25
"""A trial must need this many times the memory of one sample before its slope counts: allocations are
rounded, and memory that does not depend on the batch may hide the batch's."""

LossFunction = Callable[[Any, Any], Any]
"""`loss_fn(model, micro_batch)`: a mean loss, or a pair of it and anything."""


@dataclass
class StepReport:
    """What one step did."""

    loss: torch.Tensor
    """The loss of the whole batch: the weighted mean over micro-batches, detached, on the device."""
    micro_batches: int
    """How many parts the batch was computed in."""
    micro_batch: int
    """Samples in the largest part."""
    attempts: int
    """How many attempts the step took: 1 if nothing failed."""
    grad_norm: torch.Tensor | None = None
    """The norm of the gradients before clipping, where `max_norm` is given."""
    aux: list[Any] = field(default_factory=list)
    """What the loss function returned besides the loss, one item per part, detached."""
    errors: list[str] = field(default_factory=list)
    """The first lines of the out-of-memory errors that were survived."""
    rungs: list[str] = field(default_factory=list)
    """The names of the rungs that are applied."""


@dataclass
class _Failure:
    where: str
    text: str
    refused: bool = False
    """Not an error: an applied lever turned out to be unsuitable."""


class TrainStep:
    """One call makes one optimizer step over a whole batch, in as many parts as memory requires.

    ::

        step = oomph.TrainStep(model, optimizer, lambda model, batch: model(**batch).loss)
        for batch in loader:
            report = step(batch)

    The batch may be any nested structure of tensors, arrays and lists with a common number of
    samples. Each part is moved to the model's device. Parts are weighted so that gradients
    are those of the whole batch: `loss_fn` returns a mean over samples, or over what `weight` counts.

    An out-of-memory error undoes the attempt (gradients, buffers, random states, loss scale) and the
    step is repeated with the same data: at the same size if that worked before, otherwise in more
    parts; if single samples do not fit, or batches must not be split, with the next of `rungs`. Parameters and optimizer state
    do not change until gradients are complete, and the optimizer's own step is
    atomic. Other errors pass through.

    Parameters
    ----------
    model, optimizer : a module (or `DistributedDataParallel`) and an optimizer of its parameters.
    loss_fn : `loss_fn(model, part)`, returning a mean loss, or a pair of it and anything to collect.
        By default the model is called with the batch's items and has `.loss` or `["loss"]`.
    weight : "samples", "tokens", or a function of a part: the number of units its loss averages over.
    micro_batch : initial samples per part; by default what the measured memory allows.
    max_norm : clip the gradients' norm to this.
    scaler, scheduler : a `GradScaler` and a learning-rate scheduler to work with.
    autocast : a dtype to run `loss_fn` under.
    rungs : levers for when single samples do not fit; by default a `Ladder`, which checkpoints as few
        blocks as save what is missing, then all, then offloads activations, then the optimizer's
        state. `Ladder(record=DIR)` lets the planner choose; a list of your own is tried in order.
    coupled : "refuse" raises where a batch would have to be split although BatchNorm or the loss
        look across samples; "warn" splits and warns.
    check_loss : compare the loss of a few samples with that of their parts before the first split.
    protect : how the optimizer's step is kept whole: see `oomph._training.optimizer_guard`.
    global_weight : under DistributedDataParallel, weigh by the units of all ranks, so that each
        token counts the same; by default each rank's mean counts the same, as in plain loops.
    retry : False only splits and weighs; an error ends the run.
    grow_after : steps without trouble before a larger part is tried again; 0 for never.
    margin : the share of memory to leave free when sizes are chosen by measured memory.
    generators : `torch.Generator`s of yours that the loss draws from.
    samples, part : `samples(batch)` and `part(batch, start, stop)` for batches of your own kind.
    on_failure : called with the step and the error before `CannotFit` and its kin are raised: the
        place to save a checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFunction | None = None,
        *,
        weight: str | WeightFunction = "samples",
        micro_batch: int | None = None,
        max_norm: float | None = None,
        scaler: Any = None,
        scheduler: Any = None,
        autocast: torch.dtype | None = None,
        rungs: Ladder | Sequence[Rung] | None = None,
        coupled: str = "refuse",
        check_loss: bool = True,
        protect: str = "auto",
        global_weight: bool = False,
        retry: bool = True,
        grow_after: int = GROW_AFTER,
        margin: float = TIGHT,
        generators: Sequence[torch.Generator] = (),
        samples: Callable[[Any], int] | None = None,
        part: Callable[[Any, int, int], Any] | None = None,
        on_failure: Callable[[TrainStep, Exception], None] | None = None,
        timeout: float = 600.0,
    ) -> None:
        """See the class. Under DistributedDataParallel this is a collective call."""
        if coupled not in ("refuse", "warn"):
            raise ValueError(f'coupled: expected "refuse" or "warn"; found {coupled!r}')
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"micro_batch: expected at least 1 sample; found {micro_batch}")
        if not 0 <= margin < 1:
            raise ValueError(f"margin: expected a share from 0 to below 1; found {margin}")
        if (samples is None) != (part is None):
            raise ValueError("samples and part: pass both, or neither")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if not parameters:
            raise ValueError("the optimizer has no parameters")
        check_parallelism(model, retry)
        self.optimizer = optimizer
        self._ranks = Ranks(model, parameters, timeout)
        self.model = self._ranks.model
        self._parameters = parameters
        self._devices = devices_of([*self.model.parameters(), *parameters])
        self._device = self._devices[0]
        self._loss_fn = loss_fn if loss_fn is not None else _models_own_loss
        self._weight = weight_function(weight)
        self._max_norm = max_norm
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._scheduler = scheduler
        self._autocast = autocast
        self._ladder = Ladder.of(rungs)
        self._coupled = coupled
        self._check_loss = check_loss
        self._global_weight = global_weight
        self._retry = retry
        self._margin = margin
        self._samples = samples or nested.batch_size
        self._own_part = part
        self._on_failure = on_failure
        self._gpu_memory = GpuMemory(self._device)
        self._guard = OptimizerGuard(optimizer, self._gpu_memory, protect)
        self._guard.rescue = self._ladder.rescue
        guards = {id(optimizer): self._guard}
        self._ladder.bind(self.model, self._gpu_memory, guards, max(margin, MARGIN))
        self._state = StepState(self.model, self._devices, self._scaler, generators)
        self._micro_batch = micro_batch
        # Units are elements of a part.
        self._limit = SizeLimit(self._gpu_memory, grow_after)
        # Bytes allocated before a step, and what there was for it.
        self._room = (0, 0.0)
        self._may_split = False
        self._phase = ""
        self.steps = 0
        """Optimizer steps made."""
        self.failed_attempts = 0
        """Attempts that ran out of memory, in all steps."""

    # ---- one step ----

    def __call__(self, batch: Any) -> StepReport:
        """Make one optimizer step over `batch`.

        Raises `CannotFit` (or `MemoryNotRecovered`) if nothing is left to try, with the state as
        before the step; `Refused` if the batch would have to be split and must not be.
        """
        if not self._retry:
            return self._single(batch)
        try:
            return self._step(batch)
        except (CannotFit, Refused) as error:
            self._ranks.leave()
            if self._on_failure is not None:
                self._on_failure(self, error)
            raise

    def _step(self, batch: Any) -> StepReport:
        size = self._samples(batch)
        if size < 1:
            raise ValueError("the batch is empty")
        units = self._units(batch, size)
        versions = [(t, t._version) for t in tensors(batch) if not t.is_inference()]
        self._clear_gradients()
        self._ranks.share_buffers()
        self._save()
        baseline = self._gpu_memory.allocated()
        parts, capacity = self._choose(batch, size, units, baseline)
        errors: list[str] = []
        same_again = True
        while True:
            # After the first error at the smallest size, measure what is missing.
            smallest = parts == size or not self._split_allowed()
            retries = self._gpu_memory.retries()
            with self._ladder.measuring(smallest and bool(errors)):
                report, failure = self._attempt(batch, size, parts, units, baseline)
            status, most = self._ranks.agree(FAILED if failure else FINE, parts)
            if status == FINE and report is not None:
                failure = self._finish_gradients(report)
                if failure is None:
                    break
            self.failed_attempts += 1
            self._undo()
            release_caches()
            if failure and not failure.refused:
                errors.append(failure.text)
                if any(t._version != version for t, version in versions):
                    raise CannotFit(
                        "memory ran out, and the step cannot be repeated: the loss function "
                        "changed the batch in place. Work on a copy (`x = x + 1`, not `x += 1`).",
                        failure.text,
                    )
                worked = _largest(units, size, parts) <= self._limit.worked
                # A size that worked before, or must not be split, gets a second try: the cause may be
                # fragmentation, or another process.
                if not (same_again and (worked or smallest)):
                    most = max(most, self._more(batch, size, parts, units, baseline, failure))
                    baseline = self._gpu_memory.allocated()
                same_again = False
            _, most = self._ranks.agree(FAILED, max(most, parts))
            parts = min(size, most)
        self._optimizer_step()
        self._clear_gradients()
        self.steps += 1
        flushed = self._gpu_memory.retries() > retries and self._split_allowed()
        self._limit.quiet(parts, lambda n: _largest(units, size, min(n, size)), capacity, flushed)
        report.attempts = len(errors) + 1
        report.errors = errors
        report.rungs = list(self._ladder.applied)
        return report

    def _single(self, batch: Any) -> StepReport:
        """A step without retries: split and weighted, with the model's own collectives."""
        size = self._samples(batch)
        self._clear_gradients()
        parts = -(-size // (self._micro_batch or size))
        if parts > 1:
            self._check_split(batch, size)
        report = self._accumulate(batch, size, parts)
        self._ranks.complete_gradients()
        self._ranks.average_gradients()
        self._finish(report)
        self._apply(self.optimizer.step)
        self._after_optimizer()
        self._clear_gradients()
        self.steps += 1
        return report

    def _save(self) -> None:
        for last in (False, True):
            try:
                self._state.save()
            except Exception as error:
                if last or not is_out_of_memory(error):
                    raise
                clear_error(error)
            else:
                return
            release_caches()

    def _undo(self) -> None:
        self._state.restore()
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)

    def _attempt(
        self, batch: Any, size: int, parts: int, units: list[int], baseline: int
    ) -> tuple[StepReport | None, _Failure | None]:
        """Gradients of the whole batch, or what failed. Retries happen outside the handler."""
        measured = self._gpu_memory.measures and _largest(units, size, parts) != self._limit.worked
        try:
            if measured:
                self._gpu_memory.begin()
            report = self._accumulate(batch, size, parts)
            self._ranks.complete_gradients()
        except CannotApply as refusal:
            self._ladder.refused(refusal)
            failure = _Failure(self._phase, refusal.message, refused=True)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = _Failure(self._phase, first_line(error))
            clear_error(error)
        else:
            if measured:
                self._learn(_largest(units, size, parts), parts, baseline)
            return report, None
        return None, failure

    def _accumulate(self, batch: Any, size: int, parts: int) -> StepReport:
        """Forward and backward of all parts."""
        bounds = nested.bounds(size, parts)
        weights, total = [1.0], 1.0
        if parts > 1 or (self._global_weight and not self._ranks.alone):
            weights = [float(self._weight(self._part(batch, a, b, size))) for a, b in bounds]
            total = sum(weights)
            if self._global_weight:
                total = self._ranks.agree_on_total(total)
            if not total > 0:
                raise ValueError(
                    f"the weights of the parts add up to {total}: there is nothing to train on"
                )
        loss_sum: torch.Tensor | None = None
        collected: list[Any] = []
        with self._ranks.without_collectives():
            for (start, stop), weight in zip(bounds, weights, strict=True):
                if not weight:
                    # A mean over nothing is NaN; its share of the whole is zero.
                    continue
                self._phase = "forward"
                part = self._to_device(self._part(batch, start, stop, size))
                loss, aux = self._loss(part)
                if weight != total:
                    loss = loss * (weight / total)
                self._phase = "backward"
                (self._scaler.scale(loss) if self._scaler is not None else loss).backward()
                loss_sum = loss.detach() if loss_sum is None else loss_sum + loss.detach()
                collected.append(map_tensors(torch.Tensor.detach, aux))
                del part, loss, aux
        assert loss_sum is not None
        largest = max(b - a for a, b in bounds)
        return StepReport(loss_sum, parts, largest, 1, aux=[a for a in collected if a is not None])

    def _loss(self, part: Any) -> tuple[torch.Tensor, Any]:
        context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self._autocast is not None:
            context = torch.autocast(self._device.type, dtype=self._autocast)
        with context, self._ladder.forward_pass():
            result = self._loss_fn(self.model, part)
        loss, aux = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            found = (
                f"a tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, torch.Tensor)
                else type(loss).__name__
            )
            raise TypeError(
                f"loss_fn(model, part): expected a tensor with one element, the mean loss of the "
                f"part (or a pair of it and anything); found {found}"
            )
        return loss.reshape(()), aux

    def _finish_gradients(self, report: StepReport) -> _Failure | None:
        """Average over ranks, unscale and clip; what failed, or None."""
        # Nothing allocates until the averages are complete, and the rest can be repeated.
        self._ranks.average_gradients()
        tries = 1 if self._ranks.alone else 3
        failure: _Failure | None = None
        for _ in range(tries):
            try:
                self._finish(report)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failure = _Failure("clipping", first_line(error))
                clear_error(error)
            else:
                return None
            release_caches()
        if failure is not None and not self._ranks.alone:
            self._undo()
            raise CannotFit(f"gradients cannot be clipped: {failure.text}", failure.text)
        return failure

    def _finish(self, report: StepReport) -> None:
        if self._scaler is not None:
            self._phase = "unscaling"
            self._scaler.unscale_(self.optimizer)
        if self._max_norm is None:
            return
        self._phase = "clipping"
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = _total_norm(gradients)
        factor = torch.clamp(self._max_norm / (norm + 1e-6), max=1.0)
        by_device = {g.device: factor.to(g.device) for g in gradients}
        # Everything is allocated by now: the gradients change together or not at all.
        for device, local in by_device.items():
            torch._foreach_mul_([g for g in gradients if g.device == device], local)
        report.grad_norm = norm

    def _optimizer_step(self) -> None:
        self._phase = "optimizer"
        try:
            own_step = self.optimizer.step
            self._apply(lambda: self._guard.step(own_step))
        except CannotFit:
            self._undo()
            raise
        self._after_optimizer()

    def _apply(self, step: Callable[[], Any]) -> None:
        """Make `step`, by way of the scaler if there is one: it skips steps that overflowed."""
        if self._scaler is None:
            step()
            return
        own = self.optimizer.__dict__.get("step")
        self.optimizer.step = step  # type: ignore[method-assign, assignment]
        try:
            self._scaler.step(self.optimizer)
        finally:
            if own is None:
                del self.optimizer.step
            else:
                self.optimizer.step = own  # type: ignore[method-assign]

    def _after_optimizer(self) -> None:
        """The scale for the next step, and the schedule. An error here must not repeat the step."""
        for attempt in range(3):
            try:
                if self._scaler is not None:
                    self._scaler.update()
                break
            except Exception as error:
                if attempt == 2 or not is_out_of_memory(error):
                    raise
                clear_error(error)
            release_caches()
        if self._scheduler is not None:
            self._scheduler.step()

    # ---- sizes ----

    def _units(self, batch: Any, size: int) -> list[int]:
        """Elements of each sample: all of one number where samples are alike."""
        if self._own_part is None:
            each = nested.sample_elements(batch, size)
            if each is not None:
                return each
        return [max(1, nested.elements(batch) // size)] * size

    def _choose(self, batch: Any, size: int, units: list[int], baseline: int) -> tuple[int, float]:
        """Into how many parts to cut the batch, and the bytes that there are for the step."""
        wish = -(-size // self._micro_batch) if self._micro_batch else 1
        known = self._limit.memory
        whole = float(sum(units))
        before, capacity = self._room
        if (
            wish == 1
            and whole <= min(self._limit.worked, self._limit.units)
            and baseline <= before * 1.01 + LEAKED
        ):
            return 1, capacity  # as before, and the driver need not be asked
        chosen = bool(self._micro_batch) or not self._gpu_memory.measures
        if not chosen and size > 1 and not len(known) and self._limit.units == float("inf"):
            self._probe(batch, size, units, baseline)
        capacity = self._capacity(baseline)
        self._room = baseline, capacity
        limit = self._limit.units if chosen else self._limit.allowed(capacity)
        # A batch in one part has its activations and its gradients one after the other.
        alone = known.predict(whole) - self._gradient_bytes()
        if not chosen and len(known) and alone <= capacity:
            limit = max(limit, min(self._limit.units, whole))
        parts = _fewest(units, size, limit, wish)
        if parts > 1:
            try:
                self._check_split(batch, size)
            except Refused:
                if wish > 1:
                    raise
                # Try the whole batch even if that may fail: it may fit.
                return 1, capacity
        return parts, capacity

    def _capacity(self, baseline: int) -> float:
        """Bytes for what a step makes."""
        return self._gpu_memory.usable() * (1 - self._margin) - baseline - self._guard.coming()

    def _gradient_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self._parameters if p.requires_grad)

    def _probe(self, batch: Any, size: int, units: list[int], baseline: int) -> None:
        """Measure forward and backward of a few samples; has no lasting effect.

        The longest samples, with gradients in place as in the later parts of a step; as many as it
        takes until memory grows with them, and they need enough of it to tell what many will need.
        """
        if coupled_layers(self.model):
            return
        longest = max(range(size), key=lambda i: units[i])
        first = 0
        enough = self._capacity(baseline) / 16
        known = self._limit.memory
        try:
            with self._ranks.without_collectives():
                for number, count in enumerate((1, 1, *_probe_sizes(size))):
                    start = min(longest, size - count)
                    self._gpu_memory.begin()
                    part = self._to_device(self._part(batch, start, start + count, size))
                    loss, _ = self._loss(part)
                    (self._scaler.scale(loss) if self._scaler is not None else loss).backward()
                    del part, loss, _
                    if not number:
                        continue  # it made gradients and work spaces
                    peak = self._gpu_memory.peak() - baseline
                    known.observe(sum(units[start : start + count]), peak)
                    first = first or peak
                    if peak > max(first * PROBE_GROWTH, enough):
                        break
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            clear_error(error)
            if not len(known):
                # Not even one sample: no need to try the whole batch, half of it, …
                self._limit.units = float(units[longest])
        self._undo()
        # Blocks of the probes' sizes would only be in the way.
        release_caches()

    def _learn(self, units: float, parts: int, baseline: int) -> None:
        peak = self._gpu_memory.peak() - baseline
        if parts == 1:
            # A later part finds the gradients there.
            peak += self._gradient_bytes()
        self._limit.memory.observe(units, peak)

    def _more(
        self, batch: Any, size: int, parts: int, units: list[int], baseline: int, failure: _Failure
    ) -> int:
        """The number of parts to try next; applies a rung if single samples do not fit."""
        leaked = self._gpu_memory.allocated() - baseline
        failed_units = _largest(units, size, parts)
        if parts < size and self._split_or_pull(batch, size, parts, failure):
            limit = self._limit.failed(failed_units, self._capacity(baseline))
            more = max(parts + 1, _fewest(units, size, limit, 1))
            self._limit.set(_largest(units, size, more))
            log.warning(
                "out of memory in %s: repeating the step in %d parts (before: %d)",
                failure.where, more, parts,
            )  # fmt: skip
            return more
        if self._gpu_memory.measures and leaked > LEAKED:
            raise MemoryNotRecovered(
                f"memory ran out in {failure.where}, and {format_bytes(leaked)} stay allocated that "
                "nothing can free in this process. The state is as before the step: save a "
                "checkpoint, with this step's state_dict(), and continue in a new process.",
                failure.text,
            )
        if parts < size or self._pull(failure, size, parts):
            # Larger parts may fit now. Where nothing is measured they are found by growing.
            if not self._gpu_memory.measures:
                self._limit.units = float(failed_units)
            return parts
        raise CannotFit(
            f"a single sample does not fit: {failure.text} In {failure.where}; levers applied: "
            f"{', '.join(self._ladder.applied) or 'none'}. The state is as before the step. Shorten "
            "the longest samples, pass your own `rungs`, or see what `oomph fit` suggests.",
            failure.text,
        )

    def _split_or_pull(self, batch: Any, size: int, parts: int, failure: _Failure) -> bool:
        """True if the batch may be split further; False if it must not be and a rung was applied instead."""
        try:
            self._check_split(batch, size, failure.text)
        except Refused:
            if not self._pull(failure, size, parts):
                raise
            return False
        return True

    def _pull(self, failure: _Failure, size: int, parts: int) -> bool:
        """Apply the next rung; returns whether there was one."""
        samples = -(-size // parts)
        pulled = self._ladder.pull(failure.where, failure.text, samples)
        if pulled:
            self._limit.reset()
            log.warning(
                "out of memory in %s with %s: continuing with %s",
                failure.where,
                "single samples" if samples == 1 else f"{samples} samples that must stay together",
                pulled,
            )
        return bool(pulled)

    def _split_allowed(self) -> bool:
        return self._may_split or not coupled_layers(self.model) or self._coupled == "warn"

    def _check_split(self, batch: Any, size: int, cause: str = "") -> None:
        """Raise `Refused`, or warn, if parts would not add up to the whole batch."""
        if self._may_split:
            return
        reasons = []
        layers = coupled_layers(self.model)
        if layers:
            shown = ", ".join(layers[:3]) + (", …" if len(layers) > 3 else "")
            reasons.append(f"{len(layers)} layers in training normalize over the batch: {shown}")
        elif self._check_loss:
            half = {p.dtype for p in self.model.parameters()} & {torch.float16, torch.bfloat16}
            found = loss_is_mean(
                self.model,
                lambda part: self._loss(self._to_device(part))[0],
                lambda start, stop: self._part(batch, start, stop, size),
                lambda part: float(self._weight(part)),
                size,
                self._devices,
                2e-2 if half or self._autocast is not None else 1e-3,
            )
            self._state.restore()
            if found:
                reasons.append(found)
        if reasons and self._coupled == "refuse":
            raise Refused(
                f"the batch would have to be split, and must not be: {'; '.join(reasons)}. "
                + (f"And memory ran out: {cause} " if cause else "")
                + (
                    f"Levers applied: {', '.join(self._ladder.applied)}. "
                    if self._ladder.applied
                    else ""
                )
                + "Use GroupNorm, or model.eval() for frozen BatchNorm; set `weight` to what the loss "
                'averages over; or accept other results with coupled="warn".'
            )
        if reasons:
            warnings.warn(
                f"the batch is split although {'; '.join(reasons)}: results are not those of the "
                "whole batch",
                stacklevel=3,
            )
        self._may_split = True

    # ---- batches ----

    def _part(self, batch: Any, start: int, stop: int, size: int) -> Any:
        if start == 0 and stop == size:
            return batch
        if self._own_part is not None:
            return self._own_part(batch, start, stop)
        return nested.part(batch, start, stop, size)

    def _to_device(self, part: Any) -> Any:
        return map_tensors(lambda t: t.to(self._device, non_blocking=True), part)

    # ---- what a checkpoint keeps ----

    def state_dict(self) -> dict[str, Any]:
        """The sizes found so far: a new process that loads them starts at the right size."""
        return dict(
            limit=self._limit.units,
            worked=self._limit.worked,
            observations=self._limit.memory.points(),
            rungs=self._ladder.state(),
            steps=self.steps,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the sizes that another process found; applies the rungs that it had applied."""
        self._limit.units = float(state["limit"])
        self.steps = int(state["steps"])
        self._ladder.load(state["rungs"])
        for units, peak in state["observations"]:
            self._limit.memory.observe(units, peak)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any
) -> Callable[[Callable[[Any], Any]], TrainStep]:
    """Make a `TrainStep` from a function that returns the mean loss of a micro-batch.

    ::

        @oomph.train_step(model, optimizer, max_norm=1.0)
        def step(batch):
            return model(**batch).loss

        report = step(batch)

    `options` are those of `TrainStep`.
    """

    def decorate(function: Callable[[Any], Any]) -> TrainStep:
        return TrainStep(model, optimizer, lambda _, part: function(part), **options)

    return decorate


def _models_own_loss(model: nn.Module, part: Any) -> Any:
    if not isinstance(part, Mapping):
        raise TypeError(
            f"without loss_fn the batch must be a mapping of the model's arguments; found a "
            f"{type(part).__name__}. Pass loss_fn(model, part)."
        )
    output = model(**part)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        raise TypeError(
            "the model returned no loss. Put labels into the batch, or pass loss_fn(model, part)."
        )
    return loss


def _probe_sizes(size: int) -> list[int]:
    """Samples to probe with, after one: up to half of a batch."""
    sizes = [2]
    while sizes[-1] * 4 <= size // 2:
        sizes.append(sizes[-1] * 4)
    return [n for n in sizes if n <= size]


def _largest(units: list[int], size: int, parts: int) -> int:
    """Units of the largest part."""
    if units[0] == units[-1] and len(set(units)) == 1:
        return -(-size // parts) * units[0]
    return max(sum(units[a:b]) for a, b in nested.bounds(size, parts))


def _fewest(units: list[int], size: int, limit: float, at_least: int) -> int:
    """The fewest parts, none above `limit` units; single samples if there is no such number."""
    return next(
        (n for n in range(max(1, at_least), size + 1) if _largest(units, size, n) <= limit), size
    )


@torch.no_grad()
def _total_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of all gradients together, as `clip_grad_norm_` computes it."""
    if not gradients:
        return torch.tensor(0.0)
    norms: list[torch.Tensor] = []
    for device in {g.device: None for g in gradients}:
        norms += torch._foreach_norm([g for g in gradients if g.device == device])
    total: torch.Tensor = torch.linalg.vector_norm(
        torch.stack([n.to(norms[0].device) for n in norms])
    )
    return total
