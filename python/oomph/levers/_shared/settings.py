"""Global settings of PyTorch that a plan keeps even if the script changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.backends import ContextProp


def pin(
    setter: str,
    value: Any,
    owner: Any = None,
    attribute: str = "",
    getter: str = "",
    changed: Callable[[], None] = lambda: None,
) -> None:
    """Set a setting through `torch._C.<setter>`, and ignore later calls of the setter.

    `owner.attribute` is the property that holds the functions, if one does; `changed` is called when
    the script tried to set another value.
    """
    getattr(torch._C, setter)(value)

    def keep(asked: Any) -> None:
        if asked != value:
            changed()

    setattr(torch._C, setter, keep)
    if owner is not None:
        setattr(type(owner), attribute, ContextProp(getattr(torch._C, getter), keep))
