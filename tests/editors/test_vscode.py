"""The VS Code extension: its own tests, and the package that `make vscode` makes."""

import glob
import os
import shutil
import subprocess
import zipfile

import pytest

from tests.support.command import ROOT

FOLDER = os.path.join(ROOT, "editors", "vscode")


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_extension_is_packaged_and_finds_the_command():
    done = subprocess.run(["make", "vscode"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = glob.glob(os.path.join(FOLDER, "oomph-*.vsix"))
    with zipfile.ZipFile(made) as package:
        names = set(package.namelist())
        assert {
            "extension/dist/extension.js",
            "extension/package.json",
            "extension/readme.md",
        } <= names
        assert not [name for name in names if "node_modules" in name]
        code = package.read("extension/dist/extension.js").decode()
    # The client is inside; VS Code itself is not.
    assert 'require("vscode")' in code and 'require("vscode-languageclient' not in code
