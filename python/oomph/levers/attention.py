"""Attention that never writes the matrix of scores."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

from oomph import _torch_features as torch_features
from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job

BACKENDS = {"flash": 1, "efficient": 2, "cudnn": 3}
"""Numbers of `torch.nn.attention.SDPBackend`."""
NAMES = {0: "the plain (math) kernel", **{number: name for name, number in BACKENDS.items()}}


class Attention(Lever):
    """Gives one kernel of `scaled_dot_product_attention` priority.

    Needs: a model that calls that function (Hugging Face models set to `eager` are set to `sdpa`), and
    for `flash` and `cudnn` half precision. Changes: memory for scores no longer grows with the square
    of the length. Results: to rounding. PyTorch skips a kernel that does not support a call (its mask, type or head
    size); the report says so.
    """

    name = "attention"

    def __init__(self, backend: str) -> None:
        """`backend`: `flash`, `efficient` or `cudnn`."""
        super().__init__()
        if backend not in BACKENDS:
            raise self.refuse(f"backend is {backend!r}; expected one of {', '.join(BACKENDS)}")
        self.backend = backend
        self.fell_back: dict[str, int] = {}
        self.note = "the model never called scaled_dot_product_attention"

    def install(self, job: Job) -> None:
        """Order the kernels, and observe which is used."""
        if not torch_features.has("sdp_priority"):
            raise self.refuse(f"torch {torch.__version__} has no order of attention kernels")
        number = BACKENDS[self.backend]
        order = list(torch._C._get_sdp_priority_order())
        torch._C._set_sdp_priority_order([number] + [other for other in order if other != number])
        original = functional.scaled_dot_product_attention

        @functools.wraps(original)
        def attend(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                self._count(*args, **kwargs)
            return original(*args, **kwargs)

        functional.scaled_dot_product_attention = attend
        job.on_model.append(self._model)

    def _count(
        self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs
    ) -> None:
        try:
            choice = torch._fused_sdp_choice(
                query, key, value, attn_mask, dropout_p, is_causal, **kwargs
            )
        except (RuntimeError, TypeError):
            return
        if choice == BACKENDS[self.backend]:
            self.applied += 1
        else:
            name = NAMES.get(choice, f"kernel {choice}")
            self.fell_back[name] = self.fell_back.get(name, 0) + 1

    def _model(self, module: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        """Hugging Face models with eager attention."""
        for part in named.values():
            config = getattr(part, "config", None)
            if getattr(config, "_attn_implementation", None) != "eager":
                continue
            if not hasattr(part, "set_attn_implementation"):
                continue
            try:
                part.set_attn_implementation("sdpa")  # type: ignore[operator]
            except (ValueError, ImportError, AttributeError) as error:
                self.add_note(f"{type(part).__name__} keeps eager attention: {error}")

    def finish(self) -> None:
        """Report which kernels were used instead."""
        if self.applied or self.fell_back:
            if self.note and self.note.startswith("the model never"):
                self.note = None
            for name, count in self.fell_back.items():
                self.add_note(
                    f"{count} calls could not use {self.backend} attention and used {name}"
                )


LEVER = Attention
