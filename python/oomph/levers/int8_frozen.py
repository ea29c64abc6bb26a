"""A job that trains keeps the weights of linear layers that are not trained in 8 bits."""

from __future__ import annotations

import torch
from torch import nn

from oomph.levers._shared.job import Job
from oomph.levers.int8_linear import LEAST, Int8Linear


class Int8Frozen(Int8Linear):
    """Keeps frozen weights of linear layers in 8 bits, with a scale for each output.

    Needs: `nn.Linear` (or GPT-2's `Conv1D`) layers of 256 inputs or more whose weights are not trained: a base under adapters,
    a teacher. Changes: their weights take a byte each; both passes make them wide for the product, 64 MiB at a time. Results: other
    numerics (weights of a normal distribution change by 0.9 % in the L2 norm with 4,096 inputs; `oomph drift` measures results).

    A model of which nothing is trained is taken at its first call: it may get its adapters after it has moved to the GPU.
    Skipped: weights that are used elsewhere, too. Refused by name: weights that are trained later.
    What reads such a parameter itself finds NaN, and what writes to it fails.
    """

    name = "int8_frozen"
    frozen = True

    def __init__(self) -> None:
        """Has no parameters."""
        super().__init__()
        self.note = f"no frozen linear layers of {LEAST} inputs or more were found"

    def install(self, job: Job) -> None:
        """Where a model that is trained in part moves to the GPU, or a model is first called."""
        job.on_move.append(self._move)
        job.on_model.append(lambda root, named: self._quantize(root))

    def _move(self, root: nn.Module, device: torch.device) -> None:
        if any(p.requires_grad for p in root.parameters()):
            self._quantize(root)


LEVER = Int8Frozen
