"""TF32 in matrix products and convolutions."""

from __future__ import annotations

import torch

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job
from oomph.levers._shared.settings import pin


class Tf32(Lever):
    """Whether fp32 products and convolutions may run on TF32 tensor cores.

    Needs: an Ampere GPU or later, fp32 tensors. Changes: several times faster products; memory
    only through other work spaces. Results: inputs are rounded to 10 bits of mantissa.
    """

    name = "tf32"

    def __init__(self, enabled: bool) -> None:
        """`enabled`: whether it is allowed."""
        super().__init__()
        self.enabled = enabled
        self.overruled = False

    def install(self, job: Job) -> None:
        """Set both, and ignore changes by the script."""
        before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
        self.differs = before != (self.enabled, self.enabled)
        self._watch_precisions()
        pin("_set_cublas_allow_tf32", self.enabled, changed=self._overrule)
        pin(
            "_set_cudnn_allow_tf32", self.enabled, torch.backends.cudnn, "allow_tf32", "_get_cudnn_allow_tf32",
            self._overrule,
        )  # fmt: skip
        pin(
            "_set_float32_matmul_precision",
            "high" if self.enabled else "highest",
            changed=self._overrule,
        )

    def _watch_precisions(self) -> None:
        """`fp32_precision`, the settings of PyTorch 2.9 and later (Hugging Face's Trainer makes them)."""
        original = getattr(torch._C, "_set_fp32_precision_setter", None)
        if original is None:
            return
        wanted = "tf32" if self.enabled else "ieee"

        def keep(backend: str, op: str, precision: str) -> None:
            original(backend, op, precision)
            if backend in ("generic", "cuda"):
                # Those that are not set follow the more general ones.
                for part in ("matmul", "conv", "rnn"):
                    original("cuda", part, wanted)
                if (precision == "tf32") != self.enabled:
                    self._overrule()

        torch._C._set_fp32_precision_setter = keep

    def _overrule(self) -> None:
        self.overruled = True

    def finish(self) -> None:
        """Inert on GPUs without it, and if it was already set."""
        capable = torch.cuda.is_initialized() and torch.cuda.get_device_capability() >= (8, 0)
        if torch.cuda.is_initialized() and not capable:
            self.note = "the GPU does not support TF32"
        elif not (self.overruled or self.differs):
            self.note = f"TF32 was {'on' if self.enabled else 'off'} already"
        else:
            self.applied = 1


LEVER = Tf32
