"""Plans that a script applies to itself, without `oomph run`: `oomph.apply`, or `OOMPH_PLAN` in the environment."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import sys
from typing import Any

from oomph import _oomph, levers
from oomph._import_hooks import before_import, on_import
from oomph._older_python import orig_argv
from oomph._protocol import PLAN
from oomph._says import say

_LAUNCHERS = ("torchrun", "torch.distributed", "accelerate", "deepspeed", "mpirun", "horovodrun")
"""They import torch, and only start the processes that train."""

_applied: dict[str, Any] = {}
"""The path of the plan of this process, and its levers."""


class NotApplied(RuntimeError):
    """A plan cannot be applied; the message says why, and what to do."""


def apply(plan: str | os.PathLike[str] = "oomph-plan.toml") -> None:
    """Apply a plan of `oomph fit` to the rest of this script.

    Call it at the top of the script, before a model or an optimizer is made. Every rank of a job calls it.
    One line on stderr says what it applies; when the script ends, another names each lever that had
    no effect. Where `oomph run --plan` or `OOMPH_PLAN` has applied the same plan, nothing happens.

    Parameters
    ----------
    plan : the path of the plan.

    Raises
    ------
    NotApplied : the file is no plan, another plan is in force, or a model or an optimizer exists already.
    CannotApply : a lever cannot be applied to this script. It is a `SystemExit`, so that the script ends.
    """
    path = os.path.abspath(plan)
    if _is_in_force(path):
        return
    if "torch" in sys.modules:
        _check_that_nothing_exists()
    _Plan(path).install()


def apply_at_import() -> None:
    """Apply the plan of `OOMPH_PLAN` when torch is imported; what hinders it ends the process with its reason."""
    if _is_launcher():
        return
    path = os.path.abspath(os.environ[PLAN])

    plans: list[_Plan] = []

    def read() -> None:
        try:
            plans.append(_Plan(path))
        except NotApplied as error:
            raise SystemExit(f"{PLAN}: {error}") from None

    before_import("torch", read)
    before_import("jax", lambda: None if plans else read())
    on_import("torch", lambda module: plans[0].install())


class _Plan:
    def __init__(self, path: str) -> None:
        """Read it, and set the environment as it needs. Raises `NotApplied`."""
        self.path = path
        script = sys.argv[0] if sys.argv and sys.argv[0].endswith(".py") else ""
        try:
            with open(path) as file:
                text = file.read()
            self._levers, self._what, self._warnings = _oomph.read_plan(text, script, sys.argv[1:])
        except (OSError, UnicodeDecodeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise NotApplied(f"cannot apply {path}: {reason}") from None
        levers.prepare(json.loads(self._levers))

    def install(self) -> None:
        """Apply the levers; torch is there, or is imported now. Those of JAX were all in the environment."""
        if levers.are_for_jax(json.loads(self._levers)):
            say(f"{os.path.basename(self.path)}: {self._what}")
            return
        importlib.import_module("torch")
        if _applied:
            return  # the import has applied the plan of the environment
        applied = levers.Levers(json.loads(self._levers))
        applied.install()
        _applied.update(path=self.path, levers=applied)
        if not _is_first_rank():
            return
        say(f"{os.path.basename(self.path)}: {self._what}")
        for warning in self._warnings:
            say(warning)
        atexit.register(_say_what_was_inert, applied, os.getpid())


def _is_in_force(path: str) -> bool:
    """Whether this process has this plan already. Raise `NotApplied` if it has another."""
    if _applied and _applied["path"] != path:
        raise NotApplied(
            f"cannot apply {path}: this process has applied {_applied['path']}. Start a new one"
        )
    return bool(_applied) or levers.in_force()


def _check_that_nothing_exists() -> None:
    import torch

    objects = gc.get_objects()
    optimizers = [found for found in objects if issubclass(type(found), torch.optim.Optimizer)]
    models = [found for found in objects if issubclass(type(found), torch.nn.Module)]
    sizes = {sum(p.numel() for p in model.parameters()): model for model in reversed(models)}
    largest = max(sizes, default=0)
    if largest:
        what = f"a model ({type(sizes[largest]).__name__})"
    elif optimizers:
        what = f"an optimizer ({type(optimizers[0]).__name__})"
    else:
        return
    raise NotApplied(
        f"too late: {what} exists already. Call oomph.apply at the top of the script, before the model "
        f"is made, or set {PLAN} in the environment"
    )


def _is_launcher() -> bool:
    words = orig_argv[1:3]
    return "RANK" not in os.environ and any(
        launcher in word for word in words for launcher in _LAUNCHERS
    )


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0" and os.environ.get("LOCAL_RANK", "0") == "0"


def _say_what_was_inert(applied: levers.Levers, process: int) -> None:
    """Levers without effect in a process that used a model; forks say nothing."""
    if os.getpid() != process or not applied.job.models:
        return
    for row in applied.report():
        if not row["applied"]:
            note = f": {row['note']}" if row["note"] else ""
            say(f"{row['name']} had no effect{note}")
