"""What finds no room on the GPU, in host memory."""

from __future__ import annotations

import torch

from oomph._virtual_gpu.library import is_loaded
from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job

_LIBRARY = "liboomph_net.so"


class Net(Lever):
    """The net of `oomph run --net`: memory that the GPU does not have comes from the host, at addresses that the GPU reads and writes.

    Needs: the net's library before Python starts, which `oomph run` sees to, and a GPU and driver that put host memory behind
    device addresses. Changes: where bytes lie. Results: exact.
    """

    name = "net"

    def __init__(self, host_bytes: int) -> None:
        """`host_bytes` are expected to lie on the host at the peak; more do if more are too much."""
        super().__init__()
        self.host_bytes = host_bytes

    def install(self, job: Job) -> None:
        """Look whether the library is there."""
        with open("/proc/self/maps") as maps:
            there = any(line.rstrip().endswith(_LIBRARY) for line in maps)
        if not there:
            raise self.refuse(
                "the net has to be there before Python starts",
                instead="start the script with oomph run --plan, or with oomph run --net",
            )

    def finish(self) -> None:
        """Whether there was a GPU to serve."""
        if torch.cuda.is_initialized():
            self.applied = 1
            if is_loaded():
                self.note = "the time of a step does not have what the net takes in it"
        else:
            self.note = "the script did not use CUDA"


LEVER = Net
