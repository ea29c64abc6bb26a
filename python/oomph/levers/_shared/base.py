"""The shape of a lever."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from oomph import _oomph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomph.levers._shared.forward import ForwardHandle
    from oomph.levers._shared.job import Job


class CannotApply(SystemExit):
    """The lever cannot be applied to this script; the message says why.

    It ends the script: what it computed from here on would not be what was asked for. No
    `except Exception` of the script swallows it. `oomph run` prints it, with the manual way, and exits
    with status 2.
    """

    def __init__(self, lever: str, why: str, blame: dict[str, Any]) -> None:
        """`blame` as in `record.json`."""
        self.message = f"the lever {lever} cannot be applied to this script: {why}"
        super().__init__(self.message)
        self.lever = lever
        self.modules: list[str] = blame["modules"]
        self.oomph_blame = blame


def failure(lever: str, why: str, *modules: str) -> RuntimeError:
    """The error to raise when a lever fails in the midst of what the script does."""
    error = RuntimeError(f"{why} (oomph {lever})")
    error.oomph_blame = _blame(lever, why, modules)  # type: ignore[attr-defined]
    return error


def _blame(lever: str, why: str, modules: Sequence[str]) -> dict[str, Any]:
    return dict(lever=lever, modules=list(modules), why=why)


@functools.cache
def _order() -> dict[str, int]:
    return {name: place for place, name in enumerate(_oomph.lever_order())}


class Lever:
    """One change that saves memory.

    A subclass's docstring says what it needs, what it changes, whether results stay the same and
    its limits. Its parameters are keyword arguments, as in the plan file. What else there is to say of
    a lever, its file in `crates/oomph-plan/src/levers/` says.
    """

    name: ClassVar[str]
    """As in the plan file."""
    cuts_batches: ClassVar[bool] = False
    """Whether the script gets each training batch in parts; `batch` is then the one in progress."""
    share: Any = None
    """Where ranks share each batch: what this one has of the batch in progress."""

    def __init__(self) -> None:
        """Changes nothing before `install`."""
        self.applied = 0
        """How often it took effect: blocks wrapped, batches split, …; 0 means that it was inert."""
        self.note: str | None = None
        """Why it was inert, or what the user should know."""
        self.switch: str | None = None
        """The framework's own switch that does the same, if it has one: the lever uses it, or could be replaced by it."""
        self.left_alone: list[str] = []
        """Modules of the plan that it skipped; they must not be changed by hand either."""
        self.handles: list[ForwardHandle] = []
        """Its wrappers around modules' forward."""
        self.refusal: CannotApply | None = None
        """The error that it last made of being refused."""

    @property
    def order(self) -> int:
        """Levers step in from the lowest to the highest, whatever the plan's order: the lower, the
        further outside."""
        return _order()[self.name]

    def install(self, job: Job) -> None:
        """Install the change; `job` reports models, optimizers and batches."""
        raise NotImplementedError

    def remove(self) -> None:
        """Restore the modules; for levers that only wrap their forward."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def finish(self) -> None:
        """The script has ended: set `applied` and `note`."""

    def add_note(self, text: str) -> None:
        """Add a note for the user, once."""
        if self.note is None:
            self.note = text
        elif text not in self.note:
            self.note = f"{self.note}; {text}"

    def refuse(
        self,
        why: str,
        *,
        manually: bool = False,
        instead: str = "",
        modules: Sequence[str] = (),
        beside: str = "",
    ) -> CannotApply:
        """The error to raise when the lever cannot be applied.

        `modules` of the plan are those that it is about, if not all. `manually` tells that a user can
        make the same change by hand, which `oomph` then shows; `instead` is what else to do. `beside` is the name of another lever
        without which it could be applied.
        """
        blame = _blame(self.name, why, modules) | dict(
            manually=manually, instead=instead or None, beside=beside or None
        )
        self.refusal = CannotApply(self.name, why, blame)
        return self.refusal
