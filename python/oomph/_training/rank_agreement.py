"""Lets ranks agree whether a step succeeded everywhere, before any rank waits for another.

Under DistributedDataParallel, collectives run inside backward: a rank that fails there leaves the
others waiting. So backward runs without them (`no_sync`), the ranks exchange their results
over their own process group on the CPU, and only then are gradients averaged, in place: from the
agreement to the end of the averaging nothing is allocated.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from oomph._older_python import zip
from oomph._training.errors import PeerFailed, Refused

FINE, FAILED, GONE = 0, 1, 2
"""The result of a rank's attempt; the worst counts for all."""


def check_parallelism(model: nn.Module, retry: bool) -> None:
    """Raise `Refused` for models whose collectives cannot be repeated."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    kinds = {type(module).__name__ for module in model.modules()}
    inside = [
        name
        for name in ("FSDPModule", "FullyShardedDataParallel", "DeepSpeedEngine", "PipelineStage")
        if any(name in (c.__name__ for c in type(m).__mro__) for m in model.modules())
    ]
    if any(
        type(p).__name__ == "DTensor" or hasattr(p, "_local_tensor") for p in model.parameters()
    ):
        inside.append("DTensor parameters")
    if inside and retry:
        raise Refused(
            f"a failed step cannot be retried with {' and '.join(inside)}: collectives run inside "
            "forward and backward, so a rank that runs out of memory leaves the others waiting in "
            "one, with parameters gathered and gradients partly reduced. What to do: find a "
            "micro-batch that fits before training (`oomph run --gpu NAME script.py`, or "
            "`oomph.find_batch_size` on one rank's share), then pass micro_batch=N, retry=False: "
            "batches are split and weighted as before, and an error ends the run."
        )
    if "SyncBatchNorm" in kinds and retry:
        raise Refused(
            "SyncBatchNorm exchanges statistics inside forward: a rank that runs out of memory "
            "leaves the others waiting. Use BatchNorm, GroupNorm or LayerNorm, or pass retry=False."
        )


class Ranks:
    """The agreement of one rank with the others; a single rank agrees at once."""

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], timeout: float
    ) -> None:
        """Collective: every rank makes its own at the same point. `timeout` in seconds."""
        self.model = model
        self._parameters = [p for p in parameters if p.requires_grad]
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._group: Any = None
        self.size = 1
        self._used = torch.zeros(0, dtype=torch.uint8)
        self._message = torch.zeros(2, dtype=torch.int64)
        if self._ddp is None:
            return
        if getattr(self._ddp, "_comm_hooks", None):
            raise Refused(
                "the model has a communication hook, which would be bypassed; remove it, or pass "
                "the model without DistributedDataParallel"
            )
        self.model = self._ddp.module
        owned = {id(p) for p in self._ddp.module.parameters()}
        self._parameters = [p for p in self._parameters if id(p) in owned]
        process_group = self._ddp.process_group
        self.size = dist.get_world_size(process_group)
        self._source = dist.get_process_group_ranks(process_group)[0]
        self._group = dist.new_group(
            dist.get_process_group_ranks(process_group),
            backend="gloo",
            timeout=datetime.timedelta(seconds=timeout),
        )
        # The communicator takes memory at its first use: here, not in the first step.
        dist.all_reduce(torch.zeros(1, device=self._parameters[0].device), group=process_group)

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self._ddp is None

    def without_collectives(self) -> AbstractContextManager[None]:
        """Run forward and backward of the model by itself in this."""
        return self._ddp.no_sync() if self._ddp is not None else contextlib.nullcontext()

    @torch.no_grad()
    def share_buffers(self) -> None:
        """Broadcast the first rank's buffers, as DistributedDataParallel does in forward."""
        if self._ddp is None or not self._ddp.broadcast_buffers:
            return
        for buffer in self._ddp.module.buffers():
            dist.broadcast(buffer, self._source, group=self._ddp.process_group)

    def agree(self, status: int, parts: int) -> tuple[int, int]:
        """The worst status and the most micro-batches of all ranks.

        Raises `PeerFailed` if one is gone.
        """
        if self._group is None:
            return status, parts
        self._message[0], self._message[1] = status, parts
        try:
            dist.all_reduce(self._message, op=dist.ReduceOp.MAX, group=self._group)
        except RuntimeError as error:  # its process has ended, or it does not answer
            raise PeerFailed(
                f"another rank is gone; this rank's state is as before the step ({error})"
            ) from error
        worst, most = self._message.tolist()
        if worst == GONE and status != GONE:
            raise PeerFailed(
                "another rank cannot fit its step even at its smallest; this rank's state is as "
                "before the step. See the other rank's error."
            )
        return worst, most

    def agree_on_total(self, weight: float) -> float:
        """The mean over ranks of `weight`."""
        if self._group is None:
            return weight
        total = torch.tensor([weight], dtype=torch.float64)
        dist.all_reduce(total, group=self._group)
        return float(total[0]) / self.size

    @torch.no_grad()
    def complete_gradients(self) -> None:
        """Allocate zeros where only another rank may have a gradient, while errors are still allowed."""
        if self._ddp is None:
            return
        self._used = torch.tensor([p.grad is not None for p in self._parameters]).to(torch.uint8)
        for p in self._parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Average gradients over ranks, in place. Parameters that no rank used have none afterwards."""
        if self._ddp is None:
            return
        dist.all_reduce(self._used, op=dist.ReduceOp.MAX, group=self._group)
        gradients = []
        for p, used in zip(self._parameters, self._used.tolist(), strict=True):
            if not used:
                p.grad = None
            elif p.grad is not None:
                gradients.append(p.grad)
        torch._foreach_mul_(gradients, 1.0 / self.size)
        group = self._ddp.process_group
        work = [dist.all_reduce(g, group=group, async_op=True) for g in gradients]
        for item in work:
            item.wait()

    def leave(self) -> None:
        """Tell the others, at their next agreement, that this rank cannot continue."""
        if self._group is not None:
            # They may have come to their end already.
            with contextlib.suppress(PeerFailed):
                self.agree(GONE, 0)
