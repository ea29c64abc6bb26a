"""Measures the tests of this process: pytest's hooks while a virtual GPU is there."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, MutableMapping, Sized
from typing import Any

import pytest

from oomph._older_python import zip
from oomph._oomph import VirtualGpu, format_size, parse_size, read_part
from oomph._protocol import RunDirectory
from oomph._recorder.script import without_own_frames
from oomph._recorder.session import Session
from oomph._testing.assertions import may_decide
from oomph._testing.baseline import MOST_PLACES, Baseline, describe
from oomph._testing.options import setting

RULES = ("fail", "skip", "ignore")
"""What becomes of a test that checks values which the virtual GPU does not compute."""

_REFUSED = "oomph_refused"

_SHOWN = 5
"""Places, and reads of unknown values, that a failure lists."""

UNCOMPUTED = (
    "the test checks values that the virtual GPU does not compute, so that its outcome says nothing"
)


class Memory:
    """What a test holds of the GPU's memory: the fixture `gpu_memory`. All sizes are in bytes."""

    def __init__(self, tests: Tests) -> None:
        """Of the test that runs."""
        self._tests = tests

    @property
    def peak(self) -> int:
        """The most in tensors at one time, since the test's function began."""
        return max((allocated for allocated, _ in self._tests.peaks()), default=0)

    @property
    def reserved(self) -> int:
        """The most that PyTorch's allocator held."""
        return max((reserved for _, reserved in self._tests.peaks()), default=0)

    @property
    def allocated(self) -> int:
        """What is in tensors now."""
        return self._tests.allocated()

    @property
    def categories(self) -> dict[str, int]:
        """Bytes at the peak by what they hold: `parameter`, `gradient`, `optimizer_state`, `activation`, …"""
        return dict(self._part("categories", {}))

    @property
    def modules(self) -> dict[str, int]:
        """Bytes at the peak by module, the largest first."""
        return {row["name"]: row["bytes"] for row in self._part("modules", [])}

    @property
    def places(self) -> dict[str, int]:
        """Bytes at the peak by line (`file.py:12 in name`), the largest first."""
        found: dict[str, int] = {}
        for row in self._part("places", []):
            where = row["stack"][0] if row["stack"] else ""
            found[where] = found.get(where, 0) + row["bytes"]
        return found

    @property
    def steps(self) -> list[int]:
        """The peak within each optimizer step so far; what came before the first step counts to it."""
        return [row["peak_allocated_bytes"] for row in self._part("steps", [])]

    def _part(self, name: str, default: Any) -> Any:
        part = self._tests.part()
        return default if part is None else part[name]

    def __repr__(self) -> str:
        return f"<GPU memory: peak {format_size(self.peak)}, reserved {format_size(self.reserved)}>"


