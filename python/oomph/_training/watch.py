"""`watch`: monitors GPU memory step by step, detects growth, and explains out-of-memory errors."""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from oomph._older_python import pairwise
from oomph._says import say
from oomph._training.errors import is_out_of_memory
from oomph._training.memory_model import GpuMemory
from oomph._training.release import format_bytes
from oomph._training.trackers import tracker

log = logging.getLogger("oomph")

Function = TypeVar("Function", bound=Callable[..., Any])

GROWTH_STEPS = 8
"""Steps that must each end with more memory than the one before to be called growth."""

GROWTH_BYTES = 64 << 10
"""The smallest growth per step to report: a number kept on the GPU takes 512 bytes."""

TRACED_STEPS = 3
"""Steps to record with stacks once memory grows."""

WARM_UP = 3
"""Initial steps to ignore: they allocate optimizer state, workspaces and caches."""


def watch(
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    every: int = 100,
    jsonl: str | os.PathLike[str] | None = None,
    log_to: Any = None,
    snapshot: str | os.PathLike[str] | None = "oomph-oom.pickle",
    history: bool = False,
    device: torch.device | int | str | None = None,
) -> Watch:
    """Watch GPU memory in a `with` block or a decorated function.

    ::

        with oomph.watch(model, optimizer, every=100, jsonl="memory.jsonl") as memory:
            for batch in loader:
                …                        # steps are counted by the optimizer's steps
                print(memory.line())

    Every `every` steps a line goes to the logger "oomph" (allocated, reserved, peak, what is outside
    the allocator, by category; all in bytes), to the file `jsonl` and to `log_to`: a `SummaryWriter`
    of TensorBoard, a run of Weights & Biases, the module `mlflow`, one of Lightning's loggers, a
    function of a dict of numbers, or a list of these. If memory grows from step to step, it warns
    with the step at which memory will run out and the stack that allocates it. With `model`
    and `optimizer` there are categories, and peaks for forward, backward and optimizer; `phase` gives
    peaks of your own phases. After an out-of-memory error that leaves the block, it writes a snapshot
    to `snapshot` and explains it; `history=True` records every allocation's stack for it, at a cost.

    While a watch is on, `torch.cuda.max_memory_allocated` counts from the last phase, not from the
    beginning: `Watch.peak` has that.
    """
    return Watch(
        model, optimizer, every=every, jsonl=jsonl, log_to=log_to, snapshot=snapshot, history=history,
        device=device,
    )  # fmt: skip


def memory_line(device: torch.device | int | str | None = None) -> str:
    """One line on a GPU's memory now: allocated, reserved, peak, outside the allocator, free."""
    where = _device(device)
    if where.type != "cuda":
        return "no GPU in use"
    gpu_memory = GpuMemory(where)
    free, total = torch.cuda.mem_get_info(where)
    reserved = gpu_memory.reserved()
    return (
        f"allocated {format_bytes(gpu_memory.allocated())}, reserved {format_bytes(reserved)}, peak "
        f"{format_bytes(gpu_memory.peak())}, outside the allocator "
        f"{format_bytes(max(0, total - free - reserved))}, free {format_bytes(free)} of {format_bytes(total)}"
    )


