"""Weights that belong to no module: what backward passes end at again and again."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from oomph._recorder.marks import Marks
from oomph._recorder.progress import MARKED_STEPS, Progress
from oomph._recorder.updates import Updates

_in_backward = torch._C._current_graph_task_id
_functorch = torch._C._functorch

MOST_NODES = 100_000
"""Nodes of a graph that are looked at."""


class Leaves:
    """Sees backward passes begin and end, whether they make a graph, and marks the weights that the first of them are for.

    A tensor that needs a gradient in one pass alone is an input.
    """

    def __init__(self, progress: Progress, marks: Marks, updates: Updates) -> None:
        """No backward pass has run yet."""
        self._progress, self._marks, self._updates = progress, marks, updates
        self._seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._passes = 0
        self._asks_for_all = False
        """Whether the last `autograd.grad` that was looked at asked for the gradients of all leaves."""

    def watch(self) -> None:
        """Begin to watch."""
        backward, grad = torch.autograd.backward, torch.autograd.grad

        @functools.wraps(backward)
        def goes_back(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            outermost = _is_outermost()
            found = self._look(tensors)
            updates = self._updates
            if outermost and updates.may_come:
                updates.begins(found)
            with self._notes_graph(args, kwargs):
                result = backward(tensors, *args, **kwargs)
            if found is not None:
                self._marks.gradients()
                found = [t for t in found if t.grad is not None or updates.changed_in_it(t)]
            if outermost and updates.may_come:
                updates.gave(found)
            return result

        @functools.wraps(grad)
        def derives(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(inputs, (torch.Tensor, tuple, list)):
                inputs = tuple(inputs)  # a generator has its items once
            given = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
            transformed = any(map(_is_transformed, given))
            outermost = _is_outermost()
            found = self._look(() if transformed else outputs)
            looks = found is not None
            if looks and transformed:
                # What a function's derivative is asked for, of functions without modules: its weights.
                given = [_plain(t) for t in given]
                self._marks.add_weights(t for t in given if t is not None and t.is_cuda)
            # The transforms of torch.func make a graph each time, which only another one around them needs.
            within = (
                contextlib.nullcontext()
                if transformed and not _is_nested()
                else self._notes_graph(args, kwargs)
            )
            with within:
                result = grad(outputs, inputs, *args, **kwargs)
            if looks:
                of_weights = map(_plain, result) if transformed else result
                self._marks.gradients_given(given, of_weights)
            if outermost and self._updates.may_come:
                makes_graph = False if transformed else self._makes_graph(args, kwargs)
                if not makes_graph and not (transformed and _is_nested()):
                    self._derived(given, found, transformed)
            return result

        torch.autograd.backward, torch.autograd.grad = goes_back, derives

    def _derived(self, given: Any, found: list[torch.Tensor] | None, transformed: bool) -> None:
        """Gradients of `given` were asked for, of an output with the leaves `found` (None: they were not looked at). Of some
        leaves alone, they are no step's: those of positions, or of pixels that a frozen model looks at."""
        asked = [t for t in map(_plain, given) if t is not None and t.is_cuda]
        if transformed:
            if self._updates.outweighs_known(asked):
                self._updates.gave(asked, new=True)
            return
        if found is not None:
            own = {id(t) for t in asked}
            self._asks_for_all = all(id(leaf) in own for leaf in found)
        if self._asks_for_all and asked:
            self._updates.gave(asked, new=True)

    @staticmethod
    def _makes_graph(args: tuple, kwargs: dict[str, Any]) -> bool:
        return bool(args[2] if len(args) > 2 else kwargs.get("create_graph"))

    @contextlib.contextmanager
    def _notes_graph(self, args: tuple, kwargs: dict[str, Any]) -> Iterator[None]:
        """Around a pass with these arguments, of which both functions take three alike: the last are `retain_graph`, `create_graph`."""
        makes = self._makes_graph(args, kwargs)
        retains = bool(args[1] if len(args) > 1 else kwargs.get("retain_graph")) and not makes
        progress = self._progress
        progress.differentiates += makes
        try:
            yield
        finally:
            progress.differentiates -= makes
            if retains and progress.is_recorded:
                progress.boundary("retained", progress.step)

    def _look(self, roots: Any) -> list[torch.Tensor] | None:
        """The leaves on the GPU, if this pass is one of the first that have some, or the weights are others than before."""
        updates = self._updates
        is_new = self._passes < MARKED_STEPS or (updates.may_come and updates.is_lost)
        is_watched = is_new and self._progress.is_recorded and torch.cuda.is_initialized()
        if not is_watched or not _is_outermost():
            return None
        again = []
        found = leaves((roots,) if isinstance(roots, torch.Tensor) else roots)
        all_leaves = [leaf for leaf in found if leaf.is_cuda]
        self._passes += bool(all_leaves)
        for leaf in all_leaves:
            if not self._marks.knows(leaf):
                seen = self._seen.get(id(leaf))
                if seen is not None and seen() is leaf:
                    again.append(leaf)
                else:
                    self._seen[id(leaf)] = weakref.ref(leaf)
        self._marks.add_weights(again)
        return all_leaves


def _is_outermost() -> bool:
    """Whether a backward pass that begins now is within no other one, and runs."""
    return _in_backward() == -1 and not torch.compiler.is_compiling()


def _is_transformed(t: Any) -> bool:
    """Whether `t` is a tensor on which a transform of `torch.func` (grad, vmap) is at work."""
    return isinstance(t, torch.Tensor) and _functorch.is_functorch_wrapped_tensor(t)


def _plain(t: Any) -> Any:
    """The tensor with memory under those that transforms of `torch.func` see."""
    while _is_transformed(t):
        t = _functorch.get_unwrapped(t)
    return t


def _is_nested() -> bool:
    """Whether derivatives are being derived by `torch.func`."""
    stack = _functorch.get_interpreter_stack() or ()
    return sum(one.key() == _functorch.TransformType.Grad for one in stack) > 1


def leaves(roots: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The leaves of the graph of `roots`."""
    ends = (getattr(t, "grad_fn", None) for t in roots)
    nodes = [node for node in ends if node is not None]
    seen = set(nodes)
    while nodes and len(seen) < MOST_NODES:
        node = nodes.pop()
        if node.name().endswith("AccumulateGrad"):
            yield node.variable
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                nodes.append(child)
