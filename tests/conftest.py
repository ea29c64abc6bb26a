"""Runs real scripts through the installed command."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BIN = os.path.dirname(sys.executable)
ROOT = next(path for path in Path(__file__).parents if (path / "crates").is_dir())


def run_settings():
    """The settings of a run as the command writes them by default: no virtual GPU, no lock."""
    written = json.loads((ROOT / "crates/oomph-job/tests/protocol.json").read_text())
    return written["settings"]["by_default"]


class Run:
    """What one `oomph run` gave."""

    def __init__(self, process, directory):
        self.status, self.out, self.err = process.returncode, process.stdout, process.stderr
        path = os.path.join(directory, "result.json")
        self.json = None
        if os.path.exists(path):
            with open(path) as file:
                self.json = json.load(file)


@pytest.fixture
def oomph(tmp_path):
    """`oomph(code, *options, args=…, gpu=…)`: run `code` as a script on a virtual GPU."""

    def run(code, *options, args=(), gpu="rtx-3060", env=None):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        command = [
            os.path.join(BIN, "oomph"),
            "run",
            "--json",
            str(tmp_path / "result.json"),
            "--out",
            str(tmp_path / "run"),
        ]
        command += ["--gpu", gpu] if gpu else []
        process = subprocess.run(
            [*command, *options, str(script), *args],
            capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "COLUMNS": "100", **(env or {})}, timeout=300,
        )  # fmt: skip
        return Run(process, tmp_path)

    return run
