"""Settings of PyTorch's caching allocator."""

from __future__ import annotations

import os

import torch

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job


class Allocator(Lever):
    """`PYTORCH_CUDA_ALLOC_CONF` with other settings.

    Needs: nothing. Changes: how the allocator splits and keeps segments, so that less memory is
    reserved for the same tensors. Results: exact.
    """

    name = "allocator"

    def __init__(self, conf: str) -> None:
        """`conf`: `key:value` pairs, separated by commas."""
        super().__init__()
        self.conf = conf

    def install(self, job: Job) -> None:
        """The environment was set before torch was imported (`prepare`)."""

    def finish(self) -> None:
        """Whether the allocator ran with it: it reads the environment at the first use of CUDA."""
        variables = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        if not any(self.conf in os.environ.get(variable, "") for variable in variables):
            self.note = "the script changed PYTORCH_CUDA_ALLOC_CONF itself"
        elif not torch.cuda.is_initialized():
            self.note = "the script did not use CUDA"
        else:
            self.applied = 1


LEVER = Allocator
