"""The shape of a lever."""

from __future__ import annotations

from typing import ClassVar

from oomph.levers.job import Job


class CannotApply(RuntimeError):
    """The lever cannot be applied to this script; the message says why and the manual way."""


class Lever:
    """One change that saves memory.

    A subclass's docstring says what it needs, what it changes, whether results stay the same and
    how to write it by hand. Its parameters are keyword arguments, as in the plan file.
    """

    name: ClassVar[str]
    """As in the plan file."""

    def __init__(self) -> None:
        """Nothing is changed before `install`."""
        self.applied = 0
        """How often it took effect: blocks wrapped, batches split, …; 0 means that it was inert."""
        self.note: str | None = None
        """Why it was inert, or what the user should know."""

    def install(self, job: Job) -> None:
        """Change what the script will meet; `job` tells of models, optimizers and batches."""
        raise NotImplementedError
