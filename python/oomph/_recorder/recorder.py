"""Records what a training script does with GPU memory, on a virtual or a real GPU.

PyTorch's own memory history gives every allocation with its stack. Beside it the recorder notes
what PyTorch's history lacks: the operator, module, phase and step of each allocation (a number in
its metadata, see `Scopes`), and which tensors are parameters, gradients, optimizer state, inputs.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import os
import pickle
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim

from oomph._protocol import File, RunDirectory, Settings, Status
from oomph._recorder import onnx_sessions
from oomph._recorder.facts import Facts
from oomph._virtual_gpu.library import Usage, busy, library
from oomph._virtual_gpu.values import Assumptions, ValueLayer, base_pointer, user_line
from oomph.levers._shared.job import on_import

FORMAT = "oomph.record/1"
"""Version of `record.json`; fields may be added, a change of meaning is a new number."""

MAX_EVENTS = 4_000_000
"""The history's length: beyond it PyTorch forgets the oldest events, and the record says so."""

MARKED_STEPS = 6
"""Gradients and optimizer state are marked in the first steps; later ones are told by their stacks."""

SETUP, LOAD, FORWARD, BACKWARD, OPTIMIZER, INFERENCE = (
    "setup",
    "load",
    "forward",
    "backward",
    "optimizer",
    "inference",
)
PARAMETER, GRADIENT, STATE, INPUT, BUFFER = (
    "parameter",
    "gradient",
    "optimizer_state",
    "input",
    "parameter",
)

_COMPILED = "torch.compile is used: memory is not attributed to modules"

_NOWHERE = ("", 0)
"""No module, no call."""

_current_node = torch._C._current_autograd_node
_grad_enabled = torch.is_grad_enabled


SCOPE_FRAME = "oomph_scope_"
"""Begins the names of frames that carry a scope's number."""


class StepsDone(SystemExit):
    """Ends the script after the asked number of steps: as `sys.exit(0)` would, so that it cleans up."""

    def __init__(self) -> None:
        """Exit status 0."""
        super().__init__(0)


