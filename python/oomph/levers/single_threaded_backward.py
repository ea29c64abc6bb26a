"""`torch.autograd.set_multithreading_enabled`."""

from __future__ import annotations

import torch

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Backward, Job


class SingleThreadedBackward(Lever):
    """The thread that calls `backward` runs the backward pass of a GPU, which autograd has a thread for.

    Needs: nothing. Changes: cuBLAS has a handle for each thread (64 MiB on an H200, outside the allocator), PyTorch a
    workspace for each handle and stream (32 MiB on Hopper), and cuDNN a handle; those of the other thread are never
    made. Results: bitwise the same, by the same kernels in the same order. With models on several GPUs of one process
    their backward passes no longer run side by side.
    """

    name = "single_threaded_backward"

    def __init__(self) -> None:
        """It has no parameters."""
        super().__init__()
        self.before = True

    def install(self, job: Job) -> None:
        """For this thread, and for each other that calls `backward`."""
        self.before = torch._C._is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)
        job.on_backward.append(self._backward)

    def _backward(self, backward: Backward) -> None:
        torch._C._set_multithreading_enabled(False)
        self.applied += any(tensor.is_cuda for tensor in backward.tensors)

    def remove(self) -> None:
        """As before, in this thread."""
        torch._C._set_multithreading_enabled(self.before)
        super().remove()

    def finish(self) -> None:
        """Say that no backward pass ran on a GPU."""
        if not self.applied:
            self.add_note("backward was not called for tensors on a GPU")


LEVER = SingleThreadedBackward
