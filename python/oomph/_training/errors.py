"""Which errors mean that GPU memory ran out, and the errors that the library raises itself."""

from __future__ import annotations

import re

import torch

_NATIVE: tuple[type[BaseException], ...] = tuple(
    kind
    for kind in (
        getattr(torch, "OutOfMemoryError", None),
        getattr(torch.cuda, "OutOfMemoryError", None),
    )
    if kind is not None
)

_FORMS = re.compile(
    "|".join(
        (
            # Before 1.13 a plain RuntimeError; DataParallel quotes it from its worker threads.
            r"^CUDA out of memory\.",
            r"CUDA out of memory\. Tried to allocate",
            # The runtime and the driver outside PyTorch's allocator: contexts, streams, mappings.
            r"CUDA (driver )?error: out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            # cuDNN creates its handle on first use and has no other error for a full GPU.
            r"CUDNN_STATUS_NOT_INITIALIZED",
            r"CUDNN_STATUS_ALLOC_FAILED",
            r"Not enough memory for workspace",
            r"Cuda failure (\d+ )?'out of memory'",
            r"Failed to CUDA calloc",
            # cudaMallocAsync
            r"would exceed allowed memory\. \(out of memory\)",
        )
    )
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that GPU memory ran out, in any of the forms that PyTorch raises.

    Besides `torch.OutOfMemoryError` these are `RuntimeError`s of the CUDA runtime, cuBLAS, cuDNN and
    NCCL, recognized by their text. Causes of other errors (`raise X from out_of_memory`) do not
    count: the code that raises `X` has decided what it is.
    """
    if isinstance(error, _Own):
        return False
    if isinstance(error, _NATIVE):
        return True
    return isinstance(error, RuntimeError) and _FORMS.search(str(error)) is not None


class _Own(RuntimeError):
    """Errors that must not be retried."""


class CannotFit(_Own):
    """Even the smallest micro-batch with every rung applied runs out of memory.

    The state is as before the step. `cause` is the text of the last out-of-memory error.
    """

    def __init__(self, message: str, cause: str = "") -> None:
        """Say what was tried, and keep the last error's text."""
        super().__init__(message)
        self.cause = cause


class MemoryNotRecovered(CannotFit):
    """After an error, memory stayed allocated that the step did not have before.

    The state is as before the step: save a checkpoint, and continue in a new process.
    """


class StateLost(_Own):
    """An error inside `optimizer.step` left parameters partly updated: restart from a checkpoint."""


class Refused(_Own):
    """The request cannot be fulfilled exactly; the message says why and what to do instead."""


class PeerFailed(_Own):
    """Another rank cannot continue; this rank's state is as before the step."""
