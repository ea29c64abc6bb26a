"""Keeps whatever autograd saves in pinned host memory."""

from __future__ import annotations

from typing import Any

import torch

from oomph.levers._shared import host_copies
from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job
from oomph.levers._shared.recomputation import without_graph


class SaveOnCpu(Lever):
    """Copies what autograd saves for the backward pass to pinned host memory, whichever code saves it.

    Like `torch.autograd.graph.save_on_cpu` around the whole script, with copies on streams of their own, fetched
    ahead. Needs: a CUDA GPU and as much host memory, up to twice (PyTorch rounds pinned memory to powers of
    two). Changes: losses, functional code and gradients of gradients save theirs there, too. Results: bitwise the
    same. It costs no time as long as the copies take no longer than the step; `most` leaves the rest on the GPU.

    Parameters, buffers and small tensors stay. A storage that is saved several times, or as several
    views, is copied once. What is compiled saves through it, too. `torch.func` is refused by PyTorch itself.
    """

    name = "save_on_cpu"

    def __init__(self, in_flight: int = host_copies.IN_FLIGHT, most: int | None = None) -> None:
        """`in_flight`: bytes that may be on their way to the host, and back, while the GPU still has them. `most`: bytes that may
        be on the host at a time; what is saved when there are as many stays on the GPU. None: all go."""
        super().__init__()
        for name, size in (("in_flight", in_flight), ("most", most)):
            if size is not None and size < 0:
                raise self.refuse(f"{name} is {size}; it is a number of bytes")
        self.copies = host_copies.HostCopies(self.name, in_flight, most)
        self.hooks: Any = None

    def install(self, job: Job) -> None:
        """From now on, in this thread and in backward passes that it begins."""
        job.on_enter.append(self._enter)
        job.on_leave.append(self._leave)
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self.copies.unpack)
        self.hooks.__enter__()

    def remove(self) -> None:
        """Save as before."""
        if self.hooks is not None:
            self.hooks.__exit__()
            self.hooks = None
        super().remove()

    def _enter(self, root: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        # What another model saved still waits for the same backward pass.
        self.copies.keep(root, others=True)

    def _leave(self, root: torch.nn.Module, output: Any) -> None:
        # The next operation (a loss) is often the peak.
        self.copies.settle()

    def _pack(self, tensor: torch.Tensor) -> Any:
        if not self.copies.leaves(tensor):
            return without_graph(tensor)
        packed = self.copies.pack(tensor)
        self.applied += isinstance(packed, host_copies.Saved)
        return packed

    def finish(self) -> None:
        """Say that nothing was saved."""
        if not self.applied:
            self.add_note(f"nothing of {host_copies.SMALLEST >> 10} KiB or more was saved on a GPU")


LEVER = SaveOnCpu
