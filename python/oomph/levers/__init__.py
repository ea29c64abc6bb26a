"""Applies the levers of a plan to an unmodified script.

One file per lever, named as in `oomph-plan`, with one subclass of `Lever`. Nothing here imports
torch before the script does: a lever's module is imported after torch.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import TYPE_CHECKING, Any

from oomph._says import say

if TYPE_CHECKING:
    from oomph.levers._shared.base import CannotApply, Lever


def prepare(specifications: list[dict[str, Any]]) -> None:
    """Set the environment for the levers that need it before torch is imported."""
    if specifications:
        from oomph import _oomph

        levers = json.dumps(specifications)
        os.environ.update(_oomph.lever_environment(levers, dict(os.environ)))


def are_for_jax(specifications: list[dict[str, Any]]) -> bool:
    """Whether all is done by the environment that `prepare` has set for JAX."""
    return bool(specifications) and all(lever["name"] == "jax_settings" for lever in specifications)


_in_force = False


def in_force() -> bool:
    """Whether the levers of a plan are installed in this process."""
    return _in_force


class Levers:
    """All levers of a plan."""

    def __init__(self, specifications: list[dict[str, Any]]) -> None:
        """`specifications` is `[{"name": …, parameters…}]`, as in the plan file."""
        from oomph.levers._shared.job import Job

        self.job = Job()
        self.levers: list[Lever] = []
        self._specifications = specifications
        self._refusal: CannotApply | None = None
        self._installed = False

    def install(self) -> None:
        """Torch has just been imported; the script goes on after this."""
        from oomph.levers._shared.base import CannotApply

        try:
            for specification in self._specifications:
                parameters = dict(specification)
                name = parameters.pop("name")
                module = importlib.import_module(f"oomph.levers.{name}")
                self.levers.append(module.LEVER(**parameters))
            self.job.levers = self.levers
            for lever in sorted(self.levers, key=lambda lever: lever.order):
                lever.install(self.job)
        except CannotApply as refusal:
            self._refusal = refusal
            raise
        global _in_force
        _in_force = self._installed = True
        if self.levers:
            if any(hasattr(lever, "places") for lever in self.levers):
                self.job.on_backward.append(self._first_backward)
            self.job.watch()

    def _first_backward(self, backward: Any) -> None:
        """All models of a step have been called: say which modules of the plan none of them has, while little is lost."""
        self.job.on_backward.remove(self._first_backward)
        for lever in self.levers:
            places = getattr(lever, "places", None)
            if places is not None and (problem := places.problem()):
                say(f"{lever.name}: {problem}")

    @property
    def refusal(self) -> CannotApply | None:
        """The newest refusal of a lever, if there was one; it has ended the script."""
        found = [lever.refusal for lever in self.levers if lever.refusal is not None]
        return self._refusal or (found[-1] if found else None)

    def report(self) -> list[dict[str, Any]]:
        """What each lever did: `{"name", "applied", "note"}`; `applied` 0 means that it was inert.
        `left` are modules of the plan that it left alone, `switch` the framework's own switch that does the
        same, if there are any. Nothing if one of them refused before the script began."""
        if not self._installed:
            return []
        for lever in self.levers:
            lever.finish()
        return [
            dict(name=lever.name, applied=lever.applied, note=lever.note)
            | (dict(left=lever.left_alone) if lever.left_alone else {})
            | (dict(switch=lever.switch) if lever.switch and lever.applied else {})
            for lever in self.levers
        ]
