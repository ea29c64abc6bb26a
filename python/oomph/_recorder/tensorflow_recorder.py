"""Records what a script that uses TensorFlow, and not torch, does with the memory of a virtual GPU.

The figures are those of TensorFlow's own allocator (`get_memory_info`) and of the virtual GPU, which counts what the driver gives.
TensorFlow keeps no history of its allocations, so there is none.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import sys
from typing import Any

from oomph._import_hooks import on_import
from oomph._protocol import Refused
from oomph._recorder.framework_recorder import FrameworkRecorder
from oomph._virtual_gpu import library

VALUES = "TensorFlow's results are not computed: tensors read as zeros, and losses with them"
UNMEASURED = (
    "no GPU has measured TensorFlow for oomph: the figures are those of TensorFlow's own allocator on the virtual GPU, and "
    "kernels and workspaces are those that it chooses by estimated times"
)
_LIBRARIES = ("cublas", "cuda-runtime", "cudnn", "cufft", "cusolver", "cusparse", "cuda-nvcc")
"""NVIDIA's packages without which TensorFlow leaves the GPU alone, or cannot compile for it."""

_TIMES = 64
"""How many times as large as the GPU the pool may be where the GPU has no limit."""


class TensorflowRecorder(FrameworkRecorder):
    """TensorFlow and Keras: the figures of TensorFlow's allocator."""

    label = "TensorFlow"
    assumed = (("values", VALUES), ("TensorFlow", UNMEASURED))

    def start(self) -> None:
        """Install all hooks; TensorFlow is about to be imported."""
        on_import("tensorflow.python.eager.context", self._watch_context)
        self.watch_errors()

    def _watch_context(self, module: Any) -> None:
        """TensorFlow falls back to the CPU in silence: a run on a GPU ends there."""
        original = module.Context.ensure_initialized

        @functools.wraps(original)
        def ensure_initialized(context: Any) -> None:
            first = not context._initialized
            if first:
                _lift_limit(context, module)
            original(context)
            if first and os.getpid() == self.process and not _opened():
                self.fell_back = _why_not()
                if "torch" not in sys.modules:
                    sys.stdout.flush()
                    self._leave(self.directory.refuse(Refused(self.fell_back)))

        module.Context.ensure_initialized = ensure_initialized

    def is_full(self, error: BaseException) -> bool:
        """Whether `error` is TensorFlow's, and says that memory ran out."""
        return type(error).__name__ == "ResourceExhaustedError"

    @property
    def uses_gpu(self) -> bool:
        """Whether TensorFlow has opened the GPU."""
        return bool(_opened())

    def devices(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What each GPU held, in bytes, and what TensorFlow says of its allocator."""
        allocator = os.environ.get("TF_GPU_ALLOCATOR", "") or "default"
        grows = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true"
        result, limit = [], 0
        for index, device in enumerate(_opened()):
            usage, info = library.usage(index), _config().get_memory_info(f"GPU:{index}")
            if usage is None:
                continue
            grows = grows or bool(_config().get_memory_growth(device))
            held = usage.peak - min(usage.peak, usage.context)
            if _is_unlimited(usage):
                held = info["peak"]  # its pool doubles
            else:
                limit = max(limit, _limit_of(device))
            result.append(
                dict(
                    index=index, name=_config().get_device_details(device).get("device_name", device.name), total_bytes=usage.total, limit_bytes=usage.limit,
                    peak_allocated_bytes=info["peak"], allocated_bytes=info["current"],
                    peak_reserved_bytes=held, reserved_bytes=usage.allocated,
                    outside_bytes=usage.context, peak_used_bytes=usage.context + held, retries=0, used=usage.peak > usage.context,
                )
            )  # fmt: skip
        return result, dict(
            name="tensorflow", version=_version(), cuda="12", allocator=allocator,
            preallocates=not grows and allocator == "default", limit_bytes=limit,
        )  # fmt: skip


def _is_unlimited(usage: library.Usage | None) -> bool:
    """Whether the GPU gives more than it has: `oomph run` asks how much a job needs that did not fit."""
    return usage is not None and usage.limit > usage.total


def _limit_of(device: Any) -> int:
    """How many bytes the script itself lets TensorFlow take of `device`; 0 if it does not say so."""
    context = sys.modules["tensorflow.python.eager.context"].context_safe()
    parts = context._virtual_device_map.get(device) or ()
    return sum(part.memory_limit or 0 for part in parts) << 20


def _lift_limit(context: Any, module: Any) -> None:
    """Let TensorFlow's pool grow beyond the GPU, if that is unlimited: by itself it stays below what the GPU has."""
    usage = library.usage(0)
    if usage is None or not _is_unlimited(usage):
        return
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    limit = module.LogicalDeviceConfiguration(memory_limit=_TIMES * usage.total >> 20)
    for gpu in context.list_physical_devices("GPU"):
        # A limit of the script's own stays.
        context._virtual_device_map.setdefault(gpu, [limit])


def _config() -> Any:
    return sys.modules["tensorflow.python.framework.config"]


def _opened() -> list[Any]:
    """The GPUs that TensorFlow has opened: its first operation opens all that are visible to it."""
    module: Any = sys.modules.get("tensorflow.python.eager.context")
    context = module and module.context_safe()
    is_open = context and context._initialized and context.list_logical_devices("GPU")
    return _config().get_visible_devices("GPU") if is_open else []


def _version() -> str:
    """As TensorFlow says it: its package may be `tensorflow`, `tensorflow-cpu` or a nightly build."""
    return str(sys.modules["tensorflow.python.framework.versions"].VERSION)


def _has(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _why_not() -> str:
    version = _version()
    build: Any = sys.modules["tensorflow.python.platform.build_info"]
    if not build.build_info["is_cuda_build"]:
        first = "pip uninstall tensorflow-cpu, then " if _has("tensorflow-cpu") else ""
        return f'tensorflow {version} in {sys.prefix} computes on the CPU alone. Install: {first}pip install "tensorflow[and-cuda]=={version}".'
    missing = [package for name in _LIBRARIES if not _has(package := f"nvidia-{name}-cu12")]
    if missing:
        return (
            f"tensorflow {version} in {sys.prefix} cannot use a GPU: {', '.join(missing)} missing. "
            f'Install: pip install "tensorflow[and-cuda]=={version}".'
        )
    return (
        "TensorFlow fell back to the CPU, as it would on a machine with a GPU; its log above says why. If it cannot dlopen libraries, "
        f"say where those of NVIDIA's packages are: export LD_LIBRARY_PATH=$(printf '%s:' {_libraries()})"
    )


def _libraries() -> str:
    """Where pip puts the libraries of NVIDIA's packages."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec is not None else None
    return os.path.join(next(iter(roots)) if roots else "nvidia", "*", "lib")
