"""What is on disk however the job ends: the black box.

A process that is killed says nothing any more, so what is to be known of it must be written before. The box is a
small file that is mapped into memory: what was stored there stays when the process is gone. The script's own
thread stores a few words at each pass and step, which takes about a microsecond. A thread looks once a second
at the stack of the main thread and at what the allocator and the host hold. If that has changed, the next step ends with a
snapshot of the allocator: as often as takes half a percent of the time. Stacks of all threads are written by `faulthandler`, which
needs neither memory nor the interpreter's lock: when the process crashes, and at the command's signal when it hangs
(`crates/oomph-run/src/black_box.rs` reads the box, `crates/oomph-job/src/watchdog.rs` watches it).
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import pickle
import platform
import signal
import sys
import threading
import time
import types
from typing import Any

from oomph._older_python import zip
from oomph._protocol import BOX_FORMAT, BoxPart, BoxWord, File, RunDirectory, Why

LOOK_SECONDS = 1.0
"""Between two looks."""

REST = 200
"""After a snapshot this many times what it took passes before the next: half a percent of the time."""

CHANGED = 0.01
"""The part by which what is held must have changed for another snapshot."""

MOST_EVENTS = 100_000
"""Of the newest snapshot; the box and what is beside it stay below 50 MB."""

LONGEST_HISTORY = 400_000
"""Events of a history that is still looked at while the job runs: PyTorch gives all of it or nothing."""

ENTRIES = 512
"""Of the series of what was held: when it is full, every second one goes."""

_SIGNAL = 16
"""SIGSTKFLT, which nobody uses: on it `faulthandler` writes the stacks, whichever thread has the interpreter's lock."""

_FRAMES = 48
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OTHERS = 16
"""Looks until GPUs are looked at on which nothing was held."""


