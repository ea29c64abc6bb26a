"""A script that compiles, without torch.compile."""

from __future__ import annotations

import functools
from typing import Any

import torch

from oomph.levers._shared import compiled
from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job


class Uncompiled(Lever):
    """`torch.compiler.set_stance("force_eager")`.

    Needs: torch 2.6. Changes: what `torch.compile` returns, and modules that were compiled in place, call the code as it is written. The other levers
    take it apart as they do any model, and nothing takes time to be compiled; a step may take longer. Results: to rounding. Names of
    parameters stay those of the compiled model, so checkpoints of either load in the other.
    """

    name = "uncompiled"

    def __init__(self) -> None:
        """It has no parameters."""
        super().__init__()

    def install(self, job: Job) -> None:
        """Step in when the script asks for something compiled."""
        if not hasattr(torch.compiler, "set_stance"):
            raise self.refuse(f"torch {torch.__version__} has no torch.compiler.set_stance")
        original = torch.compile

        @functools.wraps(original)
        def compiles(*args: Any, **kwargs: Any) -> Any:
            torch.compiler.set_stance("force_eager")  # again: the script may set it, too
            self.applied += 1
            return original(*args, **kwargs)

        torch.compile = compiles
        compiled.never()

    def finish(self) -> None:
        """Inert if nothing was to be compiled."""
        if not self.applied:
            self.add_note("the script did not call torch.compile")


LEVER = Uncompiled
