"""PyTorch's memory history."""

import sys
import types
from typing import Any

import torch


def snapshot() -> Any:
    """`torch.cuda.memory._snapshot()`, without the second that it takes to import `torch._inductor`.

    It looks there for the lines of compiled code, and would import it to see that there is none.
    """
    if "torch._inductor" in sys.modules:
        return torch.cuda.memory._snapshot()
    nothing = types.SimpleNamespace()
    torch._inductor = nothing
    try:
        return torch.cuda.memory._snapshot()
    finally:
        if torch.__dict__.get("_inductor") is nothing:
            del torch._inductor
