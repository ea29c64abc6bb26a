"""The shape of a lever."""

from __future__ import annotations

from typing import Any, ClassVar

from oomph.levers._shared.forward import Handle
from oomph.levers._shared.job import Job


class CannotApply(SystemExit):
    """The lever cannot be applied to this script; the message says why and the manual way.

    It ends the script: what it computed from here on would not be what was asked for. No
    `except Exception` of the script swallows it. `oomph run` prints it and exits with status 2.
    """

    last: ClassVar[CannotApply | None] = None
    """The newest: a process that Python itself runs does not tell how its script ended."""

    def __init__(self, message: str) -> None:
        """`message` without the lever's name is for `Lever.refuse`, which adds it."""
        super().__init__(message)
        self.oomph_refusal = message
        CannotApply.last = self


class Lever:
    """One change that saves memory.

    A subclass's docstring says what it needs, what it changes, whether results stay the same and
    its limits. Its parameters are keyword arguments, as in the plan file.
    """

    name: ClassVar[str]
    """As in the plan file."""
    order: ClassVar[int] = 50
    """Levers step in from the lowest to the highest, whatever the plan's order: the lower, the
    further outside. Micro-batching (10) decides whether a step is made at all, gradient scaling
    (20) what it gets, and the rest (50) how it is made."""

    def __init__(self) -> None:
        """Nothing is changed before `install`."""
        self.applied = 0
        """How often it took effect: blocks wrapped, batches split, …; 0 means that it was inert."""
        self.note: str | None = None
        """Why it was inert, or what the user should know."""
        self.left_alone: list[str] = []
        """Modules of the plan that it left as they are; by hand they must not be changed either."""
        self.handles: list[Handle] = []
        """What it put about the forward of modules."""

    def install(self, job: Job) -> None:
        """Change what the script will meet; `job` tells of models, optimizers and batches."""
        raise NotImplementedError

    def remove(self) -> None:
        """Leave the modules as they were; for levers that only step in around their forward."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def finish(self) -> None:
        """The script has ended: settle `applied` and `note`."""

    @classmethod
    def by_hand(cls, **parameters: Any) -> str:
        """The same change as lines of the user's own code, for these parameters of the plan file."""
        raise NotImplementedError

    def add_note(self, text: str) -> None:
        """One more thing that the user should know, once."""
        if self.note is None:
            self.note = text
        elif text not in self.note:
            self.note = f"{self.note}; {text}"

    def refuse(self, why: str, by_hand: str = "") -> CannotApply:
        """The error to raise when the lever cannot be applied. `by_hand` shows the manual way."""
        message = f"the lever {self.name} cannot be applied to this script: {why}"
        return CannotApply(f"{message}\nby hand:\n{by_hand}" if by_hand else message)
