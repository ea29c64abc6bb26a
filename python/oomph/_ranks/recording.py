"""Ranks that launchers start: each is recorded in a directory of its own.

`oomph run -- torchrun … train.py` starts the launcher as it is; `_hook/sitecustomize.py` comes into
every Python process below it and calls `begin`, which records those that are ranks. A rank that
fails says so on the run's board (`crates/oomph-vgpu/src/board.rs`), so that the others, who may wait
for it in a collective, end with its name.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import warnings
from typing import Any

from oomph import _protocol, launch, levers
from oomph._protocol import Refused, RunDirectory
from oomph._ranks import fork_server
from oomph._virtual_gpu.library import library

_LOOKS = 20.0
"""Seconds that the watchdog is given to see that collectives are done; it looks every tenth of one."""

_recorded = False


def is_recorded() -> bool:
    """Whether this process is a rank that is being recorded."""
    return _recorded


def _name() -> str | None:
    """What this process is called as a rank, or None if it is none.

    Launchers (torchrun, accelerate, Lightning) tell ranks by their environment; scripts that start
    their ranks themselves use `multiprocessing`, and are known by their first use of the GPU.
    """
    arguments = sys.orig_argv
    if any("compile_worker" in word for word in arguments):
        return None
    if "--multiprocessing-fork" in arguments:
        return f"process-{os.getpid()}"
    for variable, kind in (("RANK", "rank"), ("LOCAL_RANK", "local-rank")):
        value = os.environ.get(variable, "")
        if value.isdigit():
            name = f"{kind}-{value}"
            return None if os.environ.get(_protocol.RANK) in (value, name) else name
    return None


def begin() -> None:
    """Record this process, if it is a rank; if it may be a launcher, let its ranks be forked."""
    global _recorded
    known = os.environ.pop(_protocol.LAUNCHER, None)
    name = _name()
    if name is None and _protocol.RANK in os.environ:
        return  # a rank's own helper
    run = RunDirectory.of_settings(os.environ[_protocol.RANKS])
    try:
        settings = run.settings()
    except (OSError, ValueError):
        return  # the run that this process was started by is over
    except Refused as refusal:
        if name is not None:
            os._exit(run.refuse(refusal))
        return  # its ranks will refuse
    if name is None:
        levers.prepare(settings.levers)
        if settings.fork:
            launcher = fork_server.Launcher(run)
            launcher.install()
            if known:
                launcher.expect()
        return
    if settings.locked:
        threading.Thread(target=_outlived, args=(run,), daemon=True).start()
    os.environ[_protocol.RANK] = name
    # `python -m oomph.launch script.py` as a rank: runpy finds it imported, which is as it should be.
    warnings.filterwarnings("ignore", "'oomph.launch' found in sys.modules", RuntimeWarning)
    directory = run.rank(name)
    directory.make()
    session = launch.Session(settings, directory)
    try:
        session.begin()
    except Refused as refusal:
        os._exit(directory.refuse(refusal))
    _recorded = True
    _End(session)


def _outlived(run: RunDirectory) -> None:
    """End this process when the run is gone, by whatever: its command holds the lock until then.

    Its launcher may live on, and may have started this rank from a thread that has ended:
    `PR_SET_PDEATHSIG` would be wrong for both.
    """
    if run.is_released(wait=True):
        os.kill(os.getpid(), signal.SIGKILL)


class _End:
    """Sees how a script ends that Python itself runs."""

    def __init__(self, session: launch.Session) -> None:
        self._session = session
        self._outcome: dict[str, Any] = dict(kind="finished", status=0)
        self._process = os.getpid()
        excepthook, exit_ = sys.excepthook, sys.exit

        def failed(kind, error, traceback):
            self._outcome = session.failed_with(error)
            if issubclass(kind, KeyboardInterrupt):
                self._outcome = dict(kind="interrupted", status=130)
            excepthook(kind, error, traceback)

        @functools.wraps(exit_)
        def leaving(status=None):
            self._outcome = launch.outcome_of(SystemExit(status))
            exit_(status)

        sys.excepthook, sys.exit = failed, leaving
        atexit.register(self._finish)
        if threading.current_thread() is threading.main_thread():
            self._watch_termination()

    def _finish(self) -> None:
        if os.getpid() == self._process:
            # Python itself runs the script, and does not tell of a `SystemExit`.
            applied = self._session.recorder.levers if self._session.recorder else None
            if applied is not None and applied.refusal is not None:
                self._outcome = launch.outcome_of(applied.refusal)
            self._session.finish(self._outcome)

    def _watch_termination(self) -> None:
        """Write the record when a launcher ends this rank because another one failed.

        By a thread: the main thread may be inside of a collective, waiting for that other rank.
        """
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)

        def nothing(number, frame):
            pass

        def watch():
            while os.read(reader, 1) != bytes([signal.SIGTERM]):
                pass
            if signal.getsignal(signal.SIGTERM) is nothing and os.getpid() == self._process:
                self._session.finish(dict(kind="terminated", status=128 + signal.SIGTERM))
                self._session._hard_exit(128 + signal.SIGTERM)

        signal.signal(signal.SIGTERM, nothing)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=watch, name="oomph-termination", daemon=True).start()
        # A forked child has no such thread.
        os.register_at_fork(after_in_child=_default_termination)


def _default_termination() -> None:
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


def watch_ranks(recorder: Any) -> None:
    """Torch is imported: learn which rank this is, and say on the board how it ends."""
    gpu = library() if recorder.virtual else None
    if gpu is not None:
        gpu.oomph_vgpu_join(int(os.environ.get("RANK") or -1))
    from torch.distributed import distributed_c10d as c10d

    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        recorder.rank = dict(
            rank=c10d.get_rank(),
            world_size=c10d.get_world_size(),
            local_rank=int(os.environ.get("LOCAL_RANK") or -1),
        )
        if gpu is not None:
            gpu.oomph_vgpu_join(c10d.get_rank())

    import torch

    for module in (c10d, torch.distributed):
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
    if gpu is None:
        return
    _settle_first_buckets(recorder, gpu)

    def leave(outcome: dict[str, Any]) -> None:
        failed = outcome["status"] != 0
        how = outcome.get("message") or f"exit status {outcome['status']}"
        if recorder.oom is not None and failed:
            how = f"out of memory in step {recorder.oom['step'] + 1}, {recorder.oom['phase']}"
        # The end may come before the second forward pass does: whoever ends a process group waits for
        # the watchdog.
        gpu.oomph_vgpu_hold(0)
        gpu.oomph_vgpu_leave(int(failed), how.split("\n")[0].encode()[:500])

    # Whoever waits for this rank need not wait for its record.
    recorder.before_record.append(leave)


def _watchdog_has_seen(group: Any) -> None:
    """Wait until NCCL's watchdog has let go of everything that is done."""
    # Not for ever: another rank may be gone. Other backends than NCCL's have no watchdog.
    launch.at_most(_LOOKS, group._wait_for_pending_works, RuntimeError)


