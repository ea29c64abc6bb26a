"""Which release of CUDA the frameworks of a process are built for: on a virtual GPU all get the answers of one."""

from __future__ import annotations

import sys
from typing import Any

from oomph._recorder import jax_setup
from oomph._recorder.cupy_setup import installed_cupy


def _used() -> dict[str, int | None]:
    """The release that each framework which has opened the GPU is built for, by its name."""
    found: dict[str, int | None] = {}
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "cuda") and torch.cuda.is_initialized():
        found["torch"] = int(torch.version.cuda.partition(".")[0])
    bridge = sys.modules.get("jax._src.xla_bridge")
    if "cuda" in getattr(bridge, "_backends", {}):
        found["jax"] = jax_setup.installed_jax().cuda
    if "cupy" in sys.modules:
        found["cupy"] = installed_cupy()
    return found


def mixed(answers: int) -> str | None:
    """What is assumed where frameworks are built for another release than `answers`, as which the virtual GPU answers."""
    others = {name: major for name, major in _used().items() if major not in (None, answers)}
    if not others:
        return None
    built = " and ".join(f"{name} is built for CUDA {major}" for name, major in others.items())
    install = " and ".join(_package(name, answers) for name in others)
    return f"{built}, and the virtual GPU answers all of a process as CUDA {answers}; install {install}"


def _package(name: str, major: int) -> str:
    packages = {"jax": f'"jax[cuda{major}]"', "cupy": f"cupy-cuda{major}x"}
    return packages.get(name, f"a {name} for CUDA {major}")
