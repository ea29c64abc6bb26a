"""Runs a model's call in parts of its batch, without graph, and each part again in the backward pass."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from oomph._older_python import pairwise, zip
from oomph._random_states import RandomStates
from oomph._user_functions import in_transform
from oomph.levers._shared.autocast import Autocast
from oomph.levers._shared.base import CannotApply, Lever, failure
from oomph.levers._shared.blocks import CONTAINERS
from oomph.levers._shared.deferred_rows import lazy_for_the_whole_batch
from oomph.levers._shared.forward import around_forward
from oomph.levers._shared.job import Backward, Job
from oomph.levers._shared.loss_terms import (
    PARAMETERS,
    SAMPLES,
    Inseparable,
    Term,
    coupled,
    guard,
    nodes,
    terms,
)
from oomph.levers._shared.recomputation import (
    attention_kernels,
    set_attention_kernels,
    without_graph,
)
from oomph.levers._shared.sample_parts import (
    Joined,
    Output,
    Samples,
    cut,
    describe,
    lazy_places,
    leaves,
    like_results,
    results,
    samples,
    with_leaves,
)
from oomph.levers._shared.splitting import CannotSplit

BATCH_NORMS = (torch.nn.modules.batchnorm._BatchNorm,)
WRAPPERS = (torch.nn.parallel.DistributedDataParallel,)
"""Modules that call one other module with their own arguments; the other is split."""
SEQUENCE_FIRST = (torch.nn.RNNBase, torch.nn.Transformer, torch.nn.MultiheadAttention)
"""Modules whose first dimension is not the samples unless `batch_first` says so."""
COMPARED = 4
"""Samples of which the outputs are compared, together and apart."""
LEVELS = 2
"""How deep inside of models that stay whole others are split: blocks further inside keep little beside what is whole."""
FEW = 1 << 16
"""Entries of a saved tensor up to which it is kept for a look at the graph."""
TOLERANCE = {torch.float32: 5e-3, torch.float64: 5e-3}
"""Relative to the largest output; other types have `COARSE`."""
COARSE = 0.1


class SplitForward(Lever):
    """Runs each outermost model's call in parts, and each part again in the backward pass.

    The first pass keeps no graph but the last part's: outputs and random states. When the gradient of the outputs
    arrives, the last part goes backward, and then one part after the other runs again with its graph and does the same. Needs: models that
    compute each sample by itself; no DataLoader and no certain kind of loop or loss, since the script gets the
    whole batch's outputs (gradient caching). Changes: what a call saves is one part's; one more forward
    pass. Results: the same to rounding; random layers draw other numbers, since one draw becomes
    several, and the same ones in both passes.

    Passes without gradients over as much, of a teacher or a target network, run in parts, too. Of a model that
    cannot be split, since it computes its loss itself, say, the models inside are split that get its samples.

    Refused by name: batch normalization in training, models that compare samples, outputs and losses that do
    not follow from those of the parts, gradients of gradients, transforms of `torch.func`.
    """

    name = "split_forward"

    def __init__(self, parts: int) -> None:
        """`parts`: how many."""
        super().__init__()
        if parts < 2:
            raise self.refuse(f"parts is {parts}; at least 2 are needed to split a batch")
        self.parts = parts
        self.exchanges = False
        """Whether ranks exchange gradients."""
        self.running = False
        """Whether a part runs; what it calls is not split again."""
        self.layouts: weakref.WeakKeyDictionary[torch.nn.Module, dict[Any, Layout | str]] = (
            weakref.WeakKeyDictionary()
        )
        """What kinds of calls of a model are like, or why they cannot be split."""
        self.whole: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Models that are left whole,"""
        self.reason: str | None = None
        """and why the first one is."""
        self.sizes: set[int] | None = None
        """How many samples the one whose call runs got; None outside of these."""
        self.levels: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        """How many of them are around a model that is split, not counting those that only pass it on."""
        self.whole_passes: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Those whose passes without gradients are."""
        self.largest = 0
        """Entries of the arguments of the largest call that was split for training."""
        self.holder: Callable[[], Any] = lambda: None
        """The call whose last part's graph is still there, if any."""

    def install(self, job: Job) -> None:
        """Around the outermost models."""
        self.job = job
        job.on_model.append(self._model)
        job.on_backward.append(self._backward)

    def _backward(self, backward: Backward) -> None:
        """Refuse before the first backward pass if none of the models that were called is split."""
        if self.reason is not None and not self.applied:
            raise self.refuse(self.reason, manually=True)

    def finish(self) -> None:
        """Say that nothing was split."""
        if not self.applied and self.note is None:
            self.note = "no model was called with gradients on a batch of two samples or more"

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        while isinstance(root, WRAPPERS):
            root, self.exchanges = root.module, True
        if _saves_inside(root):
            self.handles.append(around_forward(root, self._around, self.order))

    def _around(
        self, module: torch.nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
    ) -> Any:
        if self.running:
            return forward(*args, **kwargs)
        if module in self.whole:
            return self._inside(forward, args, kwargs)
        if torch._C._len_torch_dispatch_stack() > 0:
            return forward(*args, **kwargs)  # another lever looks at what the whole call does
        if not torch.is_grad_enabled():
            return self._without_gradients(module, forward, args, kwargs)
        if torch.compiler.is_compiling():
            raise self.refuse(
                f"{type(module).__name__} is called inside a function that is compiled by torch.compile"
            )
        given = list(leaves((args, kwargs)))
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        if not tensors or not any(t.requires_grad for t in (*tensors, *module.parameters())):
            return forward(*args, **kwargs)
        if in_transform():
            self._leave_whole(module, "it is called within a transform of torch.func")
            return forward(*args, **kwargs)
        try:
            places = [where for where in samples(args, kwargs) if self._is_batch(where)]
            if not places:
                return forward(*args, **kwargs)
            output = self._in_parts(module, forward, args, kwargs, places)
        except (CannotSplit, Inseparable) as error:
            self._leave_whole(module, str(error))
            self._split_inside(module)
            return self._inside(forward, args, kwargs)
        self.applied += 1
        self.largest = max(self.largest, _elements(tensors))
        return output

    def _without_gradients(
        self, module: torch.nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
    ) -> Any:
        """A teacher or a target network sees what is trained on, and as much at once: in parts, too. Smaller calls,
        as of one token after the other, and what cannot be split, stay whole."""
        given = list(leaves((args, kwargs)))
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        is_small = not tensors or _elements(tensors) < self.largest
        if is_small or module in self.whole_passes or torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        try:
            places = [where for where in samples(args, kwargs) if where.size > 1]
            if places:
                output = self._in_parts(module, forward, args, kwargs, places)
                self.applied += 1
                return output
        except (CannotSplit, Inseparable):
            self.whole_passes.add(module)
        return forward(*args, **kwargs)

    def _in_parts(
        self, module: Any, forward: Any, args: tuple, kwargs: dict, places: list[Samples]
    ) -> Any:
        """Raises `CannotSplit` for the first of the `places` where samples may be."""
        layouts = self.layouts.setdefault(module, {})
        kinds = tuple(map(_kind, leaves((args, kwargs))))
        reasons = []
        for where in places:
            call = Call(self, module, forward, args, kwargs, where)
            key = (module.training, tuple(kwargs), kinds, call.trains, where.dim)
            try:
                if key not in layouts:
                    layouts[key] = call.look()
                layout = layouts[key]
                if isinstance(layout, Layout):
                    return call.run(layout)
                reasons.append(layout)
            except (CannotSplit, Inseparable) as error:
                layouts.setdefault(key, str(error))
                reasons.append(str(error))
        raise CannotSplit(reasons[0])

    def _leave_whole(self, module: torch.nn.Module, why: str) -> None:
        """A model beside or around others that are split may stay as it is; alone it is refused."""
        name = type(module).__name__
        self.reason = self.reason or f"the call of {name} cannot be split: {why}"
        self.whole.add(module)
        self.add_note(f"{name} is left whole: {why}")

    def _split_inside(self, module: torch.nn.Module) -> None:
        parts = [part for part in _called_inside(module) if _saves_inside(part)]
        level = self.levels.get(module, 0) + (len(parts) > 1)
        for part in parts if level <= LEVELS else ():
            self.levels[part] = level
            self.handles.append(around_forward(part, self._around, self.order))

    def _inside(self, forward: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """The call of a model that is left whole."""
        outer, self.sizes = self.sizes, set()
        with contextlib.suppress(CannotSplit):
            self.sizes.update(where.size for where in samples(args, kwargs))
        try:
            return forward(*args, **kwargs)
        finally:
            self.sizes = outer

    def _is_batch(self, where: Samples) -> bool:
        """Whether samples may be there: several, and inside of another model's call as many as it got. The first dimension of
        what its parts get may be another one."""
        return where.size > 1 and (self.sizes is None or where.size in self.sizes)


class Layout:
    """What a call's outputs are, and which state it changes: found when it is first made."""

    def __init__(
        self,
        outputs: list[Output],
        lazy: list[bool],
        others: list[torch.Tensor],
        changed: list[tuple[int, str]],
    ) -> None:
        """`lazy`: which outputs are lazy rows. `others`: parameters of other modules that it uses.
        `changed`: buffers, by the number of their module and their name."""
        self.outputs, self.lazy, self.changed = outputs, lazy, changed
        self.others = [weakref.ref(other) for other in others]

    @property
    def needs_graph(self) -> bool:
        """Whether the first pass has a graph, too: a loss, whose graph tells how parts are weighed, or
        rows that are lazy only with gradients."""
        return any(self.lazy) or any(one.kind == "loss" for one in self.outputs)


class Part(NamedTuple):
    """The arguments for some of the samples, and how many these are."""

    args: tuple
    kwargs: dict
    size: int


class Kept(NamedTuple):
    """A part that has its graph: its results, and the tensors among its arguments."""

    results: list[Any]
    given: list[torch.Tensor]


class Call:
    """One call of a model, in parts."""

    def __init__(
        self,
        lever: SplitForward,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        args: tuple,
        kwargs: dict,
        where: Samples,
    ) -> None:
        """`where`: the samples of the batch."""
        self.lever, self.module, self.forward = lever, module, forward
        self.where, self.size = where, where.size
        self.trains = torch.is_grad_enabled()
        found = list(leaves((args, kwargs)))
        self.given = [t for t in found if isinstance(t, torch.Tensor)]
        """The script's own tensors, whose gradients go on; until the graph has them."""
        cut_off = (_cut_off(t) if isinstance(t, torch.Tensor) else t for t in found)
        self.arguments: Any = with_leaves((args, kwargs), cut_off)
        pieces = min(lever.parts, where.size)
        bounds = [where.size * number // pieces for number in range(pieces + 1)]
        self.ranges = list(pairwise(bounds))
        self.modules = list(module.modules())
        self.autocast = Autocast("cuda", "cpu")
        self.generators = [g for g in leaves(self.arguments) if isinstance(g, torch.Generator)]
        self.as_before = False
        """Whether the outputs have rows that are lazy in each part."""
        self.results: list[Any] = []
        """Differentiable outputs of the whole batch, until the graph has them."""
        self.kept: Kept | None = None
        """The last part, until the graph has it."""

    # ---- what a call is like ----

    def look(self) -> Layout:
        """Run a few samples, and refuse what does not follow from its parts.

        Raises `CannotSplit` or `Inseparable`. Leaves random states and buffers as they were.
        """
        self._check_modules()
        random, before = self._random(), self._buffers(None)
        try:
            # One sample alone cannot show what compares samples; but two may be more than a part is. What their graph saves
            # is not kept then: it is looked at, and gone through only if the pass itself goes backward.
            part = self.ranges[0][1]
            if part > 1:
                with contextlib.suppress(torch.OutOfMemoryError):
                    return self._look(before, part)
                self._set_buffers(before)
                random.restore()
            for kept in (_without_saved(), contextlib.nullcontext()):
                try:
                    with kept:
                        return self._look(before, 2)
                except (CannotSplit, Inseparable):
                    raise
                except Exception as error:
                    last = error.with_traceback(None)  # whose frames hold tensors
                self._set_buffers(before)
                random.restore()
            if not isinstance(last, torch.OutOfMemoryError):
                raise last
            return self._look(before, 1)
        except (CannotSplit, Inseparable, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise CannotSplit(
                f"its forward pass fails for a part of the batch: {type(error).__name__}: {error}"
            ) from error
        finally:
            self._set_buffers(before)
            random.restore()

    def _check_modules(self) -> None:
        for name, part in self.module.named_modules():
            if isinstance(part, BATCH_NORMS) and part.training:
                raise CannotSplit(
                    f"batch normalization ({name or type(part).__name__}) computes its statistics over all samples "
                    "of a batch. Put it into evaluation mode (freeze it), or replace it by GroupNorm"
                )
        sequence_first = isinstance(self.module, SEQUENCE_FIRST) and not self.module.batch_first
        if sequence_first and self.where.dim == 0:
            raise CannotSplit(
                "the first dimension of its input is not the samples (batch_first=False)"
            )
        if any(type(part).__name__.startswith(("FSDP", "FullySharded")) for part in self.modules):
            raise CannotSplit("its parameters are sharded (FSDP)")

    def _look(self, before: dict[tuple[int, str], torch.Tensor], count: int) -> Layout:
        sizes = count, 2 if count == 1 else 1
        since = _newest_node()
        versions = self._versions()
        random = self._random()
        with torch.set_grad_enabled(self.trains):
            first = self._forward(self._cut(0, sizes[0]), caches=False)
        if self._versions() != versions:
            raise self._changes_argument()  # it has: the script's own call would be another
        tensors = [t for t in results(first) if isinstance(t, torch.Tensor) and t.requires_grad]
        for tensor in tensors:
            if why := coupled(tensor, sizes[0]):
                raise Inseparable(why)
        others = self._other_parameters(tensors, since)
        changed = self._changed(before)
        after = {key: self._buffer(key).clone() for key in changed}
        self._set_buffers(before)
        random.restore()
        lazy = lazy_places(first)
        with torch.set_grad_enabled(any(lazy) and self.trains):
            second = self._forward(self._cut(0, sizes[1]), caches=False)
        outputs = describe(first, second, sizes, self.where.dim, _only_parameters)
        layout = Layout(outputs, lazy, others, changed)
        Weights(layout, self).add(first, 0, sizes[0])
        for key, value in after.items():
            if not torch.equal(value, self._buffer(key)):
                name = ".".join(filter(None, (type(self.modules[key[0]]).__name__, key[1])))
                raise CannotSplit(f"its buffer {name} follows the samples of a batch")
        self._set_buffers(before)
        self._compare(before, layout)
        return layout

    def _other_parameters(self, tensors: list[torch.Tensor], since: int) -> list[torch.Tensor]:
        """Parameters of other modules in the graph of `tensors`."""
        own = {id(p) for p in self.module.parameters()} | {id(t) for t in self._tensors()}
        others: dict[int, torch.Tensor] = {}
        for node in _graph(tensors):
            variable = getattr(node, "variable", None)
            if variable is not None:
                if id(variable) not in own:
                    others[id(variable)] = variable
            elif node._sequence_nr() <= since:
                raise CannotSplit(
                    "it uses a tensor with gradients that is none of its arguments and was computed before"
                )
        return list(others.values())

    def _compare(self, before: dict[tuple[int, str], torch.Tensor], layout: Layout) -> None:
        """Whether a few samples together give what they give apart, in evaluation mode."""
        count = min(COMPARED, self.size, max(2, self.ranges[0][1]))
        training = [part for part in self.modules if part.training]
        for part in training:
            part.training = False
        random = self._random()
        weights = Weights(layout, self)
        try:
            found: list[list[Any]] = []
            with torch.set_grad_enabled(bool(weights.places)):
                for begin, end in ((0, count), (0, 1), (1, count)):
                    output = self._forward(self._cut(begin, end), caches=False)
                    if found:
                        with contextlib.suppress(Inseparable):  # so few may look like others
                            weights.add(output, begin, end)
                    found.append(results(output))
                    self._set_buffers(before)
            if not random.has_drawn():
                _check_alike(found, count)
                weights.check(found[0], found[1])
        except CannotSplit:
            raise
        except Exception as error:
            self.lever.add_note(
                "could not compare samples together and apart: in evaluation mode "
                f"{type(self.module).__name__} raised {type(error).__name__}"
            )
        finally:
            for part in training:
                part.training = True

    # ---- the first pass ----

    def run(self, layout: Layout) -> Any:
        """The output of the whole batch; its gradients come to `backward`."""
        self.layout, self.as_before = layout, any(layout.lazy)
        joined = Joined(layout.outputs, self.size)
        self.weights = Weights(layout, self)
        self.kernels, self.modes = attention_kernels(), [part.training for part in self.modules]
        self.before = self._buffers(layout.changed)
        self.randoms: list[RandomStates] = []
        versions = self._versions()
        mode = torch.enable_grad if layout.needs_graph and self.trains else torch.no_grad
        output = None
        for begin, end in self.ranges:
            if begin:
                self._set_buffers(self.before)
            self.randoms.append(self._random())
            output = None  # and the graph of the part before, if it has one
            if end == self.size and self.trains and self.lever.holder() is None:
                # As large as a part that runs again. Of several calls before a backward pass one alone may have it.
                part, pieces = self._part(begin, end, self._tensors())
                with torch.enable_grad():
                    output = self._forward(part)
                self.kept = Kept(results(output), pieces)
            else:
                with mode():
                    output = self._forward(self._cut(begin, end), caches=False)
            self.randoms[-1].keep_if_drawn()
            try:
                if lazy_places(output) != layout.lazy:
                    raise CannotSplit("logits are computed lazily in some calls and not in others")
                joined.add(output, begin, end)
                self.weights.add(output, begin, end)
            except (CannotSplit, Inseparable):
                self._set_buffers(self.before)
                self.randoms[0].restore()
                raise
        if self._versions() != versions:
            raise self._changes_argument()
        if not self.trains:
            # `weights` refers to this call: without this, its arguments would live until Python looks for cycles.
            self.given, self.arguments = [], ()
            return like_results(output, joined.values)
        self.weights.finish(joined.values)
        return self._connect(output, joined.values)

    def _connect(self, output: Any, values: list[Any]) -> Any:
        """`values` in containers like those of `output`, with the node that goes back."""
        given, self.given = self.given, []
        self.inputs = [number for number, t in enumerate(given) if t.requires_grad]
        parameters: list[torch.Tensor] = [p for p in self.module.parameters() if p.requires_grad]
        parameters += [p for ref in self.layout.others if (p := ref()) is not None]
        self.parameters = list(dict.fromkeys(parameters))
        self.parameter_versions = [p._version for p in self.parameters]
        self.numbers = [n for n, one in enumerate(self.layout.outputs) if one.differentiable]
        self.results = [values[number] for number in self.numbers]
        # The graph keeps the tensors, so that it lets them go.
        places = iter(
            [_TENSOR if isinstance(t, torch.Tensor) else t for t in leaves(self.arguments)]
        )
        self.arguments = with_leaves(self.arguments, places)
        made = _Node.apply(
            self, given, *(given[number] for number in self.inputs), *self.parameters
        )
        for number, tensor in zip(self.numbers, made, strict=True):
            values[number] = tensor
        return like_results(output, values)

    # ---- the second ----

    def backward(
        self,
        given: tuple[torch.Tensor, ...],
        needed: tuple[bool, ...],
        gradients: tuple[Any, ...],
        kept: list[Kept],
    ) -> list[Any]:
        """Gradients of the arguments and parameters that are `needed`, from those of the outputs; `kept` may have the last part."""
        if [p._version for p in self.parameters] != self.parameter_versions:
            raise failure(
                self.lever.name,
                f"parameters of {type(self.module).__name__} were changed between its forward and its "
                "backward pass, so that it cannot be computed again as it was",
            )
        inputs = [number for number, need in zip(self.inputs, needed, strict=False) if need]
        chosen = needed[len(self.inputs) :]
        parameters = [p for p, need in zip(self.parameters, chosen, strict=True) if need]
        totals = Totals(parameters, self.lever.exchanges, self.lever.job.gradients_elsewhere)
        of_inputs: dict[int, torch.Tensor] = {}
        outer = attention_kernels(), [part.training for part in self.modules]
        now = self._buffers(self.layout.changed)
        try:
            set_attention_kernels(self.kernels)
            self._set_modes(self.modes)
            count = len(self.ranges)
            for number in (count - 1, *range(count - 1)) if kept else range(count):
                part = kept.pop() if kept else self._again(number, given)
                self._part_backward(number, part, given, inputs, totals, of_inputs, gradients)
        finally:
            set_attention_kernels(outer[0])
            self._set_modes(outer[1])
            self._set_buffers(now)
        of_parameters = totals.take()
        return [
            *(of_inputs.pop(number, None) for number in self.inputs),
            *(of_parameters.pop(id(p), None) for p in self.parameters),
        ]

    def _part(self, begin: int, end: int, given: Any) -> tuple[Part, list[torch.Tensor]]:
        """The arguments of a part, and the tensors among them, which get gradients of their own."""
        pieces = [cut(t.detach(), self.where, begin, end) for t in given]
        pieces = [
            piece.detach().requires_grad_() if t.requires_grad else piece
            for piece, t in zip(pieces, given, strict=True)
        ]
        tensors = iter(pieces)
        places = (
            next(tensors) if t is _TENSOR or isinstance(t, torch.Tensor) else t
            for t in leaves(self.arguments)
        )
        return self._cut(begin, end, with_leaves(self.arguments, places)), pieces

    def _again(self, number: int, given: tuple[torch.Tensor, ...]) -> Kept:
        """A part's second pass."""
        part, pieces = self._part(*self.ranges[number], given)
        self._set_buffers(self.before)
        random = self.randoms[number]
        random.restore()
        try:
            with torch.enable_grad():
                output = self._forward(part)
        finally:
            random.put_back()
        return Kept(results(output), pieces)

    def _part_backward(self, number, kept, given, inputs, totals, of_inputs, gradients) -> None:
        """Add the gradients of one part."""
        (begin, end), (found, pieces) = self.ranges[number], kept
        roots, given_gradients = [], []
        for place, gradient in zip(self.numbers, gradients, strict=True):
            tensor, one = found[place], self.layout.outputs[place]
            if gradient is None or not tensor.requires_grad:
                continue
            if one.kind == "samples":
                gradient = gradient.narrow(one.dim, begin * one.rows, (end - begin) * one.rows)
            elif one.kind == "loss":
                gradient = self.weights.gradient(place, number, gradient, found)
            elif begin:
                continue
            roots.append(tensor)
            given_gradients.append(gradient)
        if not roots:
            return
        leaf_inputs = [pieces[one] for one in inputs]
        found.clear()
        with totals.adding():
            got = torch.autograd.grad(
                roots, [*leaf_inputs, *totals.parameters], given_gradients, allow_unused=True
            )
        for one, gradient in zip(inputs, got[: len(inputs)], strict=True):
            if gradient is None:
                continue
            whole = given[one]
            dim = self.where.dim_of(whole)
            if dim is not None:
                if one not in of_inputs:
                    of_inputs[one] = torch.zeros_like(whole)
                of_inputs[one].narrow(dim, begin, end - begin).copy_(gradient)
            else:
                of_inputs[one] = of_inputs[one] + gradient if one in of_inputs else gradient

    # ---- state ----

    def _forward(self, part: Part, caches: bool | None = None) -> Any:
        self.lever.running = True
        try:
            lazily = lazy_for_the_whole_batch(self.size / part.size, self.as_before)
            with self.autocast.again(caches), lazily:
                if not torch.is_grad_enabled():
                    return self.forward(*part.args, **part.kwargs)
                with self.lever.job.part(self.module, part.args, part.kwargs) as output:
                    output.append(self.forward(*part.args, **part.kwargs))
                return output.pop()
        finally:
            self.lever.running = False

    def _cut(self, begin: int, end: int, arguments: Any = None) -> Part:
        args, kwargs = arguments or self.arguments
        return Part(
            tuple(cut(value, self.where, begin, end) for value in args),
            {name: cut(value, self.where, begin, end) for name, value in kwargs.items()},
            end - begin,
        )

    def _tensors(self) -> list[torch.Tensor]:
        return [t for t in leaves(self.arguments) if isinstance(t, torch.Tensor)]

    def _changes_argument(self) -> CannotApply:
        why = f"{type(self.module).__name__} changes an argument in place"
        return self.lever.refuse(why, manually=True)

    def _versions(self) -> list[int]:
        return [t._version for t in self._tensors() if not t.is_inference()]

    def _random(self) -> RandomStates:
        return RandomStates(generators=self.generators)

    def _set_modes(self, modes: list[bool]) -> None:
        for part, mode in zip(self.modules, modes, strict=True):
            if part.training != mode:
                part.training = mode

    def _buffer(self, key: tuple[int, str]) -> torch.Tensor:
        number, name = key
        return self.modules[number]._buffers[name]  # type: ignore[return-value]

    def _buffers(self, chosen: list[tuple[int, str]] | None) -> dict[tuple[int, str], torch.Tensor]:
        """Copies of the buffers as they are now: those `chosen`, or all."""
        if chosen is None:
            chosen = [
                (number, name)
                for number, part in enumerate(self.modules)
                for name, buffer in part._buffers.items()
                if buffer is not None
            ]
        return {key: self._buffer(key).detach().clone() for key in chosen}

    def _set_buffers(self, copies: dict[tuple[int, str], torch.Tensor]) -> None:
        with torch.no_grad():
            for key, copy in copies.items():
                if not torch.equal(self._buffer(key), copy):
                    self._buffer(key).copy_(copy)

    def _changed(self, before: dict[tuple[int, str], torch.Tensor]) -> list[tuple[int, str]]:
        return [key for key, copy in before.items() if not torch.equal(self._buffer(key), copy)]


class Weights:
    """How the losses of the parts make that of the batch, for models that return a loss."""

    def __init__(self, layout: Layout, call: Call) -> None:
        """No part has run."""
        self.places = [n for n, one in enumerate(layout.outputs) if one.kind == "loss"]
        self.call = call
        self.constants = {
            t.data_ptr(): t
            for t in leaves(call.arguments)
            if isinstance(t, torch.Tensor) and not t.dim()
        }
        self.counts: dict[int, list[Any]] = {place: [] for place in self.places}
        self.sums: dict[int, Any] = {}

    def add(self, output: Any, begin: int, end: int) -> None:
        """The output of a part, with its graph."""
        found = results(output)
        for place in self.places:
            loss = found[place]
            count = self._count(self._terms(place, found, end - begin), end - begin)
            self.counts[place].append(count)
            loss = loss.detach()
            if isinstance(count, torch.Tensor):
                loss = torch.where(count > 0, loss * count, 0.0)
            elif count is not None:
                loss = loss * count
            self.sums[place] = self.sums[place] + loss if place in self.sums else loss

    def finish(self, values: list[Any]) -> None:
        """Put the batch's losses among its outputs."""
        for place, total in self.sums.items():
            values[place] = total / self._whole(place) if self._whole(place) is not None else total

    def check(self, whole: list[Any], first: list[Any]) -> None:
        """Raise `CannotSplit` if the losses of a `whole` do not follow from those of the two parts that were added,
        of which one is the `first`."""
        for place, total in self.sums.items():
            if len(self.counts[place]) != 2:
                continue
            loss, own = float(whole[place]), float(first[place])
            counts = self._whole(place)
            off = abs(float(total if counts is None else total / counts) - loss)
            if off > _tolerance(whole[place]) * max(abs(loss), abs(own)):
                raise CannotSplit(
                    f"the loss that it returns is no sum or mean over samples: {loss:.6g} for some of them together is "
                    f"{off:.2g} off what follows from them apart"
                )

    def gradient(self, place: int, number: int, gradient: Any, found: list[Any]) -> Any:
        """What comes back to the loss of a part."""
        begin, end = self.call.ranges[number]
        for term in self._terms(place, found, end - begin):
            if term.guard is not None:
                guard(term.guard, term.count)
        whole = self._whole(place)
        return gradient if whole is None else gradient * (self.counts[place][number] / whole)

    def _whole(self, place: int) -> Any:
        counts = self.counts[place]
        return None if counts[0] is None else sum(counts[1:], counts[0])

    def _terms(self, place: int, found: list[Any], size: int) -> list[Term]:
        def assume(what: str) -> None:
            raise Inseparable(what.partition(":")[0])

        constant = next(iter(self.constants.values()), None)
        batch = SimpleNamespace(size=size, whole=self.call.size, constant=constant, divided=())
        others = [t for number, t in enumerate(found) if number not in self.places]
        return terms(found[place], batch, nodes(others), assume)

    def _count(self, found: list[Term], size: int) -> Any:
        """What a part's loss counts for, which all its terms must agree on; None for sums."""
        counts: list[Any] = []
        for term in found:
            count = term.count
            if isinstance(count, str) and count == PARAMETERS:
                continue
            if isinstance(count, torch.Tensor):
                if count.numel() == 1 and count.data_ptr() in self.constants:
                    count = None
                else:
                    count = count.detach().reshape(())
            elif count is not None and (count == SAMPLES or count % size == 0):
                count = size
            if not any(_same(count, known) for known in counts):
                counts.append(count)
        learned = any(isinstance(term.count, str) and term.count == PARAMETERS for term in found)
        if len(counts) > 1 or (learned and counts == [None]):
            raise Inseparable(
                "the loss that it returns has terms that count different things: compute the loss outside of it"
            )
        return counts[0] if counts else size


class Totals:
    """Gradients of parameters, added up over parts as each arrives."""

    def __init__(self, parameters: list[torch.Tensor], exchanged: bool, elsewhere: Any) -> None:
        """None so far. Where a script accumulates they are added to what it has, unless ranks exchange them. `elsewhere` is the
        lever that keeps them on the host, if one does."""
        self.parameters, self.elsewhere = parameters, elsewhere
        self._away = {id(p) for p in parameters if elsewhere and elsewhere.takes(p) and _is_for(p)}
        self._there = {id(p): p.grad for p in parameters if not exchanged and _accumulates(p)}
        self._sums: dict[int, torch.Tensor] = {}
        self._own: set[int] = set()
        """Those that nothing else refers to."""

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Within a backward pass, of which the gradients are to be added."""
        hooks, theirs = [], []
        for parameter in self.parameters:
            # The script's hooks see the whole batch's gradient, once.
            if parameter._backward_hooks:
                theirs.append((parameter._backward_hooks, dict(parameter._backward_hooks)))
                parameter._backward_hooks.clear()
            hooks.append(parameter.register_hook(self._adder(parameter)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for current, before in theirs:
                current.update(before)

    def take(self) -> dict[int, torch.Tensor]:
        """The sums, by the `id` of the parameter."""
        sums, self._sums = self._sums, {}
        return sums

    def _adder(self, parameter: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        number = id(parameter)

        def add(gradient: torch.Tensor) -> torch.Tensor:
            known = self._sums.get(number)
            if number in self._away and gradient.layout == torch.strided:
                self.elsewhere.take(parameter, gradient.detach())
            elif number in self._there:
                self._there[number].add_(gradient)
            elif known is None:
                self._sums[number] = gradient
            elif number in self._own:
                known += gradient
            else:
                # The first may be another parameter's, too.
                self._sums[number] = known + gradient
                self._own.add(number)
            if gradient.layout != torch.strided:
                return gradient
            # Nobody needs what is handed on: nothing of its size is kept.
            return gradient.new_zeros(()).expand_as(gradient)

        return add


def _accumulates(p: torch.Tensor) -> bool:
    """Whether the backward pass that runs adds to a gradient that is there, where nobody else looks."""
    watched = p._backward_hooks or p._post_accumulate_grad_hooks  # type: ignore[attr-defined]
    return p.grad is not None and p.grad.layout == torch.strided and not watched and _is_for(p)


def _is_for(p: torch.Tensor) -> bool:
    """Whether the backward pass that runs is to give `p` a gradient."""
    if not p.is_leaf:
        return False
    with torch.enable_grad():
        node = p.view_as(p).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return False  # `autograd.grad` wants it


class _Node(torch.autograd.Function):
    """The graph's node for a whole call."""

    @staticmethod
    def forward(ctx: Any, call: Call, given: list[torch.Tensor], *tensors: torch.Tensor) -> Any:
        ctx.call = call
        # Not the call's: it refers to itself, and would keep the graph until Python looks for cycles.
        ctx.kept = _Holder([call.kept] if call.kept else [])
        if call.kept:
            call.kept, call.lever.holder = None, weakref.ref(ctx.kept)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given)
        results, call.results = call.results, []
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call = ctx.call
        if torch.is_grad_enabled():
            raise call.lever.refuse(
                "the script asks for gradients of gradients (create_graph=True) through "
                f"{type(call.module).__name__}, which runs without its graph",
                manually=True,
            )
        kept, ctx.kept = ctx.kept, _Holder()
        return (
            *(None, None),
            *call.backward(ctx.saved_tensors, ctx.needs_input_grad[2:], gradients, kept),
        )


class _Holder(list):
    """A list that can be referred to weakly."""


_TENSOR = object()
"""Stands for a tensor that the graph keeps."""


def _saves_inside(root: torch.nn.Module) -> bool:
    """Whether splitting a call of `root` can save anything: a single layer keeps little but its input."""
    if next(root.parameters(), None) is None:
        return False
    single = next(root.children(), None) is None
    own = type(root).__module__.startswith("torch.nn.modules")
    return not (single and own) or isinstance(root, torch.nn.RNNBase)


def _called_inside(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The modules of several layers that `module` itself calls, perhaps."""
    for part in module.children():
        if isinstance(part, CONTAINERS):
            yield from _called_inside(part)
        elif next(part.children(), None) is not None or isinstance(part, torch.nn.RNNBase):
            yield part


def _without_saved() -> Any:
    """Within it graphs save no large tensors, but for integers (targets): zeros of their shapes stand for them."""

    def pack(tensor: torch.Tensor) -> Any:
        if not tensor.is_floating_point() or tensor.numel() <= FEW:
            return without_graph(tensor)
        return torch.Size(tensor.shape), tensor.dtype, tensor.device

    def unpack(kept: Any) -> torch.Tensor:
        if isinstance(kept, torch.Tensor):
            return kept
        if torch._C._current_graph_task_id() != -1:
            raise RuntimeError("a backward pass needs what was not saved")
        shape, dtype, device = kept
        return torch.zeros((), dtype=dtype, device=device).expand(shape)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _elements(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _cut_off(tensor: torch.Tensor) -> torch.Tensor:
    """It without what it came from."""
    return tensor.detach().requires_grad_() if tensor.requires_grad else tensor


def _kind(value: Any) -> Any:
    return (value.dim(), value.requires_grad) if isinstance(value, torch.Tensor) else type(value)


def _newest_node() -> int:
    """The number of a node that is newer than all others of this thread."""
    with torch.enable_grad():
        return (torch.zeros((), requires_grad=True) * 1).grad_fn._sequence_nr()  # type: ignore[union-attr]


def _graph(tensors: list[torch.Tensor]) -> Iterator[Any]:
    """All nodes of the graph of `tensors`."""
    waiting = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)


def _only_parameters(tensor: torch.Tensor) -> bool:
    """Whether it is a parameter, or a single value made of parameters of one value each."""
    if tensor.is_leaf:
        return True
    return tensor.numel() == 1 and all(
        torch.Size(node._input_metadata[0].shape).numel() == 1 for node in _graph([tensor])
    )


def _check_alike(found: list[list[Any]], count: int) -> None:
    """Raise `CannotSplit` if outputs for `count` samples are not those of the first and of the others."""
    for whole, first, rest in zip(*found, strict=True):
        if not isinstance(whole, torch.Tensor):
            continue
        varying = [d for d in range(whole.dim()) if whole.shape[d] != first.shape[d]]
        if len(varying) != 1 or not whole.is_floating_point():
            continue
        apart = torch.cat([first, rest], varying[0])
        if apart.shape != whole.shape:
            raise CannotSplit("the shape of an output depends on the other samples of the batch")
        largest = float(whole.abs().max()) if whole.numel() else 0.0
        tolerance = _tolerance(whole)
        off = float((apart - whole).abs().max()) if whole.numel() else 0.0
        if off > tolerance * largest:
            raise CannotSplit(
                f"its output for a sample depends on the other samples of the batch ({count} samples together "
                "give other values than apart)"
            )


def _tolerance(whole: torch.Tensor) -> float:
    """Relative to the largest value."""
    narrow = torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
    return COARSE if narrow else TOLERANCE.get(whole.dtype, COARSE)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a is b or bool(torch.equal(a, b))
    return type(a) is type(b) and a == b


LEVER = SplitForward
