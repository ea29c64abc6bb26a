"""The levers of a plan, applied to a script that knows nothing of them.

One file a lever, named as in `oomph-plan`; each holds one subclass of `Lever`. Nothing here imports
torch before the script does: a lever's module is imported when torch is there.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def prepare(specifications: list[dict[str, Any]]) -> None:
    """Set the environment for the levers that need it before torch is imported."""
    for specification in specifications:
        if specification["name"] == "allocator":
            # torch reads the newer name first, and then not the older one.
            new = "PYTORCH_ALLOC_CONF"
            variable = new if new in os.environ else "PYTORCH_CUDA_ALLOC_CONF"
            settings = [os.environ.get(variable, ""), specification["conf"]]
            os.environ[variable] = ",".join(s for s in settings if s)
        if specification["name"] == "shard" and os.environ.get("LOCAL_RANK", "").isdigit():
            # A script for one GPU says "cuda:0": that is each rank's own.
            seen = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
            local = int(os.environ["LOCAL_RANK"])
            if not seen or local < len(seen):
                os.environ["CUDA_VISIBLE_DEVICES"] = seen[local] if seen else str(local)


class Levers:
    """All levers of a plan."""

    def __init__(self, specifications: list[dict[str, Any]]) -> None:
        """`specifications` is `[{"name": …, parameters…}]`, as in the plan file."""
        from oomph.levers._shared.job import Job

        self.job = Job()
        self.levers = []
        for specification in specifications:
            parameters = dict(specification)
            name = parameters.pop("name")
            module = importlib.import_module(f"oomph.levers.{name}")
            self.levers.append(module.LEVER(**parameters))
        self.job.levers = self.levers

    def install(self) -> None:
        """Torch has just been imported; the script goes on after this."""
        for lever in sorted(self.levers, key=lambda lever: lever.order):
            lever.install(self.job)
        if self.levers:
            self.job.watch()

    def report(self) -> list[dict[str, Any]]:
        """What each lever did: `{"name", "applied", "note"}`; `applied` 0 means that it was inert.
        `left` are modules of the plan that it left alone, if there are any."""
        for lever in self.levers:
            lever.finish()
        return [
            dict(name=lever.name, applied=lever.applied, note=lever.note)
            | (dict(left=lever.left_alone) if lever.left_alone else {})
            for lever in self.levers
        ]
