"""Splits a batch into micro-batches and accumulates the gradients."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from oomph.levers._shared import frameworks
from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Backward, Clipped, Job, Proceed
from oomph.levers._shared.loss_terms import (
    PARAMETERS,
    SAMPLES,
    Inseparable,
    Term,
    check_start,
    coupled,
    guard,
    nodes,
    terms,
)
from oomph.levers._shared.splitting import CannotSplit, SampleLayout, sample_layout

BATCH_NORMS = (torch.nn.modules.batchnorm._BatchNorm,)
HERE = os.path.dirname(__file__) + os.sep
LOOKED_AT = 16
"""Batches that tell whether a framework's own accumulation would do; comparing takes kernels."""
ROUNDING = 1e-5
CLOSE = 1e-9
"""Relative difference of two counts below which they are the same."""


class MicroBatch(Lever):
    """Passes batches to the script in parts, and applies updates once per batch.

    Needs: a loop over a DataLoader, Hugging Face's `Trainer` or Lightning's automatic optimization;
    a loss that is a sum or mean over samples, tokens or elements. Changes: activations are those of
    one part. Results: the same to rounding; each part's loss counts for its share of the whole
    batch's samples (of its targets, if some are ignored), including unequal parts and last
    batches. Under Hugging Face's `Trainer` smaller batches with more `gradient_accumulation_steps` do it, where the loss is
    divided by the targets of all of them. Random layers draw other numbers, since one draw becomes several.

    A loop that accumulates several batches counts parts, and so asks for a step as many times too often:
    the last of these counts.

    Refused by name: batch normalization in training, losses that compare samples, several updates a
    batch, steps with a closure.
    """

    name = "micro_batch"
    cuts_batches = True

    def __init__(self, parts: int) -> None:
        """`parts`: micro-batches per batch."""
        super().__init__()
        if parts < 2:
            raise self.refuse(f"parts is {parts}; at least 2 are needed to split a batch")
        self.parts = parts
        self.batch: Batch | None = None
        """The batch whose parts the script is working on."""
        self.outputs: list[Any] = []
        self.whole_steps = 0
        """Updates without a split batch."""
        self.framework = 0
        """How many running frameworks split batches themselves."""
        self.checked = False
        """Whether a loss was searched for operations that mix samples."""
        self.counted = False
        """Whether a loop enumerates its batches."""
        self.calls = 0
        """How often a model was called."""
        self.trains_in_eval = False
        """Whether the script trains models that are in evaluation mode."""
        self.update: Update | None = None
        """The update in progress, of a script that accumulates batches by itself."""
        self.has_stepped = False
        self.switched: Iterator[int] | None = None
        """As `frameworks.SplittingLever` has it."""
        self.even: Any = True
        """Whether a framework that accumulates the parts, as it does batches, would have weighted all of the first alike: a
        truth value, or a tensor of one. A virtual GPU that does not know reads false."""

    def install(self, job: Job) -> None:
        """Intervene wherever a batch begins, counts, or ends."""
        self.job = job
        job.around_loader.append(self._iterator)
        job.on_enter.append(self._enter)
        job.on_leave.append(self._leave)
        job.on_backward.insert(0, self._backward)
        job.after_backward.append(self._after_backward)
        job.around_zero_grad.append(self._zero_grad)
        job.around_step.append(self._step)
        job.around_clip.append(self._clip)
        job.around_scheduler.append(self._put_off)
        job.around_scaler.append(self._scaler)
        frameworks.install(self)
        _watch_averages(self._put_off)

    def finish(self) -> None:
        """Report what was not split."""
        self.batch = None
        if self.switch is not None and not self.even:
            self.switch = None
        if self.whole_steps and self.applied:
            self.add_note(
                f"{self.whole_steps} updates used batches that were not split: they did not come from a "
                "DataLoader's own iteration"
            )
        if not self.applied and self.note is None:
            self.note = "no training batch came from a DataLoader"

    # ---- batches ----

    def _iterator(self, loader: Any, iterator: Any) -> Any:
        if self.framework or isinstance(iterator, Parts):
            return iterator
        caller: Any = sys._getframe()
        while caller is not None and caller.f_code.co_filename.startswith(HERE):
            caller = caller.f_back
        if caller is not None and "enumerate" in caller.f_code.co_names:
            self.counted = True
        return Parts(self, loader, iterator)

    def trains(self) -> bool:
        """Whether the next batch of a DataLoader is for training."""
        return not self.framework and torch.is_grad_enabled() and not self._evaluates()

    def _evaluates(self) -> bool:
        """Whether every model that is trained here is in evaluation mode, or nothing is trained."""
        trained = {
            id(p) for o in self.job.optimizers for group in o.param_groups for p in group["params"]
        }
        if not trained:
            return True
        models = [m for m in self.job.models if any(id(p) in trained for p in m.parameters())]
        return bool(models) and not self.trains_in_eval and not any(m.training for m in models)

    # ---- what the script does within a part ----

    def _enter(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self.calls += 1
        if self.batch is None or not module.training or not torch.is_grad_enabled():
            return
        for name, part in module.named_modules() if not self.checked else ():
            if isinstance(part, BATCH_NORMS) and part.training and not _is_instance_norm(part):
                raise self.refuse(
                    f"batch normalization ({name or type(part).__name__}) computes its statistics over all samples of a "
                    "batch, so splitting the batch trains another model. Put it into evaluation mode "
                    "(freeze it), replace it by GroupNorm, or choose another plan: "
                    "oomph fit --forbid micro_batch"
                )

    def _leave(self, module: torch.nn.Module, output: Any) -> None:
        if self.batch is None or not torch.is_grad_enabled():
            return
        # This keeps a graph alive; it must not be that of an evaluation within the loop.
        if module.training or self.trains_in_eval or not self.checked:
            self.outputs += nodes(output)

    def _backward(self, call: Backward) -> None:
        batch, outputs, self.outputs = self.batch, self.outputs, []
        if batch is None:
            return
        self.trains_in_eval |= not any(m.training for m in self.job.models if _learns(m))
        if batch.stepped and not batch.external:
            raise self.refuse(
                "it updates more than once per batch (a backward pass after a step, as GANs and SAM do), which is "
                "not possible with a split batch",
                manually=True,
            )
        if batch.ahead:
            raise self.refuse(
                "it asks for batches before it trains on the last one (a prefetcher), or skips some, so that "
                "it is unclear which part a backward pass belongs to",
                manually=True,
            )
        goes_on = batch.index > 0 or (self.update is not None and self.update.ticks > 0)
        if goes_on and batch.backwards == 0 and not batch.external:
            batch.check_gradients(self)
        for index, tensor in enumerate(call.tensors):
            check_start(self, tensor, call.gradients[index])
            try:
                if (
                    not self.checked
                    and batch.whole > batch.parts
                    and (why := coupled(tensor, batch.size))
                ):
                    raise Inseparable(why)
                found = terms(tensor, batch, outputs, self.add_note)
                if batch.by_framework and any(term.count is not None for term in found):
                    raise Inseparable(
                        "gradient_accumulation_steps is not the same, as its terms are no sums over the targets"
                    )
                weight = batch.weigh(found)
                if batch.external and self.applied <= LOOKED_AT:
                    self.even = self.even & batch.is_even(found, weight)
            except Inseparable as error:
                raise self.refuse(
                    f"the loss of a batch does not follow from its parts: {error}",
                    manually=True,
                ) from None
            if weight is not None:
                call.scale(index, weight)
        if batch.index == batch.backwards == 0:
            batch.set_aside(self.job)
        self.checked = True

    def _after_backward(self) -> None:
        if self.batch is not None:
            if self.update is not None and not self.batch.backwards:
                self.update.ticks += 1
            self.batch.backwards += 1
            self.batch.pending = True
            if not self.batch.external:
                self.batch.remember_gradients(self.job.optimizers)

    def _zero_grad(self, owner: Any, proceed: Proceed) -> Any:
        if self._accumulates():
            return None
        return proceed()

    def _accumulates(self) -> bool:
        """Whether there are gradients of this batch's earlier parts."""
        batch = self.batch
        if self.update is not None and batch is not None:
            return self.update.ticks > 0 and not (batch.stepped and self.update.is_due())
        if batch is None or batch.external or not batch.pending:
            return False
        # After the last part's backward pass it is the whole batch that is dropped.
        return not (batch.last and batch.backwards)

    def _waits(self) -> bool:
        """Whether more parts of the batch, or of others of the update, are to come."""
        if self.update is not None and self.batch is not None:
            return not self.update.is_due()
        return self.batch is not None and not self.batch.external and not self.batch.last

    def _step(self, optimizer: torch.optim.Optimizer, proceed: Proceed) -> Any:
        batch = self.batch
        if batch is None or batch.external:
            if batch is None and not self.framework:
                self.whole_steps += 1
                if not self.applied:
                    raise self.refuse(
                        "it trains on batches that do not come from a DataLoader, so there is nothing to split",
                        manually=True,
                    )
            return proceed()
        if self.job.closure is not None:
            raise self.refuse(
                "its optimizer's step takes a closure, which computes the loss of the batch itself "
                f"({type(optimizer).__name__})",
                manually=True,
            )
        batch.stepped = self.has_stepped = True
        if self._waits():
            return batch.later(optimizer, "step", proceed)
        self.complete(batch)
        result = proceed()
        batch.pending = False
        return result

    def complete(self, batch: Batch) -> None:
        """All parts are in the gradients: weight them."""
        try:
            batch.complete(self.job)
        except Inseparable as error:
            raise self.refuse(str(error), manually=True) from None

    def _clip(self, parameters: Clipped, proceed: Proceed) -> Any:
        if self._waits():
            self.batch.later(self, "clip", proceed)
            return torch.zeros((), device=parameters[0].device if parameters else None)
        if self.batch is not None and not self.batch.external:
            self.complete(self.batch)
        return proceed()

    def _put_off(self, owner: Any, proceed: Proceed) -> Any:
        """A scheduler or an average of weights: once a batch."""
        batch = self.batch
        # Of a script that accumulates: with each batch, unless it comes after the step.
        with_batch = batch is not None and self.update is not None and not batch.stepped
        waits = not batch.last if with_batch else self._waits()
        return batch.later(owner, "step", proceed) if waits else proceed()

    def _scaler(self, method: str, scaler: Any, proceed: Proceed) -> Any:
        batch = self.batch
        if batch is None or batch.external:
            return proceed()
        if method == "step":
            batch.stepped = self.has_stepped = True
        if self._waits():
            return batch.later(scaler, method, proceed)
        self.complete(batch)
        return proceed()

    # ---- the parts of a batch ----

    def batch_of(self, samples: int, parts: int) -> Batch:
        """A batch of so many samples, which a framework's step computes in parts."""
        return Batch(samples, parts, external=True)

    def begin(self, batch: Batch) -> None:
        """The script gets a part of `batch`."""
        if self.batch is not None and self.batch is not batch:
            raise self.refuse(
                "it uses several DataLoaders for one update, whose parts may not belong together",
                manually=True,
            )
        self.batch = batch
        self.outputs = []
        if batch.index == 0 and self.update is not None:
            batch.had_gradients = frameworks.have_gradients(self.job)
            if batch.parts != self.parts:
                raise self.accumulates("a batch has fewer samples than there are parts")
            batch.follow(self.update.batch)
        if batch.index == 0 and batch.parts > 1:
            self.applied += 1
            if self.counted:
                self.add_note("the loop counts its iterations, which are now micro-batches")

    def end(self) -> None:
        """The script asks for what comes after the part."""
        batch = self.batch
        if batch is None or batch.external:
            return
        self.batch = None
        self.outputs = []
        if batch.backwards and not batch.stepped and batch.parts > 1 and batch.updates is None:
            if self.update is None and not self.has_stepped:
                self.update = Update(self)
            elif self.update is None:
                raise self.accumulates("not always as many")
        if self.update is not None and not (self.update.batches and self.update.is_due()):
            batch.check_gradients(self)
        if batch.last:
            if batch.backwards:
                self.complete(batch)
            batch.pending = False
        if self.update is not None:
            if batch.last:
                batch.remember_gradients(self.job.optimizers)
            self.update.batch = batch
            self.update.end(batch)

    def accumulates(self, how: str) -> BaseException:
        """The error for a script whose own accumulation is unclear."""
        return self.refuse(
            f"it accumulates gradients over several batches itself, and {how}. Raise that number and lower the "
            "DataLoader's batch size instead, in the same proportion",
            instead=f"batch_size = batch_size // {self.parts}\naccumulation = accumulation * {self.parts}",
        )

    def left(self) -> None:
        """The script left the loop within a batch: perform the deferred calls for the parts seen so far."""
        batch = self.batch
        self.batch = None
        # A step in this part shows that the script did not leave the loop because of an error.
        if batch is None or batch.external or batch.last or not batch.stepped:
            return
        self.complete(batch)
        for call in batch.put_off.values():
            call()
        self.add_note(
            "the script left the loop within a batch: its last update uses the parts seen so far"
        )

    @contextlib.contextmanager
    def external(self):
        """Within a framework's training, which splits its batches through `frameworks`."""
        self.framework += 1
        try:
            yield
        finally:
            self.framework -= 1


class Update:
    """The step of a script that accumulates several batches, and counts the parts of batches as if they were batches: it asks
    for steps too often, of which the last counts."""

    def __init__(self, lever: MicroBatch) -> None:
        """The first part of the first batch went backward, and no step followed."""
        self.lever = lever
        self.ticks = 1
        """Parts that went backward since the last step that counted."""
        self.batches = 0
        """After how many of its batches the script steps; 0 until it asks for a step."""
        self.batch: Batch | None = None
        """The one before."""

    def is_due(self) -> bool:
        """Whether what the script does after an update now counts."""
        self.batches = self.batches or self.ticks
        return self.ticks == self.batches * self.lever.parts

    def end(self, batch: Batch) -> None:
        """The script has used a part."""
        if self.batches and (self.ticks % self.batches == 0) != batch.stepped:
            raise self.lever.accumulates("not always as many")
        if self.batches and batch.batches % self.batches:
            raise self.lever.accumulates("the last ones of an epoch are fewer")
        if self.batches and self.is_due():
            self.ticks = 0


class Batch:
    """A batch that the script gets in parts: the current part, and the weights of the parts."""

    def __init__(self, whole: int, parts: int, external: bool = False) -> None:
        """`whole`: samples of all parts. `external`: a framework's, which steps by itself."""
        self.whole, self.parts, self.external = whole, parts, external
        self.index, self.size, self.seen = -1, 0, 0
        self.backwards = 0
        self.stepped = False
        self.pending = False
        self.ahead = False
        """Whether parts were asked for with no call of a model between."""
        self.logged: dict[int, tuple[Any, int]] = {}
        """What the parts have logged so far for a metric (by id), and for how many samples."""
        self.put_off: dict[Any, Proceed] = {}
        """Calls of the script after a part, deferred until the last."""
        self.constant: Any = None
        """A divisor of the loss that counts all parts: a number or a tensor."""
        self.divided: tuple[float, ...] = ()
        """The framework's divisors of losses, the last first."""
        self.averages = False
        """Whether the framework divides losses by how many batches it accumulates."""
        self.had_gradients = False
        """Whether earlier batches are in the gradients."""
        self.by_framework = False
        """Whether the framework accumulates the parts: nothing is weighted."""
        self.updates: bool | None = None
        """Whether accelerate makes an update of it, where it accumulates batches."""
        self.batches = 0
        """How many batches an epoch has; 0 if that is unknown."""
        self._aside: list[tuple[Any, torch.Tensor]] = []
        """Gradients of earlier batches, while the factor for this one is unknown."""
        self._estimates: dict[Any, Any] = {}
        self._counts: dict[Any, Any] = {}
        self._sums = False
        self._completed = False
        self._versions: list[tuple[Any, int, int]] = []

    @property
    def last(self) -> bool:
        """Whether the part is the last one."""
        return self.index == self.parts - 1

    def next(self, size: int) -> None:
        """The next part, of `size` samples."""
        self.index += 1
        self.size = size
        self.seen += size
        self.backwards = 0
        self.stepped = False

    def later(self, owner: Any, what: str, proceed: Proceed) -> None:
        """Defer a call; a later one replaces it."""
        self.put_off[id(owner), what] = proceed

    def weigh(self, found: list[Term]) -> Any:
        """The share of this part's loss in the batch's: a factor for the whole gradient (None for
        one), or None after giving each term its own."""
        share = self.size / self.whole
        weights: dict[Any, Any] = {}
        for index, term in enumerate(found):
            if term.guard is not None:
                guard(term.guard, term.count)
            if term.count == PARAMETERS:
                continue
            weight = self._weight((self.backwards, index), term)
            if not _same(weights.setdefault(term.node, weight), weight):
                raise Inseparable("one weight is learned for terms that count different things")
        # Terms of parameters only may have any weights that add up to one over the parts.
        ones = next((weight for weight in weights.values() if not _same(weight, 1.0)), share)
        parameters = [term.node for term in found if term.count == PARAMETERS]
        kinds = list(weights.values()) + [ones] * bool(parameters)
        if not kinds:
            return share
        if all(_same(kinds[0], kind) for kind in kinds):
            return None if _same(kinds[0], 1.0) else kinds[0]
        for node in parameters:
            weights[node] = ones
        for node, weight in weights.items():
            if not _same(weight, 1.0):
                node.register_prehook(_times(weight))
        return None

    def is_even(self, found: list[Term], weight: Any) -> Any:
        """Whether the part counts for as much as any other, where the framework divides losses, or is a sum, where it
        does not."""
        if not self.averages:
            return all(term.count is None for term in found)
        if weight is None or self.size * self.parts != self.whole:
            return False
        return abs(weight * self.parts - 1.0) < ROUNDING

    def _weight(self, key: Any, term: Term) -> Any:
        count = term.count
        if count is None or count == SAMPLES:
            self._sums = True
            return 1.0 if count is None else self.size / self.whole
        if isinstance(count, torch.Tensor):
            count = count.detach().to(torch.float32).reshape(())
        else:
            count = float(count)
        if key not in self._estimates:
            # As if all parts had as many a sample; `complete` corrects it.
            first = count * (self.whole / self.size)
            self._estimates[key] = (
                first.clamp(min=1.0) if isinstance(first, torch.Tensor) else first
            )
            self._counts[key] = 0.0
        self._counts[key] = self._counts[key] + count
        return count / self._estimates[key]

    def set_aside(self, job: Job) -> None:
        """Keep gradients of earlier batches apart if only the last part will tell what this one's are to be multiplied by."""
        open_ = any(isinstance(count, torch.Tensor) for count in self._counts.values())
        if self.had_gradients and open_:
            if job.gradients_elsewhere is not None:
                raise job.gradients_elsewhere.refuse(
                    "the script accumulates batches, and what a part counts for is known after the last part only",
                    beside="micro_batch",
                )
            for p in _parameters(job.optimizers):
                if p.grad is not None:
                    self._aside.append((p, p.grad))
                    p.grad = None

    def complete(self, job: Job) -> None:
        """Correct the gradients for what the counts of all parts came to; once."""
        if self._completed:
            return
        self._completed = True
        self._versions = []
        try:
            factor = self._factor()
            if factor is not None:
                for p in _parameters(job.optimizers):
                    if job.gradients_elsewhere is not None:
                        job.gradients_elsewhere.multiply(p, factor)
                    if p.grad is not None:
                        on_gpu = isinstance(factor, torch.Tensor)
                        p.grad.mul_(factor.to(p.grad.device) if on_gpu else factor)
        finally:
            for p, before in self._aside:
                p.grad = before if p.grad is None else before.add_(p.grad)
            self._aside.clear()

    def _factor(self) -> Any:
        """What this batch's gradients are to be multiplied by; None for one."""
        factors = [self._estimates[key] / self._counts[key] for key in self._counts]
        tensors = [factor for factor in factors if isinstance(factor, torch.Tensor)]
        numbers = {round(factor, 9) for factor in factors if isinstance(factor, float)}
        if self._sums:
            numbers.add(1.0)
        mixed = self.had_gradients and not self._aside
        if len(tensors) > 1 or (tensors and (numbers or mixed)):
            # Terms of several kinds: one factor must do for all of them.
            together = torch.stack([factor.to(tensors[0].device) for factor in tensors])
            numbers |= {round(factor, 6) for factor in together.tolist()}  # waits for the GPU once
            factor: Any = tensors[0] if len(numbers) == 1 else None
            if numbers == {1.0}:
                return None
        elif tensors:
            factor = tensors[0]
        elif len(numbers) <= 1:
            factor = next(iter(numbers), 1.0)
        else:
            factor = None
        if factor is None:
            raise Inseparable(
                "its loss has several parts that are means over different counts (such as samples and targets "
                "that are not ignored), which vary between micro-batches"
            )
        if isinstance(factor, float) and abs(factor - 1.0) < CLOSE:
            return None
        if mixed:
            raise Inseparable(
                "it accumulates several batches whose counts of targets differ between micro-batches"
            )
        return factor

    # ---- gradients that only backward may change ----

    def remember_gradients(self, optimizers: Any) -> None:
        """Remember the gradients after a backward pass."""
        self._versions = [
            (weakref.ref(p), id(p.grad), p.grad._version)
            for p in _parameters(optimizers)
            if p.grad is not None
        ]

    def follow(self, before: Batch | None) -> None:
        """Another batch of the same update."""
        if before is not None:
            self._versions = before._versions

    def check_gradients(self, lever: MicroBatch) -> None:
        """Refuse if the script changed or dropped them between two parts."""
        for reference, key, version in self._versions:
            p = reference()
            if p is None:
                continue
            if p.grad is None or id(p.grad) != key or p.grad._version != version:
                raise lever.refuse(
                    "it changes or drops gradients itself (p.grad = None, p.grad.zero_(), clipping by "
                    "hand), which would undo the accumulation",
                    manually=True,
                )


class Parts:
    """An iterator over the parts of each batch of a DataLoader."""

    def __init__(self, lever: MicroBatch, loader: Any, iterator: Any) -> None:
        """`iterator` goes over `loader`."""
        self._lever, self._loader, self._iterator = lever, loader, iterator
        self._waiting: list[tuple[Any, int]] = []
        self._batch: Batch | None = None
        self._layout: SampleLayout | None = None
        self._calls = -1
        self._ahead = False

    def __iter__(self) -> Parts:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next part of the batch, or the first of the next batch."""
        lever = self._lever
        mine = self._batch is not None and lever.batch is self._batch
        trained = mine and self._batch is not None and self._batch.backwards > 0
        if mine:
            self._ahead |= self._calls == lever.calls
            lever.end()
        if not self._waiting:
            batch = next(self._iterator)
            if not lever.trains():
                return batch
            self._waiting = self._pieces(batch)
            self._batch = Batch(sum(size for _, size in self._waiting), len(self._waiting))
            with contextlib.suppress(TypeError, AttributeError, NotImplementedError):
                self._batch.batches = len(self._loader)
        elif not trained and self._batch is not None and mine:
            lever.add_note("a batch without training was split before that was known")
        piece, size = self._waiting.pop(0)
        self._calls = lever.calls
        self._batch.next(size)
        self._batch.ahead = self._ahead
        lever.begin(self._batch)
        return piece

    def _pieces(self, batch: Any) -> list[tuple[Any, int]]:
        lever = self._lever
        try:
            if self._layout is None:
                # With several ranks, each has its share of the DataLoader's batch.
                shares = [one.share for one in lever.job.levers if one.share is not None]
                expected = max(1, shares[0].size) if shares else _first_size(self._loader)
                self._layout = sample_layout(batch, expected)
            return self._layout.split(batch, lever.parts)
        except CannotSplit as error:
            raise lever.refuse(str(error), manually=True) from None

    def __len__(self) -> int:
        """Batches, not parts."""
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        """What else the DataLoader's own iterator has."""
        return getattr(self._iterator, name)

    def __del__(self) -> None:
        """The loop was left by `break`, or by an error."""
        lever = self.__dict__.get("_lever")
        if lever is not None and self._batch is not None and lever.batch is self._batch:
            lever.left()


def _first_size(loader: Any) -> int | None:
    """Samples of a DataLoader's first batch, if they are known."""
    size = getattr(loader, "batch_size", None)
    if size is None:
        return None
    try:
        return min(size, len(loader.sampler))
    except (TypeError, AttributeError, NotImplementedError):
        return None


def _parameters(optimizers: Any) -> list[torch.Tensor]:
    """Of all groups, each once."""
    groups = [group for optimizer in list(optimizers) for group in optimizer.param_groups]
    return list({id(p): p for group in groups for p in group["params"]}.values())


def _times(weight: Any) -> Any:
    return lambda gradients: tuple(None if g is None else g * weight for g in gradients)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    return abs(a - b) <= CLOSE * max(abs(a), abs(b))


def _learns(module: torch.nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _is_instance_norm(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.modules.instancenorm._InstanceNorm)


def _watch_averages(put_off: Any) -> None:
    """Update PyTorch's averages of weights once per batch."""
    from torch.optim.swa_utils import AveragedModel

    original = AveragedModel.update_parameters

    @functools.wraps(original)
    def update(self: Any, model: Any) -> Any:
        return put_off(self, lambda: original(self, model))

    AveragedModel.update_parameters = update  # type: ignore[method-assign]


LEVER = MicroBatch
