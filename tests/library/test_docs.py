"""The examples of docs/library.md run as they stand there, on a virtual GPU."""

import os
import re

from tests.support.command import ROOT

DOCS = os.path.join(ROOT, "docs", "library.md")

BEFORE = """
import torch
torch.set_default_device("cuda")
make_batch = lambda n: {"x": torch.empty(n, 4096, 8), "y": torch.empty(n, 4096, 1)}
loader = [make_batch(4) for _ in range(3)]
"""


def test_examples(oomph):
    with open(DOCS) as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)
    runnable = [block for block in blocks if "trainer." not in block]
    assert len(runnable) >= 5
    run = oomph(BEFORE + "\n".join(runnable), "--memory", "1GiB", "--no-measure")
    assert run.status == 0, run.err
