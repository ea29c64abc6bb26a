"""Floating-point types of 16 bits."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""By their names in plan files."""

HALF = tuple(DTYPES.values())


def full(value: Any) -> Any:
    """`value` with its tensors of 16 bits in fp32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALF else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(full(item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(full(item) for item in value)
    if isinstance(value, MutableMapping):
        for key, item in list(value.items()):
            value[key] = full(item)
    return value
