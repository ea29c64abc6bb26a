"""Another implementation of the optimizer's step."""

from __future__ import annotations

from typing import Any

import torch

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job


class OptimizerStep(Lever):
    """The fused step, or one parameter after the other, instead of PyTorch's default (`foreach`).

    Needs: an optimizer of PyTorch that has it (fused: Adam, AdamW, SGD). Changes: the
    default allocates temporaries as large as all parameters; these allocate none, or one parameter's. The
    fused step is also the fastest, single-tensor the slowest. Results: to rounding.
    """

    name = "optimizer_step"

    def __init__(self, kind: str) -> None:
        """`kind`: `fused` or `single_tensor`."""
        super().__init__()
        if kind not in ("fused", "single_tensor"):
            raise self.refuse(f"kind is {kind!r}; expected fused or single_tensor")
        self.kind = kind
        self.note = "the script did not create an optimizer"

    def install(self, job: Job) -> None:
        """Configure each optimizer on creation."""
        job.on_optimizer.append(self._made)

    def _made(self, optimizer: torch.optim.Optimizer) -> None:
        name, defaults = type(optimizer).__name__, optimizer.defaults
        key = "fused" if self.kind == "fused" else "foreach"
        if not self.applied:
            self.note = None
        if key not in defaults:
            return self.add_note(f"{name} has no {self.kind.replace('_', '-')} step")
        if defaults.get("differentiable"):
            return self.add_note(f"{name} is differentiable, which has one implementation only")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if self.kind == "fused" and not all(torch.is_floating_point(p) for p in parameters):
            return self.add_note(f"{name} has parameters that are not floating-point")
        groups = [defaults, *optimizer.param_groups]
        wanted = {"fused": self.kind == "fused", "foreach": False}
        wanted = {name: value for name, value in wanted.items() if name in defaults}
        if all(
            bool(group[k]) == v and group[k] is not None
            for group in groups
            for k, v in wanted.items()
        ):
            return self.add_note(f"{name} already steps this way")
        _Implementation(optimizer, wanted)
        for group in groups:
            group.update(wanted)
        if self.kind == "fused":
            # As its own constructor would. It would also say that its step unscales gradients, on which Lightning refuses to
            # clip: without that a scaler unscales them, as it does in the script.
            optimizer._need_device_dtype_check_for_fused = True  # type: ignore[attr-defined]
        self.applied += 1
        return None


class _Implementation:
    """Keeps the choice out of saved states, and across loading, since a state contains its groups' options."""

    def __init__(self, optimizer: torch.optim.Optimizer, wanted: dict[str, bool]) -> None:
        """`wanted` is about to be put into the optimizer's groups."""
        self.wanted = wanted
        self.script = {name: optimizer.defaults[name] for name in wanted}
        optimizer.register_state_dict_post_hook(self._saved)
        optimizer.register_load_state_dict_pre_hook(self._loaded)

    def _saved(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """As without the lever: the script's options, and counts of steps on the CPU."""
        saved = {**state, "param_groups": [{**g, **self.script} for g in state["param_groups"]]}
        if self.wanted.get("fused") and not self.script["fused"]:
            saved["state"] = {
                key: {**values, "step": values["step"].cpu()}
                if isinstance(values.get("step"), torch.Tensor)
                else values
                for key, values in state["state"].items()
            }
        return saved

    def _loaded(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Before it is loaded, as the options say where counts of steps belong."""
        return {**state, "param_groups": [{**g, **self.wanted} for g in state["param_groups"]]}


LEVER = OptimizerStep
