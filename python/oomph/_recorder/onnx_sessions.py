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
from typing import Any

UNKNOWN = (
    "ONNX Runtime's results are not computed: outputs read as zeros, and operators whose sizes depend "
    "on values (NonZero, NonMaxSuppression, Loop) have the sizes for zeros"
)

RUNS = ("run", "run_with_iobinding", "run_with_ort_values")
"""Methods of a session that compute."""

FULL = re.compile(r"requested buffer of size (\d+)|out of memory|cudaErrorMemoryAllocation", re.I)
"""Text of its out-of-memory errors, with the size if they name it."""


def watch(module: Any, recorder: Any) -> None:
    """Count the calls of sessions in `onnxruntime.capi.onnxruntime_inference_collection`."""
    kind = module.InferenceSession

    def watched(original: Any, passes: bool) -> Any:
        @functools.wraps(original)
        def method(session: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                output = original(session, *args, **kwargs)
            except Exception as error:
                full = FULL.search(str(error))
                if full is not None:
                    recorder.out_of_memory.outside_allocator(error, int(full[1] or 0))
                raise
            if passes and any("CUDA" in name for name in session.get_providers()):
                if recorder.virtual:
                    recorder.assumptions.add("values", UNKNOWN, "")
                recorder.passes.end_outside()
            return output

        return method

    if recorder.virtual:
        kind.__init__ = _asked(module, recorder, kind.__init__)
    # If creating it on the GPU fails, it is silently created on the CPU.
    for name in ("_create_inference_session", "__init__"):
        if hasattr(kind, name):
            setattr(kind, name, watched(getattr(kind, name), passes=False))
            break
    for name in RUNS:
        if hasattr(kind, name):
            setattr(kind, name, watched(getattr(kind, name), passes=True))


def _asked(module: Any, recorder: Any, original: Any) -> Any:
    """`InferenceSession.__init__`, which falls back to the CPU with a warning: a run on a GPU fails there, unless memory ran out."""

    @functools.wraps(original)
    def begin(session: Any, *args: Any, **named: Any) -> None:
        original(session, *args, **named)
        asked = named.get("providers") or (args[2] if len(args) > 2 else None) or ()
        names = [one if isinstance(one, str) else one[0] for one in asked]
        if (
            _on_gpu(names)
            and not _on_gpu(session.get_providers())
            and recorder.out_of_memory.last is None
        ):
            recorder.fell_back = _why_not(module)
            print(f"oomph: {recorder.fell_back}", file=sys.stderr)

    return begin


def _on_gpu(providers: list[str]) -> bool:
    return any("CUDA" in name or "Tensorrt" in name for name in providers)


def _why_not(module: Any) -> str:
    versions = {}
    for package in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    cuda = sys.modules["torch"].version.cuda.partition(".")[0]
    if _on_gpu(module.C.get_available_providers()):
        return (
            f"onnxruntime-gpu {versions.get('onnxruntime-gpu', '')} could not use the GPU and computes on the CPU; its log above says why. "
            f"Beside this torch it must be built for CUDA {cuda}."
        )
    if len(versions) > 1:
        why, then = (
            "lies over onnxruntime-gpu",
            "pip uninstall onnxruntime, then pip install --force-reinstall",
        )
    else:
        why, then = "has no kernels for GPUs", "pip uninstall onnxruntime, then pip install"
    return (
        f"onnxruntime {versions.get('onnxruntime', '')} in {sys.prefix} computes on the CPU alone: it {why}. "
        f"Install onnxruntime-gpu, built for CUDA {cuda}: {then} onnxruntime-gpu."
    )