class BlackBox:
    """The box of this process, in `directory`. Where it cannot be made, all is written to nowhere."""

    def __init__(self, directory: RunDirectory) -> None:
        """Make the file. It is not watched before `start`."""
        self._directory = directory
        self._process = os.getpid()
        self._main = threading.main_thread().ident
        self._lock = threading.RLock()
        self._stacks: int | None = None
        self._crashes = False
        self._signal = 0
        self._next = 0.0
        self._held: tuple[int, int] | None = None
        self._due = True
        """Whether the next step is to end with a snapshot, as the first one does."""
        self._used: set[int] = set()
        self._looks = 0
        self._interval = LOOK_SECONDS
        self._next_entry = 0.0
        self._is_ending = False
        """Whether where the script ended is written: where it is after that is no matter."""
        self.torch: Any = None
        """The module, when it is imported."""
        self.recorder: Any = None
        """The object that knows which modules are running, and what the history is."""
        self._map: Any = bytearray(BoxPart.END)
        with contextlib.suppress(OSError, ValueError):
            self._map = _mapped(directory.file(File.BLACK_BOX))
        self.words: Any
        """Numbers, as `BoxWord` says. A store of one is whole or not at all."""
        self.words, self._series = _numbers(self._map)

    # ---- beginning ----

    def start(self, argv: list[str]) -> None:
        """Say whose box it is, prepare for crashes, and begin to look."""
        self._open_stacks()
        about = dict(
            process=self._process, started_us=_now(), host=platform.node(), boot=_line("/proc/sys/kernel/random/boot_id"),
            argv=argv[:64], oom_kills=_oom_kills(), signal=self._signal, crash_stacks=self._crashes,
        )  # fmt: skip
        self._write(BoxPart.ABOUT, BoxPart.SAMPLES - BoxPart.ABOUT, about)
        self.words[BoxWord.PROCESS] = self._process
        self.words[BoxWord.FORMAT] = BOX_FORMAT
        os.register_at_fork(after_in_child=self._leave_to_parent)
        thread = threading.Thread(target=self._watch, name="oomph-black-box", daemon=True)
        # No more threads are allowed: the words are written all the same.
        with contextlib.suppress(RuntimeError):
            thread.start()

    def _open_stacks(self) -> None:
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._stacks = os.open(self._directory.file(File.STACKS), flags, 0o600)
            if not faulthandler.is_enabled():
                # A script that wants them on stderr has asked before, or asks later, and gets them there.
                faulthandler.enable(self._stacks, all_threads=True)
                self._crashes = True
            if signal.getsignal(_SIGNAL) is signal.SIG_DFL:
                faulthandler.register(_SIGNAL, self._stacks, all_threads=True)
                self._signal = _SIGNAL

    def _leave_to_parent(self) -> None:
        """A child of the process shares its memory map, which is not the child's."""
        self._map = bytearray(BoxPart.END)
        self.words, self._series = _numbers(self._map)
        if self._crashes:
            faulthandler.disable()
        if self._signal:
            faulthandler.unregister(self._signal)
        if self.recorder is not None:
            self.recorder.box_is_gone(self.words)

    # ---- a look ----

    def _watch(self) -> None:
        while os.getpid() == self._process and not self.words[BoxWord.ENDED]:
            # An observer never ends what it observes.
            with contextlib.suppress(Exception):
                self.look()
            time.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Write where the main thread is and what is held; save a snapshot if one is due."""
        with self._lock:
            if self._is_ending:
                return
            stack = _stack(sys._current_frames().get(self._main or 0))
            self.sample(stack)
        asked = self.words[BoxWord.ASKED]
        if asked != self.words[BoxWord.ANSWERED]:
            self.words[BoxWord.ANSWERED] = asked
            # PyTorch's snapshot may import modules, which must not meet an import of the main thread.
            if not any(map(_imports, stack)):
                self.hold(Why.HANG)
        else:
            self._due = self._is_due()

    def sample(self, stack: list[tuple[str, int, str]], module: str = "") -> None:
        """Write a stack (file, line, function; the innermost first) and what is held now."""
        with self._lock:
            recorder = self.recorder
            if not module and recorder is not None:
                module = recorder.running_module
            told: dict[str, Any] = dict(
                time_us=_now(), stack=stack[:_FRAMES], module=module, torch=self.torch is not None, devices=self._devices(),
                host=_host_memory(),
            )  # fmt: skip
            words = self.words
            slot = 1 - words[BoxWord.SLOT] % 2
            size = (BoxPart.SERIES - BoxPart.SAMPLES) // 2
            while not self._write(BoxPart.SAMPLES + slot * size, size, told):
                told["stack"] = told["stack"][: len(told["stack"]) // 2]
            words[BoxWord.SLOT] = 2 + slot
            words[BoxWord.SAMPLE_US] = told["time_us"]

    def _devices(self) -> list[dict[str, int]]:
        torch = self.torch
        if torch is None or not torch.cuda.is_initialized():
            return []
        everywhere = not self._used or self._looks % _OTHERS == 0
        self._looks += 1
        found = []
        for index in range(torch.cuda.device_count()) if everywhere else sorted(self._used):
            allocated, reserved, most, count = _held(torch, index)
            if reserved:
                self._used.add(index)
                found.append(
                    dict(index=index, allocated=allocated, reserved=reserved, most_reserved=most, allocations=count)
                )  # fmt: skip
        return found

    def _is_due(self) -> bool:
        if self._held is None or time.monotonic() < self._next:
            return self._due
        held = self._now_held()
        return any(
            abs(now - before) > CHANGED * before for now, before in zip(held, self._held, strict=True)
        )  # fmt: skip

    def _now_held(self) -> tuple[int, int]:
        """What is reserved, and what was allocated when the newest step of the series ended."""
        reserved = sum(_held(self.torch, index)[1] for index in self._used)
        return reserved, self._newest_entry()

    def hold(self, why: Why, made: Any = None) -> bool:
        """Save what the allocator holds, and its newest events; whether that was possible. `made` is the snapshot, if
        there is one."""
        torch, recorder = self.torch, self.recorder
        if torch is None or recorder is None or not torch.cuda.is_initialized():
            return False
        with self._lock:
            began = time.monotonic()
            saved = False
            if why in (Why.OUT_OF_MEMORY, Why.ENDED) or recorder.events < LONGEST_HISTORY:
                # A full disk is no reason to end the script.
                with contextlib.suppress(OSError):
                    made = newest(made or recorder.take_snapshot(), MOST_EVENTS)
                    with self._directory.writing(File.HELD) as file:
                        pickle.dump(made, file, protocol=4)
                    saved = True
            ended = time.monotonic()
            self._next = ended + REST * (ended - began)
            self._held = self._now_held()
            if saved:
                words = self.words
                words[BoxWord.HELD_US], words[BoxWord.HELD_WHY] = _now(), why
                words[BoxWord.HELD_STEP] = words[BoxWord.STEPS]
            return saved

    # ---- the series of what was held when steps ended ----

    def step_ended(self) -> None:
        """A step is over: note what is held, once a second at most, and save it if that is due."""
        if not self._due and time.monotonic() < self._next_entry:
            return
        # An observer never ends what it observes.
        with contextlib.suppress(Exception):
            if self._due:
                self._due = False
                self.hold(Why.LOOK)
            self._add_entry()

    def _add_entry(self) -> None:
        now, torch = time.monotonic(), self.torch
        if now < self._next_entry or torch is None or not torch.cuda.is_initialized():
            return
        self._next_entry = now + self._interval
        allocated = reserved = 0
        for index in self._used or {torch.cuda.current_device()}:
            here = _held(torch, index)
            allocated, reserved = allocated + here[0], reserved + here[1]
        words, series = self.words, self._series
        count = words[BoxWord.ENTRIES]
        if count == ENTRIES:
            kept = [value for n in range(0, ENTRIES, 2) for value in series[4 * n : 4 * n + 4]]
            for place, value in enumerate(kept):
                series[place] = value
            count = ENTRIES // 2
            self._interval *= 2
        at = 4 * count
        series[at], series[at + 1] = words[BoxWord.STEPS], _now()
        series[at + 2], series[at + 3] = allocated, reserved
        words[BoxWord.ENTRIES] = count + 1

    def _newest_entry(self) -> int:
        count = self.words[BoxWord.ENTRIES]
        return self._series[4 * count - 2] if count else 0

    # ---- the end ----

    def ends(self, why: str) -> None:
        """The process is ending by a signal: write stacks of all threads, and where it was."""
        if self._stacks is not None:
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                os.write(self._stacks, f"== {why}\n".encode())
                faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._is_ending = True
        with contextlib.suppress(Exception):
            stack = _stack(sys._current_frames().get(self._main or 0))
            self.sample(stack)

    def look_here(self, at_end: bool = False) -> None:
        """Write where this thread is, which waits for nothing; the main thread, if it is one of autograd's."""
        self._is_ending |= at_end
        with contextlib.suppress(Exception):
            here = _stack(sys._getframe())
            self.sample(here or _stack(sys._current_frames().get(self._main or 0)))

    def failed(self, error: BaseException, module: str) -> None:
        """The script ended with `error`, in `module` ("": unknown): write where it was."""
        self._is_ending = True
        with contextlib.suppress(Exception):
            self.sample(_stack_of(error.__traceback__), module)

    def finished(self) -> None:
        """How the script ended is in its record."""
        self.words[BoxWord.ENDED] = 1

    def _write(self, start: int, size: int, value: Any) -> bool:
        """Write JSON with its length before it; whether it was short enough."""
        text = json.dumps(value).encode()
        if len(text) > size - 8:
            return False
        self._map[start : start + 8] = len(text).to_bytes(8, "little")
        self._map[start + 8 : start + 8 + len(text)] = text
        return True


