"""What the recorder sees and does of a rank's process groups (`torch.distributed`).

A rank that fails says so on the run's board (`crates/oomph-vgpu/src/board.rs`), so that the others,
who may wait for it in a collective, end with its name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from oomph._virtual_gpu.library import library


def watch_ranks(recorder: Any) -> None:
    """Torch is imported: find out which rank this is, and write to the board how it ends."""
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

    def leave(outcome: dict[str, Any]) -> None:
        failed = outcome["status"] != 0
        how = outcome.get("message") or f"exit status {outcome['status']}"
        if recorder.oom is not None and failed:
            how = f"out of memory in step {recorder.oom['step'] + 1}, {recorder.oom['phase']}"
        gpu.oomph_vgpu_leave(int(failed), how.split("\n")[0].encode()[:500])

    # Ranks that wait for this one need not wait for its record.
    recorder.before_record.append(leave)


def settle_first_buckets(recorder: Any) -> None:
    """Decide a race that DistributedDataParallel has with PyTorch's watchdog of collectives.

    Before the forward pass that follows the first averaged gradients it makes new buckets for them; the old ones stay alive
    until the watchdog, which looks every tenth of a second, has seen that their collectives are done. On real
    GPUs the watchdog was mostly in time if gradients are separate from the buckets, and mostly late if they
    are views of them (`bench/distributed`).
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    gpu = library()
    original = DistributedDataParallel._pre_forward

    @functools.wraps(original)
    def pre_forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
        state = ddp.__dict__
        fixed = ddp.find_unused_parameters and not ddp.static_graph
        if fixed or not torch.is_grad_enabled() or ddp.device_type != "cuda":
            return original(ddp, *args, **kwargs)
        views = ddp.gradient_as_bucket_view
        if not state.setdefault("_oomph_averaged", False):
            if ddp.require_backward_grad_sync:
                state["_oomph_averaged"] = True
                gpu.oomph_vgpu_hold(1)
            return original(ddp, *args, **kwargs)
        if ddp._has_rebuilt_buckets:
            return original(ddp, *args, **kwargs)
        if not views:
            gpu.oomph_vgpu_look()
        result = original(ddp, *args, **kwargs)
        if not ddp._has_rebuilt_buckets:
            return result
        gpu.oomph_vgpu_look()
        size = sum(p.numel() * p.element_size() for p in ddp.parameters() if p.requires_grad)
        what, other = ("still held in", "less") if views else ("given back before", "more")
        recorder.assumptions.add(
            "timing",
            f"the first gradient buckets of DistributedDataParallel are assumed to be {what} step 2; on a real GPU this "
            f"depends on a race between PyTorch's threads: up to {size / 2**20:.1f} MiB {other}",
            "",
        )
        return result

    DistributedDataParallel._pre_forward = pre_forward
    # The script may end before that pass, and destroying a process group waits for the watchdog.
    recorder.before_record.append(lambda outcome: gpu.oomph_vgpu_hold(0))


def _at_most(seconds: float, wait: Callable[[], Any], ignored: type[Exception]) -> None:
    """Call `wait`, and continue when it is done, raises an `ignored` error, or times out."""

    def run() -> None:
        with contextlib.suppress(ignored):
            wait()

    thread = threading.Thread(target=run, name="oomph-wait", daemon=True)
    thread.start()
    thread.join(seconds)


def end_process_groups() -> None:
    """Destroy the process groups that the script leaves, within a few seconds.

    Models often keep them alive until after Python's finalization. Then NCCL's watchdog, a
    thread that checks collectives every tenth of a second, may call CUDA during the teardown of the process
    and crash the rank. On busy processors the teardown
    takes long enough for that.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return

    # It would wait for a collective that other ranks never joined.
    _at_most(5.0, distributed.destroy_process_group, Exception)
