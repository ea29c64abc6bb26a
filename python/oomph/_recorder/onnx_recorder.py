"""Records what a script that uses ONNX Runtime, in an environment without torch, does with the memory of a virtual GPU.

ONNX Runtime says little of its arena: the figures are those of the virtual GPU, which counts what the driver gives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from oomph._import_hooks import on_import
from oomph._protocol import Refused, RunDirectory
from oomph._recorder import onnx_sessions
from oomph._recorder.framework_recorder import FrameworkRecorder
from oomph._recorder.script import StepsDone
from oomph._virtual_gpu import library

_ABOUT = "onnxruntime.capi.build_and_package_info"


class OnnxRecorder(FrameworkRecorder):
    """ONNX Runtime: what its sessions took from the driver, and where they got nothing."""

    label = "ONNX Runtime"
    virtual = True
    assumed = (("values", onnx_sessions.UNKNOWN),)

    def __init__(
        self, directory: RunDirectory, leave: Callable[[int], None], passes: int | None
    ) -> None:
        """Changes nothing before `start`. The script is stopped after `passes`."""
        super().__init__(directory, leave)
        self._most = passes

    def start(self) -> None:
        """Install all hooks; ONNX Runtime is about to be imported."""
        on_import(_ABOUT, self._knows_release)
        on_import(
            "onnxruntime.capi.onnxruntime_inference_collection",
            lambda module: onnx_sessions.watch(module, self),
        )

    def _knows_release(self, module: Any) -> None:
        major = onnx_sessions.release(module)
        if major is not None:
            self.directory.add_cuda_version(major, 0)

    # ---- what sessions do ----

    def session_runs_out(self, error: Exception, requested: int) -> None:
        """A session got no memory. A script may catch the error."""
        self.runs_out(error, requested)

    def session_ran(self) -> None:
        """A session computed. Without a limit of memory a script that ran out of it is let run as far as it came, and no further."""
        self.passes += 1
        if self.passes == self._most:
            self.stopped = True
            raise StepsDone

    def falls_back(self, why: str) -> None:
        """A session computes on the CPU: a run on a GPU ends there."""
        sys.stdout.flush()
        self._leave(self.directory.refuse(Refused(why)))

    # ---- what the record says ----

    def is_full(self, error: BaseException) -> bool:
        """Whether `error` is ONNX Runtime's, and says that memory ran out."""
        return onnx_sessions.FULL.search(str(error)) is not None

    @property
    def uses_gpu(self) -> bool:
        """Whether a session has opened the GPU."""
        usage = library.usage(0)
        return usage is not None and usage.peak > 0

    def devices(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What each GPU held, in bytes, and which ONNX Runtime it is."""
        result = []
        for index in count():
            usage = library.usage(index)
            if usage is None:
                break
            held = usage.peak - min(usage.peak, usage.context)
            result.append(
                dict(
                    index=index, name="", total_bytes=usage.total, limit_bytes=usage.limit,
                    peak_allocated_bytes=held, allocated_bytes=usage.allocated,
                    peak_reserved_bytes=held, reserved_bytes=usage.allocated,
                    outside_bytes=usage.context, peak_used_bytes=usage.peak, retries=0, used=usage.peak > usage.context,
                )
            )  # fmt: skip
        version = getattr(sys.modules.get("onnxruntime"), "__version__", "unknown")
        return result, dict(
            name="onnxruntime", version=version, cuda=str(onnx_sessions.release(sys.modules.get(_ABOUT)) or ""), allocator="arena", preallocates=False, limit_bytes=0,
        )  # fmt: skip