class Watch:
    """See `watch`, which creates it."""

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        every: int = 100,
        jsonl: str | os.PathLike[str] | None = None,
        log_to: Any = None,
        snapshot: str | os.PathLike[str] | None = "oomph-oom.pickle",
        history: bool = False,
        device: torch.device | int | str | None = None,
    ) -> None:
        """Watches nothing before the `with` block begins."""
        if every < 1:
            raise ValueError(f"every: expected at least 1 step; found {every}")
        self._model, self._optimizer = model, optimizer
        self._every = every
        self._jsonl_path = jsonl
        self._log = None if log_to is None else tracker(log_to)
        self._snapshot_path = snapshot
        self._history = history
        self._device_asked = device
        self._own_history = False
        self._hooks: list[Any] = []
        self._file: Any = None
        self._growth = _Growth()
        self._tracing: _Tracing | None = None
        self.steps = 0
        """Optimizer steps since the beginning."""
        self.peak = 0
        """The most bytes in tensors since the beginning."""
        self.phases: dict[str, int] = {}
        """The most bytes in tensors in each phase so far."""
        self.growing: str = ""
        """The warning about growth, or ""."""

    # ---- beginning and end ----

    def __enter__(self) -> Watch:
        """Begin."""
        self._gpu_memory = GpuMemory(_device(self._device_asked, self._model))
        if self._jsonl_path is not None:
            self._file = open(self._jsonl_path, "a")
        if self._gpu_memory.measures:
            self._own_history = self._history and _start_history(1_000_000)
            self._gpu_memory.begin()
        self._phase = "forward" if self._model is not None else "step"
        self._began = time.perf_counter()
        self._last = (0, self._began)
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]
        if self._model is not None:
            self._hooks.append(self._model.register_forward_hook(self._after_forward))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """End; after an out-of-memory error write a snapshot and explain it."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._gpu_memory.measures:
            self._note_peak(self._phase)
        if error is not None and is_out_of_memory(error):
            self._explain(error)
        self._write()
        if self._tracing is not None:
            self._tracing.stop(set())
            self._tracing = None
        if self._own_history:
            torch.cuda.memory._record_memory_history(enabled=None)
        if self._file is not None:
            self._file.close()
            self._file = None

    def __call__(self, function: Function) -> Function:
        """Watch each call of `function`."""

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return watched  # type: ignore[return-value]

    # ---- phases ----

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the peak of your own phase, such as evaluation."""
        outer = self._phase
        self._enter(name)
        try:
            yield
        finally:
            self._enter(outer)

    def _enter(self, name: str) -> None:
        if self._gpu_memory.measures:
            self._note_peak(self._phase)
            torch.cuda.reset_peak_memory_stats(self._gpu_memory.device)
        self._phase = name

    def _note_peak(self, phase: str) -> None:
        peak = self._gpu_memory.peak()
        self.peak = max(self.peak, peak)
        self.phases[phase] = max(self.phases.get(phase, 0), peak)

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        if self._phase == "forward" and torch.is_grad_enabled():
            self._enter("backward")

    def _is_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._optimizer is None:
            # The first to step is the one that counts.
            self._optimizer = optimizer
        return optimizer is self._optimizer

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_ours(optimizer):
            self._enter("optimizer")

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._is_ours(optimizer):
            return
        self._enter("forward" if self._model is not None else "step")
        self.step()

    # ---- steps ----

    def step(self) -> None:
        """Mark the end of a step. Called automatically after optimizer steps; loops without an optimizer call it."""
        self.steps += 1
        if self._gpu_memory.measures:
            self._look_for_growth()
        if self.steps % self._every == 0:
            self._write()

    def _look_for_growth(self) -> None:
        if self._tracing is not None:
            if self._tracing.step():
                stack = self._tracing.stop(self._gradients())
                self._tracing = None
                self.growing += f"; allocated by {stack}" if stack else ""
                log.warning("GPU memory %s", self.growing)
            return
        if self.steps <= WARM_UP:
            return
        per_step = self._growth.saw(self._gpu_memory.allocated())
        if per_step and not self.growing:
            left = max(0, self._gpu_memory.usable() - max(self.peak, self._gpu_memory.peak()))
            self.growing = (
                f"grows by {format_bytes(per_step)} per step: it will run out at about step "
                f"{self.steps + int(left / per_step)}"
            )
            self._tracing = _Tracing(self._gpu_memory.device)

    def _gradients(self) -> set[int]:
        """Where gradients are."""
        groups = self._optimizer.param_groups if self._optimizer is not None else []
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        return {g.data_ptr() - g.storage_offset() * g.element_size() for g in gradients}

    # ---- what is said ----

    def facts(self) -> dict[str, float]:
        """Bytes now: allocated, reserved, peak, outside, free, categories, phases; seconds a step."""
        facts: dict[str, float] = {"step": self.steps}
        now = time.perf_counter()
        steps, then = self._last
        if self.steps > steps:
            facts["seconds_per_step"] = (now - then) / (self.steps - steps)
        if not self._gpu_memory.measures:
            return facts
        device = self._gpu_memory.device
        free, total = torch.cuda.mem_get_info(device)
        allocated, reserved = self._gpu_memory.allocated(), self._gpu_memory.reserved()
        facts.update(
            allocated=allocated,
            reserved=reserved,
            peak=max(self.peak, self._gpu_memory.peak()),
            outside=max(0, total - free - reserved),
            free=free,
            retries=self._gpu_memory.retries(),
        )
        categories = self._categories()
        for name, size in categories.items():
            facts[f"category/{name}"] = size
        facts["category/other"] = max(0, allocated - sum(categories.values()))
        for name, size in self.phases.items():
            facts[f"peak/{name}"] = size
        return facts

    def line(self) -> str:
        """`facts` as a line to print."""
        facts = self.facts()
        if "allocated" not in facts:
            return f"step {self.steps}: no GPU in use"
        parts = [
            f"{name} {format_bytes(facts[name])}"
            for name in ("allocated", "reserved", "peak", "outside", "free")
        ]
        shown = [
            f"{name.partition('/')[2]} {format_bytes(size)}"
            for name, size in facts.items()
            if name.startswith("category/") and size
        ]
        return f"step {self.steps}: {', '.join(parts)} ({', '.join(shown)})"

    def _categories(self) -> dict[str, int]:
        device = self._gpu_memory.device
        seen: set[int] = set()

        def size(tensors: Any) -> int:
            total = 0
            for t in tensors:
                if isinstance(t, torch.Tensor) and t.device == device and id(t) not in seen:
                    seen.add(id(t))
                    total += t.numel() * t.element_size()
            return total

        parameters: list[torch.Tensor] = []
        buffers: list[torch.Tensor] = []
        if self._model is not None:
            parameters += self._model.parameters()
            buffers += self._model.buffers()
        state: list[Any] = []
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                parameters += group["params"]
            for entry in self._optimizer.state.values():
                state += entry.values() if isinstance(entry, dict) else []
        return {
            "parameters": size(parameters),
            "buffers": size(buffers),
            "gradients": size([p.grad for p in parameters if p.grad is not None]),
            "optimizer_state": size(state),
        }

    def _write(self) -> None:
        facts = self.facts()
        self._last = (self.steps, time.perf_counter())
        if "allocated" in facts:
            log.info("%s", self.line())
        if self._file is not None:
            self._file.write(json.dumps(dict(facts, time=time.time())) + "\n")
            self._file.flush()
        if self._log is not None:
            numbers = {f"memory/{name}": value for name, value in facts.items() if name != "step"}
            self._log(numbers, self.steps)

    # ---- out of memory ----

    def _explain(self, error: BaseException) -> None:
        if self._snapshot_path is None or not self._gpu_memory.measures:
            return
        path = os.fspath(self._snapshot_path)
        rank = os.environ.get("RANK")
        if rank is not None:
            root, ending = os.path.splitext(path)
            path = f"{root}-rank{rank}{ending}"
        try:
            torch.cuda.memory._dump_snapshot(path)
            with open(path + ".txt", "w") as file:
                file.write(f"{type(error).__module__}.{type(error).__qualname__}: {error}\n")
            # In a separate process: this one's memory and output belong to the job.
            explained = subprocess.run(
                [sys.executable, "-m", "oomph", "explain", path],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            print(explained.stdout or explained.stderr, file=sys.stderr, end="")
            print(f"snapshot: {path} (oomph explain {path})", file=sys.stderr)
        except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
            # The job's own error is what matters.
            say(f"could not keep a snapshot of the error: {problem}")


class _Growth:
    """Steps that each end with more memory than the one before."""

    def __init__(self) -> None:
        self._seen: deque[int] = deque(maxlen=GROWTH_STEPS + 1)

    def saw(self, allocated: int) -> float:
        """Bytes a step if memory grows, else 0."""
        self._seen.append(allocated)
        if len(self._seen) <= GROWTH_STEPS:
            return 0.0
        values = list(self._seen)
        rises = all(b > a for a, b in pairwise(values))
        per_step = (values[-1] - values[0]) / GROWTH_STEPS
        return per_step if rises and per_step >= GROWTH_BYTES else 0.0


class _Tracing:
    """Records allocations for a few steps, and says which stack allocates what stays."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._left = TRACED_STEPS
        self._before = {block["address"] for block in self._blocks()}
        # Another recording continues unchanged.
        self._own = _start_history(200_000)

    def step(self) -> bool:
        """Whether enough was recorded."""
        self._left -= 1
        return self._left <= 0

    def stop(self, expected: set[int]) -> str:
        """The stack with most bytes allocated in the traced steps and still alive.

        Blocks at `expected` addresses do not count: each step makes and frees them.
        """
        kept: Counter[str] = Counter()
        for block in self._blocks():
            if block["address"] not in self._before | expected and block.get("frames"):
                kept[_user_frame(block["frames"])] += block["size"]
        if self._own:
            torch.cuda.memory._record_memory_history(enabled=None)
        if not kept:
            return ""
        where, size = kept.most_common(1)[0]
        return f"{where} ({format_bytes(size / TRACED_STEPS)} per step)"

    def _blocks(self) -> Iterator[dict[str, Any]]:
        for segment in torch.cuda.memory_snapshot():
            if segment["device"] == self._device.index:
                yield from (b for b in segment["blocks"] if b["state"] == "active_allocated")


def _start_history(entries: int) -> bool:
    """Record allocations with their stacks; False if a recording is already active."""
    is_on = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if is_on is not None and is_on():
        return False
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=entries)
    return True


def _user_frame(frames: list[dict[str, Any]]) -> str:
    """The innermost frame of the user's own code, as file:line."""
    from oomph._user_code import is_user_file

    for frame in frames:
        if is_user_file(frame["filename"]) and frame["filename"]:
            return f"{frame['filename']}:{frame['line']} in {frame['name']}"
    return f"{frames[0]['filename']}:{frames[0]['line']}"


def _device(asked: torch.device | int | str | None, model: nn.Module | None = None) -> torch.device:
    if asked is not None:
        device = torch.device("cuda", asked) if isinstance(asked, int) else torch.device(asked)
    elif model is not None and next(model.parameters(), None) is not None:
        device = next(model.parameters()).device
    else:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device
