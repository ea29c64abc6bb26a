"""Where Python keeps what it compiles, for the scripts that `oomph fit` forks."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, sys
from oomph._forks import server
server._keep_bytecode(sys.argv[1])
import torch.heavy
print(sys.pycache_prefix, sys.dont_write_bytecode)
"""


@pytest.mark.parametrize("forbidden", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_what_may_not_be_kept_beside_the_sources_is_kept_elsewhere(tmp_path, forbidden, compiled):
    package, kept = tmp_path / "packages" / "torch", tmp_path / "cache"
    package.mkdir(parents=True)
    for name in ("__init__", "heavy"):
        (package / f"{name}.py").write_text("")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(package.parent)
    if compiled:
        subprocess.run([sys.executable, "-c", "import torch"], env=environment, check=True)
    if forbidden:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", CODE, kept]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    elsewhere = forbidden and not compiled
    assert said.stdout.split() == [str(kept) if elsewhere else "None", str(forbidden and compiled)]
    assert any(kept.rglob("heavy.*.pyc")) == elsewhere
    beside = any(path.name.startswith("heavy") for path in package.rglob("*.pyc"))
    assert beside == (not forbidden)
