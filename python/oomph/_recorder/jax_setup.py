"""Which JAX is installed, and what it lacks to use a GPU. JAX is not imported for it."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from typing import NamedTuple

from oomph._protocol import Refused

MAJORS = (12, 13)
"""The releases of CUDA that JAX has plugins for, as the virtual GPU has their structures."""


class Jax(NamedTuple):
    """An installed JAX."""

    version: str
    cuda: int | None
    """The release of CUDA that its plugin is for; None: it computes on the CPU alone."""


def is_installed() -> bool:
    """Whether a script can import JAX."""
    return importlib.util.find_spec("jax") is not None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_jax() -> Jax:
    """The installed JAX. Raise `Refused` if it has plugins for two releases of CUDA, of which it takes one."""
    version = _version("jax") or "unknown"
    majors = [major for major in MAJORS if _version(f"jax-cuda{major}-plugin")]
    if len(majors) > 1:
        raise Refused(
            f"jax {version} in {sys.prefix} has plugins for CUDA {majors[0]} and {majors[1]}: uninstall "
            f"jax-cuda{majors[0]}-plugin and jax-cuda{majors[0]}-pjrt, or those for {majors[1]}."
        )
    return Jax(version, majors[0] if majors else None)


def lacks(jax: Jax) -> str | None:
    """What `jax` itself lacks to use a GPU, in one line with the package that is missing; None: nothing."""
    if jax.cuda is None:
        newest = MAJORS[-1]
        return (
            f"jax {jax.version} in {sys.prefix} computes on the CPU alone: the package jax-cuda{newest}-plugin is "
            f'missing. Install it: pip install "jax[cuda{newest}]=={jax.version}".'
        )
    if not _version(f"jax-cuda{jax.cuda}-pjrt"):
        return (
            f"jax {jax.version} in {sys.prefix} cannot use a GPU: the package jax-cuda{jax.cuda}-pjrt is missing. "
            f"Install it: pip install jax-cuda{jax.cuda}-pjrt=={jax.version}."
        )
    return None


def lacks_assembler(jax: Jax) -> str | None:
    """That there is no `ptxas`, in one line with its package; None: there is one."""
    if _has_ptxas():
        return None
    package = _assembler(jax)
    return (
        f"jax {jax.version} in {sys.prefix} cannot compile for a GPU: there is no ptxas, as the package {package} "
        f"is missing. Install it: pip install {package}."
    )


def _assembler(jax: Jax) -> str:
    return "nvidia-cuda-nvcc" + ("-cu12" if jax.cuda == 12 else "")


def missing_libraries(jax: Jax) -> list[str]:
    """NVIDIA's packages that JAX's plugin needs and that are not installed. A system's own libraries may stand for them."""
    suffix = f"-cu{jax.cuda}"
    names = [name + (suffix if jax.cuda == 12 else "") for name in _LIBRARIES]
    names += [name + suffix for name in ("nvidia-cudnn", "nvidia-nccl")]
    assembler = [] if _has_ptxas() else [_assembler(jax)]
    return assembler + [name for name in names if _version(name) is None]


_LIBRARIES = (
    "nvidia-cublas", "nvidia-cuda-cupti", "nvidia-cuda-runtime", "nvidia-cufft", "nvidia-cusolver", "nvidia-cusparse",
    "nvidia-nvjitlink",
)  # fmt: skip


def _has_ptxas() -> bool:
    """Where XLA looks for the assembler: NVIDIA's packages, `PATH`, CUDA's usual places."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec is not None else []
    roots += [os.environ.get(name, "") for name in ("CUDA_ROOT", "CUDA_HOME", "CUDA_PATH")]
    roots.append("/usr/local")
    places = [f"{root}{part}/bin/ptxas" for root in roots if root for part in ("", "/*")]
    return shutil.which("ptxas") is not None or any(map(glob.glob, places))
