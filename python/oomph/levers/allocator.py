"""Settings of PyTorch's caching allocator."""

from __future__ import annotations

import os

from oomph.levers.base import Lever
from oomph.levers.job import Job


class Allocator(Lever):
    """`PYTORCH_CUDA_ALLOC_CONF` with other settings.

    Needs: nothing. Changes: how the allocator cuts and keeps segments, so that less memory is
    reserved for the same tensors. Results: exact. By hand: set the environment variable before
    torch is imported.
    """

    name = "allocator"

    def __init__(self, conf: str) -> None:
        """`conf`: `key:value` pairs, separated by commas."""
        super().__init__()
        self.conf = conf

    def install(self, job: Job) -> None:
        """The environment was set before torch was imported (`prepare`); check that it stands."""
        if self.conf in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
            self.applied = 1
        else:
            self.note = "the script changed PYTORCH_CUDA_ALLOC_CONF before it imported torch"


LEVER = Allocator
