"""How many steps a script would take, told from its loops."""

import runpy

import pytest

SCRIPT = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset
from oomph._recorder.planned_steps import planned_steps

settings = argparse.Namespace(epochs=3, size=4)
loader = DataLoader(TensorDataset(torch.zeros(10, 1)), batch_size=2)

def step():
    global found
    found = planned_steps()

def epoch():
    for batch in loader:
        step()

def stream():
    yield from range(9)
"""


@pytest.mark.parametrize(
    ("loops", "planned"),
    [
        (
            "for _ in range(settings.epochs):\n    for i, b in enumerate(loader):\n        step()",
            15,
        ),
        ("for _ in range(2, len(loader) + settings.size):\n    step()", 7),
        ("for _, _ in zip(loader, range(3)):\n    step()", 3),
        ("for _ in [1, 2]:\n    epoch()", 10),
        ("for _ in range(4): step()", 4),
        ("for _ in range(4):\n    with torch.no_grad():\n        step()", 4),
        ("for i in range(40):\n    step()\n    if i > 3:\n        break", None),
        ("for i in range(12):\n    if i % 4 == 0:\n        step()", None),
        (
            "for _ in range(4):\n    try:\n        step()\n    except ValueError:\n        pass",
            None,
        ),
        ("for _ in stream():\n    step()", None),
        ("i = 0\nwhile i < 3:\n    i += 1\n    step()", None),
        ("for _ in range(4 // 0 if loader is None else 4):\n    step()", None),
        ("step()", None),
    ],
)
def test_planned_steps(tmp_path, loops, planned):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + loops)
    assert runpy.run_path(str(script))["found"] == planned
