"""Runs real scripts through the installed command."""

import os
import subprocess
import textwrap

import pytest

pytest.register_assert_rewrite("tests.support")

from tests.support.command import OOMPH, Run  # noqa: E402  (rewritten from here on)


@pytest.fixture
def oomph(tmp_path):
    """`oomph(code, *options, args=…, gpu=…)`: run `code` as a script on a virtual GPU."""

    def run(code, *options, args=(), gpu="rtx-3060", env=None):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        command = [
            OOMPH,
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
