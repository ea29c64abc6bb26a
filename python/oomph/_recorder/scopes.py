"""Labels of allocations: the phase, module, operator, step and call in which each was made.

Each such combination has a number, a scope. PyTorch keeps it beside every allocation of its memory
history.
"""

from __future__ import annotations

import threading
import types
from typing import Any

import torch

from oomph import _torch_features as torch_features
from oomph._recorder.progress import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    LOAD,
    OPTIMIZER,
    SETUP,
    Progress,
)
from oomph._recorder.updates import Updates
from oomph._virtual_gpu import library

_FRAME = "oomph_scope_"
"""Begins the names of frames that carry a scope's number."""

_NOWHERE = ("", 0)
"""No module, no call."""

_DIFFERENTIABLE = "backward with a graph"
"""The phase of a backward pass that makes a graph itself (`create_graph=True`), among the labels' keys."""

_GRAPHLESS = "forward without a graph"
"""The phase of an operator outside of modules that has no node in the graph, among the labels' keys."""

_PLAIN = {_DIFFERENTIABLE: BACKWARD, _GRAPHLESS: FORWARD}
"""Such phases as a record has them."""

_current_node = torch._C._current_autograd_node
_grad_enabled = torch.is_grad_enabled


class Scopes:
    """Labels what operators allocate, and adds up the GPU time of what has one label."""

    def __init__(self, progress: Progress, updates: Updates, busy: Any) -> None:
        """`busy` is the virtual GPU's counters of work, None on a real one."""
        self._progress, self._updates = progress, updates
        self._busy = busy
        self._numbers: dict[tuple[str, str, str, int, int], int] = {}
        self._times: list[list[int]] = []
        self._timed = 0
        self._last = (0, 0, 0)
        # What the virtual GPU's log of work calls a phase and a module.
        self._places: dict[tuple[str, str], int] = {}
        self._placed = ("", "")
        self._place: Any = library.library().oomph_vgpu_place if busy is not None else None
        # Where each node of the graph was made, by its sequence number.
        self._nodes: dict[int, tuple[str, int]] = {}
        self._next_sequence = getattr(torch._C._autograd, "_get_sequence_nr", None)
        self._first_sequence = self._next_sequence() if self._next_sequence else 0
        """The number of the graph's first node, should the script make one."""
        self._sequence = self._first_sequence
        """The number of the next node when the last operator ran."""
        self._local = threading.local()
        # Without it the stack carries the scope.
        self._set_metadata = torch_features.find("memory_metadata")
        self._as_number = False
        self._begun = False
        self._frames: dict[int, Any] = {}
        self.in_stacks = self._set_metadata is None
        """Whether the stack of an allocation carries its scope."""

    def begin(self) -> None:
        """CUDA is initialized: tell PyTorch of scopes from here on. Before, that would use the GPU, and a process that
        the script forks could not."""
        self._begun = True
        if self._set_metadata is not None:
            scope, self._local = getattr(self._local, "scope", None), threading.local()
            if scope is not None:  # of the operator that is running
                self._set_metadata(scope if self._as_number else str(scope))

    def label_pools(self) -> None:
        """Tell the virtual GPU of scopes instead of PyTorch, which allocates from the driver's pools."""
        self._set_metadata = library.library().oomph_vgpu_scope
        self._as_number = True

    def place(self) -> tuple[str, str, int]:
        """What is running in this thread: the phase, the module's name ("": none), its call (0: none)."""
        node, progress = _current_node(), self._progress
        running = progress.running
        if node is not None:
            if running:
                module, call = running[-1]
            else:
                module, call = self._nodes.get(node._sequence_nr(), _NOWHERE)
            return BACKWARD, module, call
        if progress.in_optimizer:
            return OPTIMIZER, "", 0
        if running:
            module, call = running[-1]
        else:
            module, call = "", progress.functions[-1] if progress.functions else 0
        if progress.loading and not running:
            return LOAD, module, call
        if not progress.seen_forward:
            return SETUP, module, call
        return FORWARD if _grad_enabled() else INFERENCE, module, call

    def label(self, operator: str) -> Any:
        """Label what `operator`, the next to run, allocates.

        Returns the function to call it through, where its frame carries the label.
        """
        phase, module, call = self.place()
        if phase is SETUP and not module and self._has_graph():
            # A forward pass without modules: in functions, on plain tensors.
            self._progress.seen_forward = True
            phase = FORWARD
        if phase is FORWARD and self._next_sequence is not None:
            # The operator's node was made before it came here.
            sequence = self._next_sequence()
            if sequence != self._sequence:
                if self._updates.waits and self._updates.goes_forward():
                    self.forget_graph()
                self._nodes[sequence - 1] = (module, call)
                self._sequence = sequence
            elif not module:
                phase = OPTIMIZER if self._updates.waits else _GRAPHLESS
        elif phase is INFERENCE and not module and self._updates.waits:
            phase = OPTIMIZER
        elif phase is BACKWARD and self._progress.differentiates and _grad_enabled():
            phase = _DIFFERENTIABLE
        key = (phase, module, operator, self._progress.part, call)
        scope = self._numbers.get(key)
        if scope is None:
            scope = self._numbers[key] = len(self._numbers)
            self._times.append([0, 0, 0])
        if self._busy is not None and scope != self._timed:
            self._spent(scope)
            if (phase, module) != self._placed:
                self._placed = placed = (phase, module)
                self._place(self._places.setdefault(placed, len(self._places)))
        if self._set_metadata is None:
            frame = self._frames.get(scope)
            if frame is None:
                frame = self._frames[scope] = _frame_named(f"{_FRAME}{scope}")
            return frame
        if getattr(self._local, "scope", -1) != scope:
            self._local.scope = scope
            if self._begun:
                self._set_metadata(scope if self._as_number else str(scope))
        return None

    def _has_graph(self) -> bool:
        """Whether the graph got its first node since the script began."""
        return self._next_sequence is not None and (
            _grad_enabled() and self._next_sequence() > self._first_sequence
        )

    def _spent(self, scope: int) -> None:
        """The GPU's work since the last operator was that operator's; the next is `scope`'s."""
        busy = self._busy
        now = (busy[0], busy[1], busy[2])
        last = self._last
        times = self._times[self._timed]
        times[0] += now[0] - last[0]
        times[1] += now[1] - last[1]
        times[2] += now[2] - last[2]
        self._last, self._timed = now, scope

    @property
    def keys(self) -> Any:
        """The labels so far, in the order in which they were first used: phase, module, operator, part, call."""
        return self._numbers.keys()

    def forget_graph(self) -> None:
        """A step is over, and its graph is gone."""
        self._nodes.clear()

    def forget(self) -> None:
        """A part of the script begins: number its labels anew, unless blocks that are older carry numbers."""
        if not self.in_stacks:
            self._numbers.clear()
            self._times.clear()
            self._timed = 0
        self._nodes.clear()
        if self._next_sequence is not None:
            self._first_sequence = self._sequence = self._next_sequence()

    def finish(self) -> None:
        """The script has ended: what the GPU did last was the last operator's."""
        if self._busy is not None and self._times:
            self._spent(self._timed)

    @property
    def places(self) -> list[list[str]]:
        """The phase and the module of each place in the virtual GPU's log of work."""
        return [[_PLAIN.get(phase, phase), module] for phase, module in self._places]

    def as_dict(self) -> dict[str, Any]:
        """The record's part of it."""

        def of_phase(wanted: str) -> list[int]:
            return [number for key, number in self._numbers.items() if key[0] is wanted]

        step_of = self._progress.step_of
        return dict(
            scopes=[
                [_PLAIN.get(phase, phase), module, operator, step_of(part)]
                for phase, module, operator, part, _ in self._numbers
            ],
            scope_calls=[key[4] for key in self._numbers],
            differentiable=of_phase(_DIFFERENTIABLE),
            graphless=of_phase(_GRAPHLESS),
            scope_times=self._times,
            has_scopes=not self.in_stacks,
        )


def _frame_named(name: str) -> Any:
    """A function that calls what it is given, and whose frame in a stack has this name."""

    def call(function, *arguments):
        return function(*arguments)

    names = dict(co_name=name)
    if hasattr(call.__code__, "co_qualname"):  # Python 3.11
        names["co_qualname"] = name
    return types.FunctionType(call.__code__.replace(**names), {})
