"""Where the script ran out of memory."""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from oomph._protocol import Why
from oomph._recorder import history
from oomph._recorder.addresses import addresses
from oomph._recorder.marks import Marks
from oomph._recorder.progress import INFERENCE, Progress, now
from oomph._recorder.scopes import Scopes
from oomph._user_code import user_line
from oomph._virtual_gpu import library
from oomph._virtual_gpu.values import ValueLayer

_REQUESTED = re.compile(r"Requested\s*: ([\d.]+) (bytes|KiB|MiB|GiB)")
"""In the message of `backend:cudaMallocAsync`, which nobody can observe."""


def _requested(message: str) -> int:
    """How many bytes were asked for, to the message's precision; 0 if it does not say so."""
    found = _REQUESTED.search(message)
    if found is None:
        return 0
    return int(float(found[1]) * 1024 ** ("bytes", "KiB", "MiB", "GiB").index(found[2]))


class OutOfMemory:
    """Sees the allocator give up, and tells whether that ended the script."""

    def __init__(
        self,
        box: Any,
        virtual: bool,
        progress: Progress,
        scopes: Scopes,
        marks: Marks,
        layer: ValueLayer,
    ) -> None:
        """It has not given up so far. `box` is the black box, None without one."""
        self._layer = layer
        self._box, self._virtual = box, virtual
        self._progress, self._scopes, self._marks = progress, scopes, marks
        self.last: dict[str, Any] | None = None
        """The last time that the allocator gave up, as the record has it."""
        self._held: set[int] = set()
        """Where the memory of all tensors began that Python held then, and when that ended the script."""
        self._count = 0
        """How often the script has seen it give up."""
        self.when_recorded = True
        """Whether everything was being recorded when it last did."""
        self._watching = False
        self._raised_outside: BaseException | None = None
        self._looked_in = (0, 0)
        """The step, and how many passes had ended, when that was looked at before the end."""
        self._next_look = self._next_capture = 0.0
        self._thread = threading.get_ident()

    def forget(self) -> None:
        """A part of the script begins."""
        self.last, self._held, self._count, self._raised_outside = None, set(), 0, None

    def watch(self) -> None:
        """Begin to watch PyTorch's allocator; CUDA is in use."""
        torch._C._cuda_attach_out_of_memory_observer(self._allocator_gave_up)

    def _allocator_gave_up(self, device: int, requested: int, total: int, free: int) -> None:
        """The exception may still be caught."""
        phase, module, _ = self._scopes.place()
        # In autograd's own thread: the line that called backward.
        location = user_line() or user_line(self._thread)
        self._note(
            device=device, requested_bytes=requested, free_bytes=free, phase=phase, module=module,
            location=location,
        )  # fmt: skip
        self._marks.gradients()
        self._marks.optimizer_state()
        if not (self._virtual and self._progress.is_recorded):
            self._capture()
        self._look()
        self._watch_next_operator()

    def _watch_next_operator(self) -> None:
        """PyTorch catches some of these errors itself, and tries an algorithm that needs less.

        Then the same call of a module, or the same backward pass, goes on.
        """
        last, progress = self.last, self._progress
        running = list(progress.running)
        in_backward = torch._C._current_autograd_node() is not None
        label = self._scopes.label

        def next_operator(operator: str) -> Any:
            self._layer.before = label
            self._watching = False
            if in_backward:
                goes_on = torch._C._current_autograd_node() is not None
            else:
                goes_on = bool(running) and progress.running[: len(running)] == running
            if last is not None and goes_on:
                last["handled"] = True
                self._count -= 1  # the script has not seen it
            return label(operator)

        if self._watching:
            self._count -= 1  # the same operator has tried again
        if self._layer.before is not None:
            self._layer.before = next_operator
            self._watching = True

    def outside_allocator(self, error: BaseException, requested: int) -> None:
        """Something outside PyTorch's allocator ran out of memory, and raises `error`."""
        self._raised_outside = error
        used = library.usage(0) if self._virtual else None
        self._note(
            device=0, requested_bytes=requested, phase=INFERENCE, module="",
            free_bytes=used.total - used.allocated - used.context if used else 0,
            location=user_line(),
        )  # fmt: skip

    def _note(self, **what: Any) -> None:
        self._count += 1
        self.when_recorded = self._progress.is_recorded
        progress = self._progress
        self.last = dict(
            what, step=progress.step, time=now(), forwards=progress.forwards, fused_attention=allows_fused_attention()
        )  # fmt: skip

    def _look(self) -> None:
        """See what Python holds now: what only a running loop holds, such as its iterator, is gone when the script has ended.

        As with `_capture`, it takes at most a tenth of the script's time.
        """
        began, place = time.monotonic(), (self._progress.step, self._progress.forwards)
        if began >= self._next_look:
            self._held, self._looked_in = held_by_python(), place
            ended = time.monotonic()
            self._next_look = ended + 9 * (ended - began)
        elif place != self._looked_in:
            self._held = set()

    def _capture(self) -> None:
        """Save the history now: a real job may not survive to write its record.

        Scripts that cause many of these errors on purpose (to search for a batch size) slow down by at
        most a tenth.
        """
        began = time.monotonic()
        if self._box is None or began < self._next_capture:
            return
        self._box.look_here()
        self._box.hold(Why.OUT_OF_MEMORY)
        ended = time.monotonic()
        self._next_capture = ended + 9 * (ended - began)

    def failed_with(self, error: BaseException) -> None:
        """The script ended with `error`."""
        is_full = self.is_it(error)
        if is_full and self.last is None and history.uses_pools():
            self.outside_allocator(error, _requested(str(error)))
        if is_full and self.last is not None:
            self.last["raised"] = True
            # The error refers to the frames that it went through, and they to what they hold.
            self._held |= held_by_python()

    def is_it(self, error: BaseException) -> bool:
        """Whether `error` says that memory ran out."""
        return isinstance(error, torch.OutOfMemoryError) or error is self._raised_outside

    def finish(self) -> None:
        """The script has ended. It may have caught the error, but did nothing after it."""
        last, progress = self.last, self._progress
        if last is None or last.get("handled") or not progress.is_recorded:
            return
        if (last["step"], last["forwards"]) == (progress.step, progress.forwards):
            last["raised"] = True

    def as_dict(self) -> dict[str, Any]:
        """The record's part of it."""
        return dict(oom=self.last, oom_count=self._count, held=sorted(self._held))


def allows_fused_attention() -> bool:
    """Whether the script lets `scaled_dot_product_attention` take a kernel that keeps no scores."""
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled()


def held_by_python() -> set[int]:
    """Where the memory of the CUDA tensors begins that Python refers to; graphs hold others.

    PyTorch keeps the objects of tensors that only a graph refers to, so that there is one is not enough. What a Function of
    the user's own has put on its `ctx` is a graph's, too.
    """
    objects = gc.get_objects()
    tensors = [one for one in objects if issubclass(type(one), torch.Tensor)]
    contexts = [one for one in objects if issubclass(type(one), FunctionCtx)]
    del objects
    own = {id(tensors), id(sys._getframe())}
    own.update(id(part) for one in contexts for part in (one, one.__dict__))
    found: set[int] = set()
    for holder in gc.get_referrers(*tensors):
        if id(holder) not in own:
            found.update(
                address
                for one in gc.get_referents(holder)
                if issubclass(type(one), torch.Tensor)
                for address in addresses(one)
            )
    return found
