"""Records what a training script does with GPU memory, on a virtual or a real GPU.

PyTorch's own memory history gives every allocation with its stack. Beside it the recorder notes
what PyTorch's history lacks: the operator, module, phase and step of each allocation (a number in
its metadata, see `scopes.py`), and which tensors are parameters, gradients, optimizer state, inputs
(`marks.py`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from oomph import _steady_gradients
from oomph._import_hooks import on_import
from oomph._older_python import zip
from oomph._protocol import BoxWord, File, RunDirectory, Settings, Why
from oomph._recorder import (
    devices,
    history,
    hub_uploads,
    onnx_sessions,
    saved_weights,
    vllm_engine,
)
from oomph._recorder.black_box import newest
from oomph._recorder.broadcasts import Broadcasts
from oomph._recorder.facts import Facts
from oomph._recorder.garbage import without_collections
from oomph._recorder.leaves import Leaves
from oomph._recorder.loading import Loading
from oomph._recorder.marks import Marks
from oomph._recorder.module_calls import ModuleCalls
from oomph._recorder.optimizer_steps import OptimizerSteps
from oomph._recorder.out_of_memory import OutOfMemory
from oomph._recorder.passes import Passes
from oomph._recorder.progress import Progress
from oomph._recorder.reads import Reads
from oomph._recorder.scopes import Scopes
from oomph._recorder.sources import go_backward, sources, use_checkpointing
from oomph._recorder.training_ahead import training_ahead
from oomph._recorder.updates import Updates
from oomph._recorder.window import EVENTS, LongWindow, Window, allocations
from oomph._user_code import user_line
from oomph._user_functions import original_of
from oomph._virtual_gpu import inductor_benchmarks, library, triton_launcher
from oomph._virtual_gpu.assumptions import Assumptions
from oomph._virtual_gpu.values import ValueLayer
from oomph.levers._shared import compiled as compilation

FORMAT = "oomph.record/1"
"""Version of `record.json`; adding fields keeps it, changing their meaning does not."""

MAX_EVENTS = 4_000_000
"""The history's length: beyond it PyTorch forgets the oldest events, and the record says so."""

MOST_SAVED = 270_000
"""The newest events of a window on a real GPU that are saved, in some 25 MB."""

_POOLS = (
    "backend:cudaMallocAsync: what the driver can reuse depends on how far the GPU is, and reserved memory can be some percent "
    "off; there is no history of stacks, and memory is not attributed to lines"
)
_COMPILED = "torch.compile is used: memory is not attributed to modules"
_EXPORTED = (
    "a model is exported with strict=True: memory is not attributed to modules from there on"
)
_IDLE_OPTIMIZER = "an optimizer of the script had not stepped when the run was ended: what comes with its steps is not in the figures"
_NOT_TRAINED = (
    "the script had not begun to train when the run was ended: what it trains is not in the figures"
)
_COMPILED_STEPS = "the optimizer steps within compiled code: its steps are not counted"


