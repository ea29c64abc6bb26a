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

_in_backward = torch._C._current_graph_task_id

MOST_NODES = 100_000
"""Nodes of a graph that are looked at."""


class Leaves:
    """Sees backward passes begin and end, whether they make a graph, and marks the weights that the first of them are for.

    A tensor that needs a gradient in one pass alone is an input.
    """

    def __init__(self, progress: Progress, marks: Marks) -> None:
        """No backward pass has run yet."""
        self._progress, self._marks = progress, marks
        self._seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._passes = 0

    def watch(self) -> None:
        """Begin to watch."""
        backward, grad = torch.autograd.backward, torch.autograd.grad

        @functools.wraps(backward)
        def goes_back(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            looks = self._look(tensors)
            with self._makes_graph(args, kwargs):
                result = backward(tensors, *args, **kwargs)
            if looks:
                self._marks.gradients()
            return result

        @functools.wraps(grad)
        def derives(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(inputs, (torch.Tensor, tuple, list)):
                inputs = tuple(inputs)  # a generator has its items once
            looks = self._look(outputs)
            with self._makes_graph(args, kwargs):
                result = grad(outputs, inputs, *args, **kwargs)
            if looks:
                one = isinstance(inputs, torch.Tensor)
                self._marks.gradients_given((inputs,) if one else inputs, result)
            return result

        torch.autograd.backward, torch.autograd.grad = goes_back, derives

    @contextlib.contextmanager
    def _makes_graph(self, args: tuple, kwargs: dict[str, Any]) -> Iterator[None]:
        """Around a pass with these arguments, of which both functions take three alike: `create_graph` is the last of those."""
        makes = bool(args[2] if len(args) > 2 else kwargs.get("create_graph"))
        self._progress.differentiates += makes
        try:
            yield
        finally:
            self._progress.differentiates -= makes

    def _look(self, roots: Any) -> bool:
        """Whether this pass is one of the first: their leaves are looked at."""
        if self._passes >= MARKED_STEPS or _in_backward() != -1 or torch.compiler.is_compiling():
            return False
        self._passes += 1
        again = []
        for leaf in leaves((roots,) if isinstance(roots, torch.Tensor) else roots):
            if leaf.is_cuda and not self._marks.knows(leaf):
                seen = self._seen.get(id(leaf))
                if seen is not None and seen() is leaf:
                    again.append(leaf)
                else:
                    self._seen[id(leaf)] = weakref.ref(leaf)
        self._marks.add_weights(again)
        return True


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