def _settle_first_buckets(recorder: Any, gpu: Any) -> None:
    """Decide a race that DistributedDataParallel has with PyTorch's watchdog of collectives.

    Before its second forward pass it makes new buckets for gradients; the old ones live on until the
    watchdog, which looks every tenth of a second, has seen that their collectives are done. On real
    GPUs that was mostly so where gradients lie beside the buckets, and mostly not where they are
    views of them (`bench/distributed`).
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel._pre_forward

    @functools.wraps(original)
    def pre_forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or ddp.device_type != "cuda":
            return original(ddp, *args, **kwargs)
        passes = ddp.__dict__["_oomph_passes"] = ddp.__dict__.get("_oomph_passes", 0) + 1
        views = ddp.gradient_as_bucket_view
        if passes == 1 and views:
            gpu.oomph_vgpu_hold(1)
        if passes == 2 and not views:
            _watchdog_has_seen(ddp.process_group)
        try:
            return original(ddp, *args, **kwargs)
        finally:
            if passes == 2:
                gpu.oomph_vgpu_hold(0)
                what = "still held in" if views else "given back before"
                recorder.assumptions.add(
                    "timing",
                    f"the first gradient buckets of DistributedDataParallel are taken to be {what} "
                    "step 2; on a real GPU a race of PyTorch's threads decides",
                    "",
                )

    DistributedDataParallel._pre_forward = pre_forward
