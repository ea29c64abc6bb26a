"""What `torch.optim.LBFGS` reads: without an answer of its own for it, it would keep no history.

It is the one optimizer of PyTorch whose memory depends on values. It keeps a direction if the curvature
along it is positive, ends a step when the loss no longer changes, and searches along a line until
the slope has become flat.
"""

from __future__ import annotations

import sys
from types import FrameType

from oomph._user_code import OWN_DIRECTORY

ASSUMED = "L-BFGS is assumed to find positive curvature and a falling loss: it keeps its history"


def asks() -> bool:
    """Whether the operator that runs was called by the optimizer's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OWN_DIRECTORY):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "torch.optim.lbfgs"


def compare(name: str, other: object) -> bool:
    """What a comparison of an unknown number with `other` gives the optimizer.

    With a number it asks whether a gradient, a change or a slope is near zero, and whether the curvature is not
    (`ys > 1e-10`); with another unknown one, whether the slope has become flat (`abs(gtd_new) <= -c2 * gtd`).
    """
    if isinstance(other, (int, float)):
        return name in ("gt", "ge") and other > 0
    return name == "le"
