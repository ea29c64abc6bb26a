"""Records passes of ONNX Runtime's sessions, and where they run out of memory.

ONNX Runtime allocates GPU memory in its own arena, which PyTorch's allocator and history do not
see. The virtual GPU counts it anyway.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import re
import sys
from typing import Any, Protocol

from oomph._says import say

UNKNOWN = (
    "ONNX Runtime's results are not computed: outputs read as zeros, and operators whose sizes depend "
    "on values (NonZero, NonMaxSuppression, Loop) have the sizes for zeros"
)

RUNS = ("run", "run_with_iobinding", "run_with_ort_values")
"""Methods of a session that compute."""

FULL = re.compile(r"requested buffer of size (\d+)|out of memory|cudaErrorMemoryAllocation", re.I)
"""Text of its out-of-memory errors, with the size if they name it."""


class Watcher(Protocol):
    """Who wants to know what sessions do: the recorder of PyTorch, or that of ONNX Runtime alone."""

    virtual: bool

    def session_runs_out(self, error: Exception, requested: int) -> None:
        """A session asked for `requested` bytes (0 if it does not say), which are not there, and raises `error`."""

    def session_ran(self) -> None:
        """A session computed on a GPU."""

    def falls_back(self, why: str) -> None:
        """A session that was to compute on a GPU computes on the CPU, and no memory ran out."""


class BesidePyTorch:
    """The recorder of PyTorch as a watcher."""

    def __init__(self, recorder: Any) -> None:
        self.virtual, self._recorder = recorder.virtual, recorder

    def session_runs_out(self, error: Exception, requested: int) -> None:
        self._recorder.out_of_memory.outside_allocator(error, requested)

    def session_ran(self) -> None:
        if self.virtual:
            self._recorder.assumptions.add("values", UNKNOWN, "")
        self._recorder.passes.end_outside()

    def falls_back(self, why: str) -> None:
        self._recorder.fell_back = why
        say(why)


def watch(module: Any, watcher: Watcher) -> None:
    """Count the calls of sessions in `onnxruntime.capi.onnxruntime_inference_collection`."""
    kind = module.InferenceSession
    ran_out = False

    def watched(original: Any, passes: bool) -> Any:
        @functools.wraps(original)
        def method(session: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal ran_out
            try:
                output = original(session, *args, **kwargs)
            except Exception as error:
                found = FULL.search(str(error))
                if found is not None:
                    ran_out = True
                    watcher.session_runs_out(error, int(found[1] or 0))
                raise
            if passes and any("CUDA" in name for name in session.get_providers()):
                watcher.session_ran()
            return output

        return method

    def begin(session: Any, *args: Any, **named: Any) -> None:
        # It falls back to the CPU with a warning: a run on a GPU fails there, unless memory ran out.
        nonlocal ran_out
        ran_out = False
        create(session, *args, **named)
        asked = named.get("providers") or (args[2] if len(args) > 2 else None) or ()
        names = [one if isinstance(one, str) else one[0] for one in asked]
        if _on_gpu(names) and not _on_gpu(session.get_providers()) and not ran_out:
            watcher.falls_back(_why_not(module))

    if watcher.virtual:
        create = kind.__init__
        kind.__init__ = functools.wraps(create)(begin)
    # If creating it on the GPU fails, it is silently created on the CPU.
    for name in ("_create_inference_session", "__init__"):
        if hasattr(kind, name):
            setattr(kind, name, watched(getattr(kind, name), passes=False))
            break
    for name in RUNS:
        if hasattr(kind, name):
            setattr(kind, name, watched(getattr(kind, name), passes=True))


def _on_gpu(providers: list[str]) -> bool:
    return any("CUDA" in name or "Tensorrt" in name for name in providers)


def release(module: Any) -> int | None:
    """The release of CUDA that the imported ONNX Runtime is built for, or that of torch beside it."""
    text = getattr(module, "cuda_version", "") or ""
    torch = sys.modules.get("torch")
    if torch is not None:
        text = torch.version.cuda or text
    major = text.partition(".")[0]
    return int(major) if major.isdecimal() else None


def _why_not(module: Any) -> str:
    versions = {}
    for package in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    found = release(sys.modules.get("onnxruntime"))
    built = f", built for CUDA {found}" if found else ""
    if _on_gpu(module.C.get_available_providers()):
        first = f"onnxruntime-gpu {versions.get('onnxruntime-gpu', '')} could not use the GPU and computes on the CPU; its log above says why."
        if "torch" in sys.modules:
            return f"{first} Beside this torch it must be{built[1:]}."
        return f'{first} It needs NVIDIA\'s libraries{built and f" for CUDA {found}"}: pip install "onnxruntime-gpu[cuda,cudnn]", and call onnxruntime.preload_dlls() before the first session.'
    if len(versions) > 1:
        why, then = (
            "lies over onnxruntime-gpu",
            "pip uninstall onnxruntime, then pip install --force-reinstall",
        )
    else:
        why, then = "has no kernels for GPUs", "pip uninstall onnxruntime, then pip install"
    return (
        f"onnxruntime {versions.get('onnxruntime', '')} in {sys.prefix} computes on the CPU alone: it {why}. "
        f"Install onnxruntime-gpu{built}: {then} onnxruntime-gpu."
    )
