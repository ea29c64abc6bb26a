"""Records passes of ONNX Runtime's sessions, and where they run out of memory.

ONNX Runtime allocates GPU memory in its own arena, which PyTorch's allocator and history do not
see. The virtual GPU counts it anyway.
"""

from __future__ import annotations

import functools
import re
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

    # If creating it on the GPU fails, it is silently created on the CPU.
    for name in ("_create_inference_session", "__init__"):
        if hasattr(kind, name):
            setattr(kind, name, watched(getattr(kind, name), passes=False))
            break
    for name in RUNS:
        if hasattr(kind, name):
            setattr(kind, name, watched(getattr(kind, name), passes=True))