class Tests:
    """A plugin of pytest. One test runs at a time."""

    def __init__(
        self,
        config: pytest.Config,
        gpu: VirtualGpu,
        session: Session,
        leave_alone: Callable[[MutableMapping[str, str]], None],
    ) -> None:
        """`gpu` is lent to this process, whose tests `session` records.

        `leave_alone` keeps processes with an environment from being recorded as programs of a test.
        """
        self.config, self._gpu, self._session = config, gpu, session
        self._leave_alone = leave_alone
        name, count, memory = gpu.describe()
        self.title = f"virtual {name} · {format_size(memory)}" + (
            f" · {count} of them" if count > 1 else ""
        )
        self._tolerance = _percent(setting(config, "tolerance"))
        largest = setting(config, "largest") or ""
        if not largest.isdigit():
            raise ValueError(f"--oomph-largest: expected a number of tests, found {largest!r}")
        self._largest = int(largest)
        self._rule = _rule(setting(config, "uncomputed"), "--oomph-uncomputed")
        self._path = setting(config, "baseline")
        self._writes = bool(self._path) and (
            config.known_args_namespace.oomph_update_baseline or not os.path.exists(str(self._path))
        )
        on = f"{name}, {memory} bytes" + (f", {count}" if count > 1 else "")
        self._baseline = Baseline(on)
        if self._path and not self._writes:
            self._baseline = Baseline.read(self._path, on)
        elif config.known_args_namespace.oomph_update_baseline and not self._path:
            raise ValueError("--oomph-update-baseline needs --oomph-baseline FILE")
        # Of the test that runs.
        self._item: pytest.Item | None = None
        self._reset: list[tuple[int, int]] = []
        self._reads: dict[str, int] = {}
        self._places: list[dict[str, Any]] = []
        self._failed = False
        self._older: set[Any] = set()
        """What was alive before the test's own fixtures were made."""
        self._foreign: list[int] = []
        """Bytes of other tests' that are alive, of each device: leaks, and fixtures that it does not use."""
        self._foreign_keys: set[Any] = set()
        self._settled: list[tuple[int, int]] = []
        """What was there when garbage was last looked for."""
        self._of_fixtures: dict[Any, set[Any]] = {}
        """What fixtures hold that several tests share."""
        # Of all tests, in the process that reports them.
        self._results: dict[str, dict[str, Any]] = {}
        self._uncomputed: dict[str, str] = {}

    # ---- what the tests' process holds ----

    @property
    def _recorder(self) -> Any:
        recorder = self._session.recorder
        if recorder is not None and recorder.assumptions.on_read is None:
            recorder.assumptions.on_read = self._read
            self._watch_resets()
        return recorder

    def _uses_gpu(self) -> bool:
        """Whether this process has used CUDA."""
        return self._recorder is not None and sys.modules["torch"].cuda.is_initialized()

    def _now(self) -> list[tuple[int, int]]:
        """The most bytes allocated and reserved on each device since that was last reset."""
        kinds = ("allocated_bytes", "reserved_bytes")
        return [tuple(stats[kind]["all"]["peak"] for kind in kinds) for stats in _statistics()]

    def _watch_resets(self) -> None:
        """A test may reset the peaks for figures of its own; what they were counts all the same."""
        c = sys.modules["torch"]._C
        for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
            reset = getattr(c, name, None)
            if reset is not None:
                setattr(c, name, self._around_reset(reset))

    def _around_reset(self, reset: Any) -> Any:
        def noting(device: Any) -> None:
            self._reset = self._absolute()
            reset(device)

        return noting

    def _absolute(self) -> list[tuple[int, int]]:
        """The most bytes allocated and reserved on each device since the test's function began, other tests' too."""
        now = self._now()
        before = self._reset or now
        return [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(now, before, strict=True)]

    def peaks(self) -> list[tuple[int, int]]:
        """The same without what other tests left or share: of allocated memory, since reserved is not told apart."""
        if not self._uses_gpu():
            return []
        found = self._without_foreign()
        if self._foreign_keys and not self._foreign_keys <= _keys():
            # Some of it went meanwhile, so that it is not in all that was seen: the history tells.
            part = self.part()
            if part is not None:
                device = part["device"]
                found[device] = (part["own_bytes"], found[device][1])
        return found

    def _without_foreign(self) -> list[tuple[int, int]]:
        found = self._absolute()
        foreign = self._foreign or [0] * len(found)
        return [(max(0, a - other), b) for (a, b), other in zip(found, foreign, strict=True)]

    def allocated(self) -> int:
        """Bytes in tensors now, of the device that holds the most."""
        if not self._uses_gpu():
            return 0
        return max(
            (stats["allocated_bytes"]["all"]["current"] for stats in _statistics()), default=0
        )

    def _counts(self) -> list[tuple[int, int]]:
        """Of each device: how many tensors are there, and their bytes."""
        kinds = ("allocation", "allocated_bytes")
        found = [tuple(stats[kind]["all"]["current"] for kind in kinds) for stats in _statistics()]
        return [one for one in found if any(one)]

    def part(self, whole: bool = True) -> dict[str, Any] | None:
        """What was recorded of the test so far; see `Recorder.write_part`."""
        if not self._uses_gpu():
            return None
        place = tempfile.mkdtemp(dir=self._session.directory.path)
        try:
            directory = RunDirectory(place)
            directory.make()
            self._recorder.write_part(directory, self._without_foreign(), whole)
            text = read_part(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return None if text is None else dict(json.loads(text))

    def memory(self) -> Memory:
        """The fixture's value."""
        return Memory(self)

    def _settle(self) -> None:
        """Give back what no test holds, so that a test's figures do not follow from those before it."""
        torch = sys.modules["torch"]
        torch._C._cuda_clearCublasWorkspaces()
        if self._counts() != self._settled:
            # What a test that failed held, or is in cycles. Looking for it takes longer than a small test, so only
            # where something is there that was not when it was last looked for.
            gc.collect()
            self._settled = self._counts()
        torch.cuda.empty_cache()

    # ---- one test ----

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record the test's function, and judge what it held."""
        self._begin(item)
        try:
            result = yield
        except BaseException:
            self._failed = True
            self._note(item)
            raise
        finally:
            self._item = None
        self._note(item)
        self._judge(item)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Before the test's fixtures are made."""
        self._failed, self._reset, self._reads, self._foreign = False, [], {}, []
        self._places = []
        self._older, self._foreign_keys = set(), set()
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            # Of a test that failed, with all that its frames hold; pytest forgets it a little later.
            sys.__dict__.pop(name, None)
        recorder = self._recorder
        if recorder is not None:
            if self._uses_gpu():
                self._settle()
                self._older = _keys()
            recorder.begin_part([])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """What a fixture holds that several tests share counts for each of them."""
        shared = fixturedef.scope != "function"
        before = _keys() if shared and self._uses_gpu() else set()
        result = yield
        if shared and self.allocated():
            self._of_fixtures[fixturedef] = _keys() - before
        return result

    def _begin(self, item: pytest.Item) -> None:
        recorder = self._recorder
        if recorder is not None:
            before: list[Any] = []
            if self._uses_gpu():
                self._settle()
                cuda = sys.modules["torch"].cuda
                own = set().union(*(self._of_fixtures.get(one, ()) for one in _fixtures(item)))
                foreign = self._older - own
                self._foreign = [0] * cuda.device_count()
                for one in _alive():
                    if one.key in foreign:
                        self._foreign[one.device] += one.bytes
                        self._foreign_keys.add(one.key)
                    else:
                        before.append(one)
                for device in range(cuda.device_count()):
                    cuda.reset_peak_memory_stats(device)
            recorder.begin_part(before)
        self._reset, self._item = [], item

    def _read(self, what: str) -> None:
        item = self._item
        if item is None or not may_decide(str(item.path)):
            return
        where = self._recorder.assumptions.as_list()[-1]["location"]
        text = f"{os.path.relpath(where, self.config.rootpath) if where else '?'}: {what}"
        self._reads[text] = self._reads.get(text, 0) + 1

    def _note(self, item: pytest.Item) -> None:
        """Keep the test's figures for reports."""
        peaks = self.peaks()
        peak, reserved = max(peaks, default=(0, 0))
        if not peak:
            return
        item.user_properties += [("gpu_peak_bytes", peak), ("gpu_reserved_bytes", reserved)]

    def _judge(self, item: pytest.Item) -> None:
        """Fail the test, which passed, if it held too much or checked nothing that was computed."""
        peak = self.memory().peak
        marker = item.get_closest_marker("gpu_memory")
        if marker is not None:
            limit = parse_size(marker.args[0])
            if peak > limit:
                pytest.fail(
                    f"the test held {format_size(peak)} of GPU memory, above its limit of {format_size(limit)}: "
                    f"{format_size(peak - limit)} too much\n" + self._held(self.part()),
                    pytrace=False,
                )
        self._compare(item, peak)
        if self._reads:
            rule = self._rule
            mark = item.get_closest_marker("gpu_uncomputed")
            if mark is not None:
                rule = mark.args[0]
            text = f"{UNCOMPUTED}\n{self._said()}\n{_OUT_OF_IT}"
            if rule == "fail":
                pytest.fail(text, pytrace=False)
            if rule == "skip":
                pytest.skip(f"{UNCOMPUTED}: {next(iter(self._reads))}")

    def _compare(self, item: pytest.Item, peak: int) -> None:
        if not self._path or not peak:
            return
        if self._writes:
            part = self.part()
            self._places = part["places"][:MOST_PLACES] if part else []
            return
        more = self._baseline.growth(item.nodeid, peak, self._tolerance)
        if more:
            part = self.part()
            before = format_size(peak - more)
            changes = self._baseline.changes(item.nodeid, part["places"] if part else [])
            pytest.fail(
                f"the test held {format_size(peak)} of GPU memory, {format_size(more)} more than in the baseline ({before})\n"
                + "\n".join(f"  {line}" for line in changes),
                pytrace=False,
            )

    def _held(self, part: dict[str, Any] | None, name: str = "places") -> str:
        rows = part[name] if part else []
        lines = [
            f"  {format_size(row['bytes']):>10}  "
            + describe(row["stack"], row["category"], row.get("module", ""))
            for row in rows[:_SHOWN]
        ]
        rest = rows[_SHOWN:]
        if rest:
            bytes_left = sum(row["bytes"] for row in rest)
            lines.append(f"  {format_size(bytes_left):>10}  in {len(rest)} other places")
        return "\n".join(lines)

    def _said(self) -> str:
        lines = [
            f"  {text}" + (f" ({count} times)" if count > 1 else "")
            for text, count in self._reads.items()
        ]
        more = len(lines) - _SHOWN
        return "\n".join([*lines[:_SHOWN], *([f"  and {more} more"] if more > 0 else [])])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Look for what the test leaves behind, when its fixtures are gone."""
        result = yield
        marker = item.get_closest_marker("limit_gpu_leaks")
        if marker is None or self._failed or not self._uses_gpu():
            return result
        funcargs = getattr(item, "funcargs", None)
        if isinstance(funcargs, dict):
            funcargs.clear()
        gc.collect()
        sys.modules["torch"]._C._cuda_clearCublasWorkspaces()
        part = self.part(whole=False) if self.allocated() else None
        left = sum(row["bytes"] for row in part["left"]) if part else 0
        limit = parse_size(marker.args[0])
        if left > limit:
            pytest.fail(
                f"the test left {format_size(left)} of GPU memory behind, above its limit of {format_size(limit)}\n"
                + self._held(part, "left"),
                pytrace=False,
            )
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, Any, Any]:
        """Say beside a failure what the GPU held, and what nobody computed."""
        if call.excinfo is not None:
            # A test's own frames and its libraries', without those between PyTorch and the GPU.
            error = call.excinfo.value
            frames = without_own_frames(error.__traceback__)
            if frames is not None:
                error.__traceback__ = frames
                call.excinfo = pytest.ExceptionInfo.from_exception(error)
        report = yield
        if self._places and call.when == "call":
            report.gpu_places = self._places
        if call.excinfo is None or not report.failed or self._recorder is None:
            return report
        torch = sys.modules["torch"]
        if call.excinfo.errisinstance(torch.OutOfMemoryError):
            with contextlib.suppress(ValueError, OSError):
                report.sections.append(("GPU memory", self._full()))
        if (
            self._reads
            and call.when == "call"
            and not call.excinfo.errisinstance(pytest.fail.Exception)
        ):
            report.sections.append(("GPU values", f"{UNCOMPUTED}\n{self._said()}\n{_OUT_OF_IT}"))
        return report

    def _full(self) -> str:
        part = self.part()
        if part is None:
            return ""
        oom = self._recorder.oom or {}
        where = [oom.get("phase", ""), oom.get("module", ""), _short(oom.get("location", ""))]
        asked = format_size(oom.get("requested_bytes", 0))
        free = format_size(oom.get("free_bytes", 0))
        return (
            f"out of memory in {', '.join(filter(None, where))}: {asked} more were asked for, and {free} are free\n"
            f"held then:\n{self._held(part)}" + self._of_others()
        )

    def _of_others(self) -> str:
        foreign = max(self._foreign, default=0)
        if not foreign:
            return ""
        return f"\n  {format_size(foreign):>10}  of other tests: what they left, and fixtures that this one does not use"

    # ---- the whole run ----

    def pytest_report_header(self) -> str:
        """Which GPU it is."""
        return f"oomph: {self.title}"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuse markers that make no sense before any test runs."""
        for item in items:
            for name in ("gpu_memory", "limit_gpu_leaks", "gpu_uncomputed"):
                for marker in item.iter_markers(name):
                    try:
                        _check(marker)
                    except ValueError as error:
                        self._refuse(f"{item.nodeid}: {error}", items)
                        return

    def _refuse(self, line: str, items: list[pytest.Item]) -> None:
        output = getattr(self.config, "workeroutput", None)
        if output is None:
            raise pytest.UsageError(line)
        # The process that started this one says it: xdist would not understand.
        output[_REFUSED] = line
        items.clear()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker may have refused to begin."""
        line = getattr(node, "workeroutput", {}).get(_REFUSED)
        if line is not None:
            pytest.exit(f"ERROR: {line}", returncode=pytest.ExitCode.USAGE_ERROR)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        """Workers have virtual GPUs of their own, and must not be recorded as programs of a test."""
        self._leave_alone(os.environ)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what reports say, from workers too."""
        properties = dict(report.user_properties)
        if report.when == "call" and "gpu_peak_bytes" in properties:
            places = getattr(report, "gpu_places", [])
            self._results[report.nodeid] = dict(properties, passed=report.passed, places=places)
        text = str(report.longrepr or "") + "".join(text for _, text in report.sections)
        if report.when == "call" and UNCOMPUTED in text:
            self._uncomputed[report.nodeid] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the baseline, in the process that has all reports."""
        if not self._writes or hasattr(session.config, "workerinput"):
            return
        if not self._path or session.config.option.collectonly:
            return
        if os.path.exists(self._path) and len(self._results) < session.testscollected:
            # Some tests were deselected: those in the file stay.
            with contextlib.suppress(ValueError):
                self._baseline.tests |= Baseline.read(self._path, self._baseline.gpu).tests
        for test, result in self._results.items():
            if result["passed"]:
                self._baseline.add(test, result["gpu_peak_bytes"], result["places"])
        self._baseline.write(self._path)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """List the largest tests."""
        out = terminalreporter
        largest = sorted(self._results.items(), key=lambda one: -one[1]["gpu_peak_bytes"])
        if not largest and not self._uncomputed:
            return
        out.section(f"GPU memory: {self.title}")
        if self._largest and largest:
            out.write_line("       peak    reserved  test")
            for test, result in largest[: self._largest]:
                peak, reserved = result["gpu_peak_bytes"], result["gpu_reserved_bytes"]
                out.write_line(f"{format_size(peak):>11} {format_size(reserved):>11}  {test}")
            if len(largest) > self._largest:
                out.write_line(f"and {len(largest) - self._largest} more tests that use the GPU")
        if self._uncomputed:
            out.write_line(
                f"{_tests(self._uncomputed)} checked values that the virtual GPU does not compute ({self._rule}: "
                "--oomph-uncomputed)"
            )
        for line in self._about_baseline():
            out.write_line(line)

    def _about_baseline(self) -> Iterator[str]:
        if not self._path:
            return
        if self._writes:
            yield f"baseline written: {self._path}, {_tests(self._baseline.tests)}"
            return
        tests = self._baseline.tests
        new = [test for test in self._results if test not in tests]
        if new:
            yield f"not in the baseline: {_tests(new)}, such as {new[0]} (--oomph-update-baseline adds them)"
        less = [
            test
            for test, result in self._results.items()
            if test in tests
            and result["gpu_peak_bytes"] < tests[test]["peak_bytes"] * (1 - self._tolerance)
        ]
        if less:
            yield f"less than in the baseline: {_tests(less)}, such as {less[0]} (--oomph-update-baseline keeps that)"

    def pytest_unconfigure(self) -> None:
        """Remove what the processes shared."""
        self._gpu.end()


_OUT_OF_IT = (
    "A virtual GPU has no values beyond --oomph-compute, nor those that kernels of extensions write (docs/testing.md). "
    'Allow more, compare smaller tensors, or mark the test @pytest.mark.gpu_uncomputed("skip") or ("ignore").'
)


def _statistics() -> list[dict[str, Any]]:
    """The allocator's statistics of each device. `memory_stats` flattens them, which takes longer than a small test."""
    cuda = sys.modules["torch"].cuda
    return [cuda.memory_stats_as_nested_dict(device) for device in range(cuda.device_count())]


def _alive() -> list[Any]:
    from oomph._recorder import history

    return history.alive()


def _keys() -> set[Any]:
    return {one.key for one in _alive()}


def _fixtures(item: pytest.Item) -> Iterator[Any]:
    """The definitions of the fixtures that a test uses."""
    request = getattr(item, "_request", None)
    if request is not None:
        yield from getattr(request, "_fixture_defs", {}).values()


def _tests(some: Sized) -> str:
    return f"{len(some)} test" + "s" * (len(some) != 1)


def _rule(rule: str | None, what: str) -> str:
    if rule not in RULES:
        raise ValueError(f"{what}: expected one of {', '.join(RULES)}, found {rule!r}")
    return rule


def _percent(text: str | None) -> float:
    try:
        value = float((text or "").strip().removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"--oomph-tolerance: expected percent, such as 1 or 2.5, found {text!r}")
    return value


def _check(marker: pytest.Mark) -> None:
    """Raise `ValueError` for a marker without its one argument, or with one that says nothing."""
    arguments = [*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())]
    text = f"@pytest.mark.{marker.name}({', '.join(arguments)})"
    example = '"skip"' if marker.name == "gpu_uncomputed" else '"10 GiB"'
    if len(marker.args) != 1 or marker.kwargs or not isinstance(marker.args[0], str):
        raise ValueError(f"{text}: expected one argument, such as {example}")
    if marker.name == "gpu_uncomputed":
        _rule(marker.args[0], text)
        return
    try:
        parse_size(marker.args[0])
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None


def _short(location: str) -> str:
    return os.path.relpath(location) if location else ""
