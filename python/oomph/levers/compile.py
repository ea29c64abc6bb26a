"""Models compiled by torch.compile."""

from __future__ import annotations

import torch

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job


class Compile(Lever):
    """`module.compile()` on each outermost model.

    Needs: a C compiler, and a GPU with Triton. Changes: operators are fused, which saves time and often
    intermediate results; the first call takes seconds to minutes. Results: to rounding. Only on request
    (`oomph fit --compile`): the effect depends on the model. Memory is not attributed to modules.
    """

    name = "compile"

    def __init__(self) -> None:
        """No parameters."""
        super().__init__()
        self.note = "no model was called"

    def install(self, job: Job) -> None:
        """Before the first call."""
        job.on_model.append(self._model)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        if not any(True for _ in root.parameters()):
            return  # a loss
        if root._compiled_call_impl is not None or hasattr(root, "_orig_mod"):
            self.add_note(f"{type(root).__name__} is compiled by the script itself")
            return
        root.compile()
        self.applied += 1
        if self.applied == 1:
            self.note = None


LEVER = Compile