class Recorder:
    """Watches this process as `settings` say, and leaves its record in `directory`."""

    def __init__(
        self,
        settings: Settings,
        directory: RunDirectory,
        box: Any = None,
        in_parts: bool = False,
    ) -> None:
        """Changes nothing before `start`. `box` is the black box, if there is one. `in_parts`: see `begin_part`."""
        self._box = box
        self.settings = settings
        self._in_parts = in_parts
        self._before_part: list[history.Alive] = []
        self.directory = directory
        self.process = os.getpid()
        self.virtual = settings.virtual
        self.assumptions = Assumptions()
        self.fell_back = ""
        """Why what the script wanted on the GPU is computed on the CPU, if something is."""
        self.engine: dict[str, Any] = {}
        """What a serving engine in this process made of its memory."""
        self.levers: Any = None
        self.resize: Any = None
        self.rank: dict[str, int] | None = _rank_of_environment()
        self.before_record: list[Callable[[dict[str, Any]], None]] = []
        """Called with the outcome when the script has ended, before the record is written."""
        self.layer = ValueLayer(self.assumptions, settings.unknown, self.virtual, settings.compute)
        self._reads = self.layer.reads = Reads()
        self._broadcasts = self.layer.pairs = Broadcasts()
        self._began = time.monotonic()
        self._finished = False
        self._kept: Any = None
        busy = library.busy() if self.virtual else None
        horizon = library.library().oomph_vgpu_horizon if self.virtual else None
        step = library.library().oomph_vgpu_step if self.virtual else None
        forget = library.library().oomph_vgpu_forget_steps if self.virtual else None
        self._progress = Progress(directory, settings.steps, horizon, busy, step, box, forget)
        self._progress.fewer = settings.fewer
        self._progress.time_on_cpu = lambda: self.layer.cpu_ns
        self._progress.pauses = self.layer.count_pauses
        self._facts = Facts(self.layer)
        self._facts.module_calls = lambda: self._progress.module_calls
        self._marks = Marks()
        self._updates = Updates(self._progress, self._marks, self.layer, settings.inference)
        self._scopes = Scopes(self._progress, self._updates, busy)
        self.passes = Passes(self._progress, self._facts, self._marks, self._updates)
        self._modules = ModuleCalls(self._progress, self.passes, self._facts, self._marks)
        self._steps = OptimizerSteps(
            self._progress, self._scopes, self._marks, self._modules.models
        )
        if settings.every_optimizer:
            self._progress.waits = self._steps.some_wait
        if not settings.inference:
            self._progress.ahead = training_ahead
        self._hooked = False
        self._pass_hooks: list[Any] = []
        self.out_of_memory = OutOfMemory(
            box, self.virtual, self._progress, self._scopes, self._marks, self.layer
        )
        self._allocations = 0
        """When the history began."""

    @property
    def oom(self) -> dict[str, Any] | None:
        """The last out-of-memory error, if any."""
        return self.out_of_memory.last

    # ---- beginning ----

    def start(self) -> None:
        """Install all hooks. Does not initialize CUDA."""
        torch.cuda._lazy_call(self._cuda_starts)
        self.layer.before = self._scopes.label
        self.layer.install()
        self._modules.watch()
        self._steps.watch_construction(self.settings.inference)
        Loading(self._progress, self._scopes).watch()
        Leaves(self._progress, self._marks, self._updates).watch()
        on_import("transformers.generation.utils", self.passes.watch_generation)
        on_import(
            "onnxruntime.capi.onnxruntime_inference_collection",
            lambda module: onnx_sessions.watch(module, onnx_sessions.BesidePyTorch(self)),
        )
        if self.virtual:
            vllm_engine.watch(self)
            hub_uploads.watch()
            saved_weights.watch()
            on_import("triton.backends.nvidia.driver", triton_launcher.watch)
            on_import("torch._inductor.scheduler", inductor_benchmarks.watch)
        self._facts.watch()
        self._steps.watch()
        self._watch_compile()
        self._watch_window()
        self._box_says_recorded()
        if self._box is not None:
            self._box.torch, self._box.recorder = torch, self
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """A child process is not part of this run, and cannot use CUDA if it was initialized before the fork."""
        self.layer.before = None
        self._progress.last_step = None
        self._modules.stop()
        if torch.cuda._is_in_bad_fork():
            self.layer.leave()

    def _cuda_starts(self) -> None:
        if os.getpid() != self.process:
            self._becomes_child()
        self._begin_history()
        if self.virtual and history.uses_pools():
            self._scopes.label_pools()
            self.assumptions.add("attribution", _POOLS, "")
        else:
            self.out_of_memory.watch()
        self._scopes.begin()

    def _becomes_child(self) -> None:
        """A fork of the script uses the GPU, which the script did not: it leaves a record of its own."""
        is_rank = self.settings.several and self.rank is not None
        if is_rank or self._in_parts:
            return
        self.process = os.getpid()
        self.directory = self.directory.run.rank(f"process-{self.process}")
        self.directory.make()

    def _watch_compile(self) -> None:
        """Hooks on modules would change what is compiled; they go when compilation is asked for."""
        compile_function, compile_method = torch.compile, torch.nn.Module.compile

        def compiled(*args, **kwargs):
            self._compiles()
            return compile_function(*map(original_of, args), **kwargs)

        def compiled_module(module, *args, **kwargs):
            self._compiles()
            return compile_method(module, *args, **kwargs)

        export = torch.export.export
        strict = inspect.signature(export).parameters["strict"].default

        @functools.wraps(export)
        def exported(*args, **kwargs):
            if kwargs.get("strict", strict):
                self._compiles(_EXPORTED)  # Dynamo traces it
            return export(*args, **kwargs)

        torch.export.export = exported
        torch.compile = compiled
        torch.nn.Module.compile = compiled_module  # type: ignore[method-assign]

    def _compiles(self, what: str = _COMPILED) -> None:
        if compilation.is_never() and what == _COMPILED:
            return
        self._facts.compilations += 1
        if self._modules.stop():
            self._facts.compiled = True
            self._progress.words[BoxWord.COMPILED] = 1
            self.assumptions.add("attribution", what, user_line())

    # ---- leaving a job that repeats itself ----

    def _watch_window(self) -> None:
        """A script is recorded until its steps are alike; all of it if only some steps run."""
        last = self.settings.steps
        if self._in_parts:
            return
        if self.virtual and (last is None or last > LongWindow.LEAST_STEPS):
            self._progress.window = LongWindow(self._leave, self._come_back)
            return
        if last is not None:
            return
        self._progress.window = Window(
            lambda: self._scopes.keys,
            lambda: bool(self._progress.running) or not torch.cuda.is_initialized(),
            self._leave,
            self._come_back,
        )
        self._progress.window.watch_signal()

    def _leave(self) -> None:
        """Write the record, as if the script were killed from here on, and remove the hooks."""
        self._note_memory()
        self._keep_window()
        if self.virtual:
            self.layer.before = None  # values are computed all the same
        else:
            self.layer.leave()
        self._hooked = self._modules.stop()
        if not self._progress.trains:
            self._pass_hooks = self.passes.count_alone(self._modules.models.alive)
        history.end()
        if self.virtual:
            history.keep_newest(EVENTS, "alloc")
        if self._box is not None and not self._facts.compiled:
            self._pass_hooks += self.passes.follow(self._modules.models.alive)
        self._progress.say_recorded(*self._progress.window.recorded[-1])
        self._progress.words[BoxWord.RECORDED] = 0

    def _keep_window(self) -> None:
        """Write what is recorded, as if the script were killed from here on."""
        self.keep(dict(kind="killed", status=137))

    def keep(self, outcome: dict[str, Any]) -> None:
        """Write what is recorded, as if the script ended here with `outcome`; it may be killed later."""
        self.keeping(outcome)()

    def keeping(self, outcome: dict[str, Any], may_be_last: bool = False) -> Callable[[], None]:
        """What does that, also in a process that is forked now, which cannot ask the GPU.

        `may_be_last`: if nothing is used or assumed later that was not until now, no other record is written in the end.
        """
        found = self._devices()
        self._kept = (outcome, self._most(found)) if may_be_last else None

        def keep() -> None:
            # A full disk is no reason to end the script.
            with contextlib.suppress(OSError):
                self._write_history(outcome["status"], Why.LOOK)
                self.directory.write_json(File.RECORD, self._record(outcome, True, found, []))

        return keep

    def _come_back(self) -> None:
        """Record everything again."""
        history.end()
        self._begin_history()
        self._box_says_recorded()
        for hook in self._pass_hooks:
            hook.remove()
        self._pass_hooks = []
        if self._hooked:
            self._modules.watch()
        self.layer.before = self._scopes.label
        if not self.virtual:
            self.layer.come_back()

    def _begin_history(self) -> None:
        self._allocations = allocations()
        history.begin(MAX_EVENTS, self._scopes.in_stacks)

    # ---- for the black box ----

    def _module_of(self, error: BaseException) -> str:
        """The innermost module whose call `error` ended, as plans name it; "" if it ended none."""
        found, traceback = "", error.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if code.co_name == "forward" and code.co_varnames[:1] == ("self",):
                # The frame has ended: looking at its variables keeps nothing alive that the error does not.
                owner = traceback.tb_frame.f_locals.get("self")
                if isinstance(owner, torch.nn.Module):
                    found = self._modules.name_of(owner) or type(owner).__name__
            traceback = traceback.tb_next
        return found

    def _box_says_recorded(self) -> None:
        self._progress.words[BoxWord.RECORDED] = 1

    def box_is_gone(self, words: Any) -> None:
        """This is a child of the process: what it stores in `words` nobody reads."""
        self._progress.box, self._progress.words = None, words
        self._box = None

    @property
    def running_module(self) -> str:
        """The module that is running, as plans name it; "" if that is not known."""
        running = self._progress.running
        return running[-1][0] if running else ""

    @property
    def events(self) -> int:
        """How many events the history has, about."""
        if not self._progress.is_recorded:
            return EVENTS
        return 2 * (allocations() - self._allocations)

    def take_snapshot(self) -> Any:
        """What the allocator holds, and the history."""
        made = history.snapshot()
        return made if self._progress.is_recorded else history.without_labels(made)

    def _note_memory(self) -> None:
        """Mark what models and optimizers hold now."""
        self._marks.gradients()
        self._marks.optimizer_state()
        self._marks.models()

    def _devices(self) -> list[dict[str, Any]]:
        return [
            devices.describe(index, self._usage(index))
            for index in range(torch.cuda.device_count())
        ]

    def _most(self, found: list[dict[str, Any]]) -> Any:
        """What a record says in the end: peaks, what was assumed, and where memory ran out."""
        peaks = [{name: n for name, n in one.items() if name.startswith("peak_")} for one in found]
        assumed = [(one["kind"], one["what"], one["location"]) for one in self.assumptions.as_list()]  # fmt: skip
        return peaks, assumed, self.oom, dict(self.engine)

    # ---- parts that are recorded by themselves ----

    def begin_part(self, before: list[history.Alive]) -> None:
        """What was recorded is forgotten; a part of the program, such as a test, begins.

        `before` is what belongs to it of what is alive already.
        """
        if os.getpid() != self.process:
            # A fork that is more than a helper of the program.
            self.process = os.getpid()
            self._modules.watch()
        for kept in (
            self._scopes, self.passes, self._modules, self.out_of_memory, self._reads, self._broadcasts,
        ):  # fmt: skip
            kept.forget()
        self._progress.forget()
        self.assumptions.forget()
        self._updates.forget()
        self._steps.forget(self._modules.models)
        self.layer.before = self._scopes.label
        self._before_part = before
        if torch.cuda.is_initialized():
            self._marks.forget()
            history.end()
            history.begin(MAX_EVENTS, self._scopes.in_stacks)

    def write_part(
        self, directory: RunDirectory, peaks: list[tuple[int, int]], whole: bool
    ) -> None:
        """Write what was recorded of the part into `directory`; it goes on.

        Parameters
        ----------
        peaks : the most bytes allocated and reserved on each device.
        whole : whether what was alive before belongs to it; otherwise only what the part allocated.
        """
        self._note_memory()
        snapshot = history.snapshot()
        if whole:
            for device, trace in enumerate(snapshot["device_traces"]):
                trace[:0] = [one.event for one in self._before_part if one.device == device]
        with directory.writing(File.SNAPSHOT) as file:
            pickle.dump(snapshot, file, protocol=4)
        found = self._devices()
        for device, (allocated, reserved) in zip(found, peaks, strict=True):
            device.update(peak_allocated_bytes=allocated, peak_reserved_bytes=reserved)
        part = self._record(dict(kind="finished", status=0), True, found, [])
        directory.write_json(File.RECORD, part)

    # ---- the end ----

    def failed_with(self, error: BaseException) -> None:
        """The script ended with `error`."""
        self.out_of_memory.failed_with(error)
        if self._box is not None:
            self._box.failed(error, self._module_of(error))
            if not self._progress.is_recorded and not self.out_of_memory.is_it(error):
                self._box.hold(Why.ENDED)

    def is_replaced(self) -> None:
        """Another program takes over the process. What it does, nobody records."""
        if torch.cuda.is_initialized():
            self._progress.stopped = True
            self.finish(dict(kind="replaced", status=0))
            if self._box is not None:
                self._box.finished()

    def finish(self, outcome: dict[str, Any]) -> None:
        """Write `record.json` and `trace.pickle`; once."""
        if self._finished or os.getpid() != self.process:
            return
        self._finished = True
        for told in self.before_record:
            told(outcome)
        self.layer.before = None
        self._scopes.finish()
        if self._kept is not None and self._kept == (outcome, self._most(self._devices())):
            self.directory.remove(File.HELD)
            return
        # Code other than PyTorch may have used it.
        usage = self._usage(0)
        used_cuda = torch.cuda.is_initialized() or (usage is not None and usage.peak > 0)
        is_child = self.directory.run is not self.directory
        if not used_cuda and self.rank is None and (self.settings.several or is_child):
            return  # a helper of the script, no rank
        self._updates.finish()
        self.passes.finish()
        if self._facts.compiled and self._progress.trains and not self._progress.step:
            self.assumptions.add("attribution", _COMPILED_STEPS, "")
        if self._progress.stopped and self._progress.trains and self._steps.some_wait(1):
            self.assumptions.add("attribution", _IDLE_OPTIMIZER, "")
        if self._progress.unseen:
            self.assumptions.add("attribution", _NOT_TRAINED, "")
        found = []
        if used_cuda:
            self.out_of_memory.finish()
            self._note_memory()
            found = self._devices()
            self._write_history(outcome["status"])
        levers = self.levers.report() if self.levers else []
        self.directory.write_json(File.RECORD, self._record(outcome, used_cuda, found, levers))
        if outcome["status"] == 0:
            self.directory.remove(File.HELD)

    def _write_history(self, status: int, why: Why = Why.ENDED) -> None:
        """`status` is not zero if the script has ended badly: then what it held is kept for others, too."""
        box = self._box
        if not self._progress.is_recorded:
            # The window's is written already; a failure after it has one of its own.
            if self.oom and self.oom.get("raised") and not self.out_of_memory.when_recorded:
                self.directory.link(File.HELD, File.SNAPSHOT)
            elif status and box is not None and box.words[BoxWord.HELD_WHY] != Why.ENDED:
                box.hold(Why.ENDED)
            return
        # A snapshot is a million objects, none of them garbage: looking for it would take longer than making them.
        with without_collections():
            # The snapshot's own work must not be recorded as the job's.
            snapshot = history.snapshot()
            if not self.virtual:
                snapshot = newest(snapshot, MOST_SAVED)
            with self.directory.writing(File.SNAPSHOT) as file:
                pickle.dump(snapshot, file, protocol=4)
        if status and box is not None:
            ran_out = self.oom and self.oom.get("raised")
            if not ran_out or box.words[BoxWord.HELD_WHY] != Why.OUT_OF_MEMORY:
                box.hold(Why.OUT_OF_MEMORY if ran_out else why, snapshot)

    def _record(
        self,
        outcome: dict[str, Any],
        used_cuda: bool,
        found: list[dict[str, Any]],
        levers: list[dict[str, Any]],
    ) -> dict[str, Any]:
        files = [] if self._in_parts else sources(os.path.realpath(self.directory.run.path))
        return dict(
            format=FORMAT,
            torch=torch.__version__,
            cuda=torch.version.cuda,
            python=sys.version.split()[0],
            argv=sys.argv,
            process=self.process,
            virtual=self.virtual,
            date=time.strftime("%Y-%m-%d"),
            seconds=time.monotonic() - self._began,
            outcome=outcome,
            engine=self.engine or None,
            used_cuda=used_cuda,
            devices=found,
            rank=self.rank,
            calls=self._modules.calls,
            facts=self._facts.as_dict(self._progress.cpu_ns),
            **self._modules.models.as_dict(),
            marks=self._marks.marks,
            cublas_workspace=cublas_workspace(),
            net_bytes=_steady_gradients.bytes_on_host(),
            max_events=MAX_EVENTS,
            windows=self._progress.window.recorded if self._progress.window else [],
            assumptions=self.assumptions.as_list(),
            library=library.report() if self.virtual else {},
            work=library.work() | dict(places=self._scopes.places) if self.virtual else {},
            paced=self._progress.window.paced if self._progress.window else [],
            levers=levers,
            became=self.resize.became if self.resize else [],
            uses_checkpointing=use_checkpointing(files),
            goes_backward=go_backward(files),
            sources=files,
            **self._progress.as_dict(),
            **self._scopes.as_dict(),
            **self._reads.as_dict(),
            **self._broadcasts.as_dict(),
            **self.out_of_memory.as_dict(),
        )

    def _usage(self, index: int) -> library.Usage | None:
        """All memory in use on a virtual GPU."""
        return library.usage(index) if self.virtual else None


def cublas_workspace() -> int:
    """The bytes of cuBLAS's workspace as `CUBLAS_WORKSPACE_CONFIG` has them (`:KiB:count`, repeated); 0 if it is not set."""
    numbers = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "").split(":")[1:]
    if len(numbers) % 2 or not all(number.isdigit() for number in numbers):
        return 0
    sizes = [int(number) for number in numbers]
    return sum(size * count for size, count in zip(sizes[::2], sizes[1::2], strict=True)) << 10


def _rank_of_environment() -> dict[str, int] | None:
    """What launchers say in the environment: `rank`, `world_size`, `local_rank` (-1 if unsaid)."""
    values = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if not (values[0].isdigit() and values[1].isdigit()):
        return None
    local = int(values[2]) if values[2].isdigit() else -1
    return dict(rank=int(values[0]), world_size=int(values[1]), local_rank=local)
