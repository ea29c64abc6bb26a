"""`torch.backends.cudnn.benchmark`."""

from __future__ import annotations

import torch

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job
from oomph.levers._shared.settings import pin


class CudnnBenchmark(Lever):
    """Whether cuDNN tries its kernels for each new shape of a convolution, or takes the first one.

    Needs: convolutions on a CUDA GPU. Changes: off saves the workspaces of trial kernels (which may
    be gigabytes); on may be faster once each shape has been tried. Results: to rounding, since other
    kernels sum in another order.
    """

    name = "cudnn_benchmark"

    def __init__(self, enabled: bool) -> None:
        """`enabled`: whether cuDNN tries kernels."""
        super().__init__()
        self.enabled = enabled
        self.overruled = False

    def install(self, job: Job) -> None:
        """Set it, and ignore changes by the script."""
        self.before = torch.backends.cudnn.benchmark
        pin(
            "_set_cudnn_benchmark", self.enabled, torch.backends.cudnn, "benchmark", "_get_cudnn_benchmark",
            self._overrule,
        )  # fmt: skip

    def _overrule(self) -> None:
        self.overruled = True

    def finish(self) -> None:
        """Inert if it was already set."""
        self.applied = int(self.overruled or self.before != self.enabled)
        if not self.applied:
            self.note = f"cuDNN benchmark was {'on' if self.enabled else 'off'} already"


LEVER = CudnnBenchmark