class Recorder:
    """Watches this process as `settings` say, and leaves its record in `directory`."""

    def __init__(self, settings: Settings, directory: RunDirectory) -> None:
        """Nothing is touched before `start`."""
        self.settings = settings
        self.directory = directory
        self.process = os.getpid()
        self.virtual = settings.virtual
        self.assumptions = Assumptions()
        self.levers: Any = None
        self.resize: Any = None
        self.rank: dict[str, int] | None = _rank_of_environment()
        self.before_record: list[Callable[[dict[str, Any]], None]] = []
        """Called with the outcome when the script has ended, before the record is written."""
        self.layer = ValueLayer(self.assumptions, settings.unknown, virtual=self.virtual)
        self._began = time.time()
        self._step = 0
        self._inferences = 0
        self._with_graph = False
        """Whether a pass with a graph has ended, of which a backward pass may yet come."""
        self._generating = 0
        self._loading = 0
        self._forwards = 0
        self._trains = False
        self._main_optimizer: int | None = None
        self._in_optimizer = 0
        self._seen_forward = False
        self._modules: list[str] = []
        # Beside each entered module, the number of its call in `_called`; 0 is no call.
        self._calls: list[int] = []
        self._called: list[list[Any]] = [["", 0, [], []]]
        self._facts = Facts()
        self._clock: list[tuple[int, int, int]] = []
        self._clock_calls: list[int] = []
        self._module_calls = 0
        self._busy: Any = None
        self._horizon: Any = None
        self._timed = 0
        self._times: list[list[int]] = []
        self._last = (0, 0, 0)
        self._names: dict[int, str] = {}
        # Weak: whoever watches must not keep alive.
        self._parameters: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._sequence: dict[int, tuple[str, int]] = {}
        self._scopes: dict[tuple[str, str, str, int, int], int] = {}
        self._local = threading.local()
        self._marks: list[tuple[str, int, int, str]] = []
        self._boundaries: list[tuple[int, str, int]] = []
        self._oom: dict[str, Any] | None = None
        self._oom_count = 0
        self._ran_full: BaseException | None = None
        self._next_capture = 0.0
        self._reserved = ""
        self._finished = False
        self._hooks: list[Any] = []
        # Torch before 2.10 keeps no metadata with an allocation; there its stack carries the scope.
        self._frames: dict[int, Any] = {}
        self._set_metadata = getattr(torch._C, "_cuda_setMemoryMetadata", None)
        self._next_sequence = getattr(torch._C._autograd, "_get_sequence_nr", None)
        self._thread = threading.get_ident()
        self._status = Status(directory)

    # ---- beginning ----

    def start(self) -> None:
        """Install all hooks. CUDA itself is left alone until the script uses it."""
        torch.cuda._lazy_call(self._cuda_starts)
        self.layer.before = self._before_operator
        self.layer.install()
        self._hooks = [
            nn_module.register_module_forward_pre_hook(self._enter_module),
            nn_module.register_module_forward_hook(
                self._leave_module, with_kwargs=True, always_call=True
            ),
        ]
        self._watch_optimizers()
        self._watch_loading()
        on_import("transformers.generation.utils", self._watch_generation)
        on_import(
            "onnxruntime.capi.onnxruntime_inference_collection",
            lambda module: onnx_sessions.watch(module, self),
        )
        self._facts.watch()
        optim.register_optimizer_step_pre_hook(self._before_step)
        optim.register_optimizer_step_post_hook(self._after_step)
        self._watch_compile()
        if self.virtual:
            self._busy = busy()
            self._horizon = library().oomph_vgpu_horizon
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """A child is not this run; and where CUDA has begun before the fork, it cannot be used."""
        self.layer.before = None
        self.settings = dataclasses.replace(self.settings, steps=None)
        self._drop_module_hooks()
        if torch.cuda._is_in_bad_fork():
            self.layer.leave()

    def _cuda_starts(self) -> None:
        context = "all" if self._set_metadata is None else "alloc"
        torch.cuda.memory._record_memory_history(
            enabled="all", context=context, stacks="python", max_entries=MAX_EVENTS
        )
        torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)

    def _watch_optimizers(self) -> None:
        """A script that makes an optimizer trains: passes without gradients are not its steps."""
        original = optim.Optimizer.__init__

        @functools.wraps(original)
        def initialize(optimizer, *args, **kwargs):
            self._trains = not self.settings.inference
            original(optimizer, *args, **kwargs)

        optim.Optimizer.__init__ = initialize  # type: ignore[method-assign]

    def _watch_loading(self) -> None:
        """Weights that are read, moved or cast are what a job loads."""
        self._around_loading(torch, "load")
        for name in ("load_state_dict", "to", "cuda", "half", "bfloat16", "float"):
            self._around_loading(torch.nn.Module, name)
        on_import("safetensors.torch", lambda module: self._around_loading(module, "load_file"))
        on_import(
            "transformers.modeling_utils",
            lambda module: self._around_loading(module.PreTrainedModel, "from_pretrained"),
        )

    def _around_loading(self, owner: Any, name: str) -> None:
        bound = isinstance(vars(owner).get(name), classmethod)
        original = vars(owner)[name].__func__ if bound else getattr(owner, name)

        @functools.wraps(original)
        def loads(*args: Any, **kwargs: Any) -> Any:
            self._loading += 1
            try:
                if self._loading == 1 and threading.get_ident() == self._thread:
                    # What is read from a file gets its memory without an operator.
                    self._before_operator(name)
                return original(*args, **kwargs)
            finally:
                self._loading -= 1

        setattr(owner, name, classmethod(loads) if bound else loads)

    def _watch_generation(self, module: Any) -> None:
        """The tokens of one generation are one pass."""
        original = module.GenerationMixin.generate

        @functools.wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            self._generating += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._generating -= 1
            if not self._generating and not self._trains:
                self._passed()
            return result

        module.GenerationMixin.generate = generate

    def _watch_compile(self) -> None:
        """Hooks on modules would change what is compiled; they go when compilation is asked for."""
        compile_function, compile_method = torch.compile, torch.nn.Module.compile

        def compiled(*args, **kwargs):
            self._drop_module_hooks(_COMPILED)
            return compile_function(*args, **kwargs)

        def compiled_module(module, *args, **kwargs):
            self._drop_module_hooks(_COMPILED)
            return compile_method(module, *args, **kwargs)

        torch.compile = compiled
        torch.nn.Module.compile = compiled_module  # type: ignore[method-assign]

    def _drop_module_hooks(self, why: str = "") -> None:
        if self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            self._modules.clear()
            self._calls.clear()
            if why:
                self._facts.compiled = True
                self.assumptions.add("attribution", why, user_line())

    # ---- what runs ----

    def _before_operator(self, name: str) -> Any:
        """Label what the next operator allocates.

        Returns the function to call it through, where its frame carries the label.
        """
        node = _current_node()
        modules = self._modules
        if node is not None:
            phase = BACKWARD
            if modules:
                module, call = modules[-1], self._calls[-1]
            else:
                module, call = self._sequence.get(node._sequence_nr(), _NOWHERE)
        elif self._in_optimizer:
            phase, module, call = OPTIMIZER, "", 0
        else:
            module, call = (modules[-1], self._calls[-1]) if modules else _NOWHERE
            if self._loading and not modules:
                phase = LOAD
            elif not self._seen_forward:
                phase = SETUP
            elif _grad_enabled():
                phase = FORWARD
                if self._next_sequence is not None:
                    # The operator's node was made before it came here.
                    self._sequence[self._next_sequence() - 1] = (module, call)
            else:
                phase = INFERENCE
        key = (phase, module, name, self._step, call)
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = len(self._scopes)
            self._times.append([0, 0, 0])
        if self._busy is not None and scope != self._timed:
            self._spent(scope)
        if self._set_metadata is None:
            frame = self._frames.get(scope)
            if frame is None:
                frame = self._frames[scope] = _frame_named(f"{SCOPE_FRAME}{scope}")
            return frame
        if getattr(self._local, "scope", -1) != scope:
            self._local.scope = scope
            self._set_metadata(str(scope))
        return None

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

    def _enter_module(self, module, args) -> None:
        self._module_calls += 1
        if threading.get_ident() != self._thread and not self._modules:
            return
        name = self._names.get(id(module))
        if name is None:
            name = (
                self._learn(module)
                if not self._modules
                else f"{self._modules[-1]}.{type(module).__name__}"
            )
            self._names[id(module)] = name
        if not self._modules:
            self._seen_forward = True
            if self._with_graph:
                # Another pass, and none went back: it was one without an optimizer.
                self._with_graph = False
                if not self._facts.backwards:
                    self._passed()
            self._facts.forward(module)
            self._say(FORWARD)
            self._mark(INPUT, ((t, "") for t in _cuda_tensors(args) if not t.requires_grad))
        self._modules.append(name)
        call = 0
        if self._step < MARKED_STEPS:
            call = len(self._called)
            parent = self._calls[-1] if self._calls else 0
            self._called.append([name, parent, _addresses(args), []])
        self._calls.append(call)

    def _leave_module(self, module, args, *rest) -> None:
        # PyTorch leaves the keyword arguments out where the module raised.
        kwargs, output = rest if len(rest) == 2 else ({}, *rest)
        if not self._modules:
            return
        self._modules.pop()
        call = self._calls.pop()
        if call and output is not None:
            self._called[call][3] = _addresses(output)
        if self._modules:
            return
        self._facts.called(args, kwargs)
        if output is None:  # it raised
            return
        self._forwards += 1
        if self._trains and _grad_enabled():
            self._say(BACKWARD)
        if self._trains or self._generating:
            return
        if not _grad_enabled():
            self._passed()
        elif not self._facts.backwards:
            self._facts.graph += 1
            self._with_graph = True

    def _passed(self) -> None:
        """A pass of a job that infers is over: a forward pass, or a generation."""
        self._inferences += 1
        self._boundary("inference", self._inferences)
        self._tick(self._inferences)
        if self.settings.steps and self._inferences >= self.settings.steps:
            raise StepsDone

    def passed_outside(self) -> None:
        """A pass of something that is no module of PyTorch's is over."""
        if not self._modules and not self._trains:
            self._say(INFERENCE)
            self._passed()

    def _learn(self, root) -> str:
        """Name a model's modules and mark its parameters."""
        title = type(root).__name__
        for name, module in root.named_modules():
            self._names.setdefault(id(module), f"{title}.{name}" if name else title)
        self._roots.add(root)
        self._facts.model(root)
        self._mark_model(root, title)
        return title

    def _mark_model(self, root, title: str) -> None:
        for kind, tensors in ((PARAMETER, root.named_parameters()), (BUFFER, root.named_buffers())):
            named = [(t, f"{title}.{name.rpartition('.')[0]}".rstrip(".")) for name, t in tensors]
            for t, owner in named:
                self._parameters[id(t)] = (weakref.ref(t), owner)
            self._mark(kind, named)

    def _mark_parts(self) -> None:
        """Parameters that ranks have dealt out since their model was named are others now."""
        for root in self._roots:
            if any(hasattr(p, "_local_tensor") for p in root.parameters()):
                self._mark_model(root, type(root).__name__)

    def _before_step(self, optimizer, args, kwargs) -> Any:
        self._in_optimizer += 1
        self._optimizers.add(optimizer)
        if not any(map(callable, (*args[1:], *kwargs.values()))):
            self._gradients_are_there()
            return None
        # A closure makes the forward and the backward pass, which are no part of the step.
        return (
            tuple(map(self._before_the_step, args)),
            {name: self._before_the_step(value) for name, value in kwargs.items()},
        )

    def _before_the_step(self, closure: Any) -> Any:
        """`closure` as it would run before the optimizer's step; what else a step is given stays."""
        if not callable(closure):
            return closure

        @functools.wraps(closure)
        def run(*args: Any, **kwargs: Any) -> Any:
            within, self._in_optimizer = self._in_optimizer, 0
            try:
                result = closure(*args, **kwargs)
            finally:
                self._in_optimizer = within
            self._gradients_are_there()
            return result

        return run

    def _gradients_are_there(self) -> None:
        """The optimizer begins to use them."""
        self._say(OPTIMIZER)
        if self._step < MARKED_STEPS:
            self._mark_parts()
            self._mark_gradients()
        self._boundary("optimizer", self._step)

    def _after_step(self, optimizer, args, kwargs) -> None:
        self._in_optimizer = max(0, self._in_optimizer - 1)
        if self._step < MARKED_STEPS:
            self._mark_state()
        if self._main_optimizer is None:
            self._main_optimizer = id(optimizer)
        if self._main_optimizer != id(optimizer):
            return
        self._step += 1
        self._sequence.clear()
        self._boundary("step", self._step)
        self._tick(self._step)
        if self.settings.steps and self._step >= self.settings.steps:
            raise StepsDone

    # ---- what is what ----

    def _mark(self, kind: str, tensors) -> None:
        """Note that the memory of `tensors` (pairs of tensor and owner) holds `kind` from now on."""
        now = _now()
        for t, owner in tensors:
            t = getattr(t, "_local_tensor", t)  # of a DTensor, what this rank holds
            self._marks += ((kind, now, address, owner) for address in _memory_of(t))

    def _mark_gradients(self) -> None:
        pairs = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    owner = self._parameters.get(id(p), (None, ""))[1]
                    if p.grad is not None:
                        pairs.append((p.grad, owner))
        for reference, owner in self._parameters.values():
            p = reference()
            if p is not None and p.grad is not None:
                pairs.append((p.grad, owner))
        self._mark(GRADIENT, pairs)

    def _mark_state(self) -> None:
        for optimizer in self._optimizers:
            for p, state in optimizer.state.items():
                owner = self._parameters.get(id(p), (None, ""))[1]
                if isinstance(state, dict):
                    self._mark(
                        STATE, ((t, owner) for t in state.values() if isinstance(t, torch.Tensor))
                    )

    def _tick(self, number: int) -> None:
        """Note the virtual clock at the end of step `number`."""
        if self._horizon is not None:
            self._clock.append((number, self._horizon(0), self._busy[2]))
            self._clock_calls.append(self._module_calls)

    def _boundary(self, what: str, number: int) -> None:
        self._boundaries.append((_now(), what, number))
        if what != "optimizer":
            self._reserved = f" · {torch.cuda.memory_reserved() / 2**30:.1f} GiB reserved"

    def _say(self, phase: str) -> None:
        counted = self._step if self._trains else self._inferences
        what = phase if self._trains else "pass"
        self._status.say(f"step {counted + 1}, {what}{self._reserved}")

    # ---- out of memory ----

    def _out_of_memory(self, device: int, requested: int, total: int, free: int) -> None:
        """PyTorch's allocator gave up; the exception may still be caught."""
        node = _current_node()
        phase = (
            BACKWARD
            if node is not None
            else OPTIMIZER
            if self._in_optimizer
            else LOAD
            if self._loading and not self._modules
            else FORWARD
            if self._seen_forward
            else SETUP
        )
        if phase == FORWARD and not _grad_enabled():
            phase = INFERENCE
        module = self._modules[-1] if self._modules else ""
        if node is not None and not module:
            module = self._sequence.get(node._sequence_nr(), _NOWHERE)[0]
        self._oom_count += 1
        self._oom = dict(
            device=device, requested_bytes=requested, free_bytes=free, step=self._step, phase=phase,
            module=module, location=user_line(), time=_now(), forwards=self._forwards,
        )  # fmt: skip
        if not self._oom["location"]:  # autograd's own thread: the line that called backward
            self._oom["location"] = _main_thread_line(self._thread)
        self._mark_gradients()
        self._mark_state()
        if not self.virtual:
            self._capture()

    def ran_full(self, error: BaseException, requested: int) -> None:
        """Something that takes memory by itself got none, and raises `error`."""
        usage = self._usage(0)
        self._ran_full = error
        self._oom_count += 1
        self._oom = dict(
            device=0, requested_bytes=requested, step=self._step, phase=INFERENCE, module="",
            free_bytes=usage.total - usage.allocated - usage.context if usage else 0,
            location=user_line(), time=_now(), forwards=self._forwards,
        )  # fmt: skip

    def _capture(self) -> None:
        """Keep the history at this very moment: a real job may not live to write its record.

        A script that meets many of these errors on purpose (it looks for its batch size) is not
        slowed by more than a tenth.
        """
        began = time.monotonic()
        if began < self._next_capture:
            return
        with self.directory.writing(File.FAILURE_SNAPSHOT) as file:
            pickle.dump(torch.cuda.memory._snapshot(), file, protocol=4)
        ended = time.monotonic()
        self._next_capture = ended + 9 * (ended - began)

    def failed_with(self, error: BaseException) -> None:
        """The script ended with `error`."""
        is_full = isinstance(error, torch.OutOfMemoryError) or error is self._ran_full
        if is_full and self._oom is not None:
            self._oom["raised"] = True

    @property
    def oom(self) -> dict[str, Any] | None:
        """The last time the allocator gave up, if it has."""
        return self._oom

    # ---- the end ----

    def finish(self, outcome: dict[str, Any]) -> None:
        """Write `record.json` and `trace.pickle`; once."""
        if self._finished:
            return
        self._finished = True
        for told in self.before_record:
            told(outcome)
        self.layer.before = None
        if self._busy is not None and self._times:
            self._spent(self._timed)
        # Others than PyTorch may have used it.
        usage = self._usage(0)
        used_cuda = torch.cuda.is_initialized() or (usage is not None and usage.peak > 0)
        if not used_cuda and self.settings.several and self.rank is None:
            return  # a helper of the script, no rank
        if self._with_graph and not self._facts.backwards:
            self._inferences += 1
        devices = []
        if used_cuda:
            oom = self._oom
            if oom is not None and (oom["step"], oom["forwards"]) == (self._step, self._forwards):
                # The script may have caught the error, but nothing came after it.
                oom["raised"] = True
            self._mark_gradients()
            self._mark_state()
            for root in self._roots:
                self._mark_model(root, type(root).__name__)
            devices = [self._device(index) for index in range(torch.cuda.device_count())]
            # The snapshot's own work must not be recorded as the job's.
            snapshot = torch.cuda.memory._snapshot()
            with self.directory.writing(File.SNAPSHOT) as file:
                pickle.dump(snapshot, file, protocol=4)
            # The whole history holds the moment of failure, too.
            self.directory.remove(File.FAILURE_SNAPSHOT)
        record = dict(
            format=FORMAT,
            torch=torch.__version__,
            cuda=torch.version.cuda,
            python=sys.version.split()[0],
            argv=sys.argv,
            process=self.process,
            virtual=self.virtual,
            seconds=time.time() - self._began,
            outcome=outcome,
            used_cuda=used_cuda,
            steps=self._step,
            inferences=self._inferences,
            devices=devices,
            rank=self.rank,
            oom=self._oom,
            oom_count=self._oom_count,
            scopes=[list(key[:4]) for key in self._scopes],
            scope_calls=[key[4] for key in self._scopes],
            scope_times=self._times,
            calls=self._called,
            clock=self._clock,
            clock_calls=self._clock_calls,
            facts=self._facts.as_dict(),
            marks=self._marks,
            boundaries=self._boundaries,
            has_scopes=self._set_metadata is not None,
            max_events=MAX_EVENTS,
            assumptions=self.assumptions.as_list(),
            library=self._library_report(),
            levers=self.levers.report() if self.levers else [],
            became=self.resize.became if self.resize else [],
        )
        self.directory.write_json(File.RECORD, record)

    def _usage(self, index: int) -> Usage | None:
        """A virtual GPU's memory, all told."""
        usage = Usage()
        if not self.virtual or library().oomph_vgpu_usage(index, ctypes.byref(usage)):
            return None
        return usage

    def _device(self, index: int) -> dict[str, Any]:
        # Before PyTorch begins, where only others used the GPU.
        usage = self._usage(index)
        stats = torch.cuda.memory_stats(index)
        result = dict(
            index=index,
            name=torch.cuda.get_device_name(index),
            total_bytes=torch.cuda.get_device_properties(index).total_memory,
            peak_allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
            peak_reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
            allocated_bytes=stats.get("allocated_bytes.all.current", 0),
            reserved_bytes=stats.get("reserved_bytes.all.current", 0),
            retries=stats.get("num_alloc_retries", 0),
            used=bool(stats.get("allocation.all.allocated", 0)),
        )
        if usage is not None:
            result.update(
                used=result["used"] or usage.peak > usage.context,
                total_bytes=usage.total,
                limit_bytes=usage.limit,
                outside_bytes=usage.context,
                peak_used_bytes=usage.peak,
            )
        elif result["used"]:
            free, total = torch.cuda.mem_get_info(index)
            outside = max(0, total - free - result["reserved_bytes"])
            result.update(
                total_bytes=total,
                limit_bytes=total,
                outside_bytes=outside,
                peak_used_bytes=result["peak_reserved_bytes"] + outside,
            )
        return result

    def _library_report(self) -> dict[str, Any]:
        if not self.virtual:
            return {}
        report = library().oomph_vgpu_report
        # Other threads (PyTorch's watchdog of collectives) may go on meanwhile, and the report with them.
        room, length = 0, report(None, 0)
        while length > room:
            room = length
            buffer = ctypes.create_string_buffer(room)
            length = report(buffer, room)
        return json.loads(buffer.raw[:length])


