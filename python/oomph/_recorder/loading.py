"""Reading, moving and casting weights is the phase `load`."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from oomph._import_hooks import on_import
from oomph._recorder.progress import Progress
from oomph._recorder.scopes import Scopes


class Loading:
    """Sees functions that load weights begin and end."""

    def __init__(self, progress: Progress, scopes: Scopes) -> None:
        """Nothing is watched before `watch`."""
        self._progress, self._scopes = progress, scopes
        self._thread = threading.get_ident()

    def watch(self) -> None:
        """Begin to watch."""
        self._around(torch, "load")
        for name in ("load_state_dict", "to", "cuda", "half", "bfloat16", "float"):
            self._around(torch.nn.Module, name)
        on_import("safetensors.torch", lambda module: self._around(module, "load_file"))
        on_import(
            "transformers.modeling_utils",
            lambda module: self._around(module.PreTrainedModel, "from_pretrained"),
        )

    def _around(self, owner: Any, name: str) -> None:
        bound = isinstance(vars(owner).get(name), classmethod)
        original = vars(owner)[name].__func__ if bound else getattr(owner, name)
        progress = self._progress

        @functools.wraps(original)
        def loads(*args: Any, **kwargs: Any) -> Any:
            progress.loading += 1
            try:
                if progress.loading == 1 and threading.get_ident() == self._thread:
                    # What is read from a file gets its memory without an operator.
                    self._scopes.label(name)
                return original(*args, **kwargs)
            finally:
                progress.loading -= 1

        setattr(owner, name, classmethod(loads) if bound else loads)