def newest(made: Any, most: int) -> Any:
    """A snapshot with the newest `most` events of each GPU."""
    return dict(made, device_traces=[trace[-most:] for trace in made["device_traces"]])


def _numbers(memory: Any) -> tuple[Any, Any]:
    """The words and the series of a box."""
    view = memoryview(memory)
    return view[: BoxPart.ABOUT].cast("q"), view[BoxPart.SERIES : BoxPart.END].cast("q")


def _mapped(path: str) -> mmap.mmap:
    """A new file in memory. Its space on the disk is taken now: a store must not find the disk full."""
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(file, 0, BoxPart.END)
        return mmap.mmap(file, BoxPart.END)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(path)
        raise
    finally:
        os.close(file)


def _now() -> int:
    return time.time_ns() // 1000


def _stack(frame: types.FrameType | None) -> list[tuple[str, int, str]]:
    found: list[tuple[str, int, str]] = []
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            name = getattr(code, "co_qualname", code.co_name)
            found.append((code.co_filename, frame.f_lineno or 0, name))
        frame = frame.f_back
    return found


def _imports(frame: tuple[str, int, str]) -> bool:
    """Whether this frame of a stack imports a module, or compiles."""
    path = frame[0]
    return "importlib" in path or "/torch/_dynamo/" in path or "/torch/_inductor/" in path


def _stack_of(traceback: types.TracebackType | None) -> list[tuple[str, int, str]]:
    found = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            name = getattr(code, "co_qualname", code.co_name)
            found.append((code.co_filename, traceback.tb_lineno, name))
        traceback = traceback.tb_next
    return found[::-1]


def _held(torch: Any, index: int) -> tuple[int, int, int, int]:
    """Bytes allocated, reserved, and the most reserved; how often memory was allocated."""
    stats = torch._C._cuda_memoryStats(index)
    reserved = stats["reserved_bytes"]["all"]
    return (
        stats["allocated_bytes"]["all"]["current"], reserved["current"], reserved["peak"],
        stats["allocation"]["all"]["allocated"],
    )  # fmt: skip


def _line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def _cgroup() -> str:
    """The directory of this process's memory cgroup; "" without one."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return ""
    for _, controllers, path in lines:
        if controllers == "" or "memory" in controllers.split(","):
            root = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
            group = os.path.normpath(f"{root}/{path}")
            # A container sees its own group at the root, whatever its name is outside.
            return group if os.path.isdir(group) else root
    return ""


def _oom_kills() -> list[tuple[str, int]]:
    """Files of the kernel that count how often its OOM killer has killed, and what they say now."""
    group, found = _cgroup(), []
    files = (f"{group}/memory.events", f"{group}/memory.oom_control", "/proc/vmstat")
    for path in files if group else files[2:]:
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            counts = dict(line.split() for line in file)
            if "oom_kill" in counts:
                found.append((path, int(counts["oom_kill"])))
    return found


_LIMITS = ("memory.current", "memory.max"), ("memory.usage_in_bytes", "memory.limit_in_bytes")
_GROUP = _cgroup()


def _host_memory() -> dict[str, int]:
    """Bytes that this process holds, and that its cgroup does, with its limit; what could not be read is left out."""
    found = {}
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        found["resident"] = int(file.read().split()[1]) * mmap.PAGESIZE
    for used, limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            with open(f"{_GROUP}/{used}") as file:
                found["group"] = int(file.read())
            with open(f"{_GROUP}/{limit}") as file:
                found["group_limit"] = int(file.read())
    return found