def _rank_of_environment() -> dict[str, int] | None:
    """What launchers say in the environment: `rank`, `world_size`, `local_rank` (-1 if unsaid)."""
    values = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if not (values[0].isdigit() and values[1].isdigit()):
        return None
    local = int(values[2]) if values[2].isdigit() else -1
    return dict(rank=int(values[0]), world_size=int(values[1]), local_rank=local)


def _frame_named(name: str) -> Any:
    """A function that calls what it is given, and whose frame in a stack has this name."""

    def call(function, *arguments):
        return function(*arguments)

    names = dict(co_name=name)
    if hasattr(call.__code__, "co_qualname"):  # Python 3.11
        names["co_qualname"] = name
    return types.FunctionType(call.__code__.replace(**names), {})


def _now() -> int:
    """Microseconds since the epoch, the clock of PyTorch's memory history."""
    return time.time_ns() // 1000


def _cuda_tensors(value: Any):
    """CUDA tensors in nested arguments, two levels deep: a batch is no deeper."""
    stack = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, torch.Tensor):
            if item.is_cuda:
                yield item
        elif depth < 3 and isinstance(item, (list, tuple)):
            stack += [(x, depth + 1) for x in item]
        elif depth < 3 and isinstance(item, dict):
            stack += [(x, depth + 1) for x in item.values()]


def _addresses(value: Any) -> list[int]:
    """Where the memory of the CUDA tensors in `value` begins."""
    found = map(_address, _cuda_tensors(value))
    return [address for address in found if address is not None]


def _address(t: torch.Tensor) -> int | None:
    """Where the memory of a tensor begins; None where it has no storage: a wrapper or a fake.

    Classes of tensors that compute when they are first looked at must not take this for a look.
    """
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return base_pointer(t)
    except (RuntimeError, NotImplementedError):
        return None


def _memory_of(t: torch.Tensor) -> list[int]:
    """Where the memory of a CUDA tensor begins; of one that is made of others (8-bit state), of each."""
    if not t.is_cuda:
        return []
    if hasattr(t, "__tensor_flatten__"):
        parts = t.__tensor_flatten__()[0]
        return [address for part in parts for address in _memory_of(getattr(t, part))]
    address = _address(t)
    return [] if address is None else [address]


def _main_thread_line(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        from oomph._virtual_gpu.values import is_user_file

        if is_user_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
