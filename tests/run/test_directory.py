"""`--out` never removes or overwrites what oomph did not write."""

import subprocess

import pytest

from tests.support.command import OOMPH

THEIRS = {
    "rank-0/checkpoint.pt": "weights",
    "process-1/state.bin": "state",
    "lock": "lock",
    "record.json": "{}",
    "status": "training",
    "settings.json": "{}",
    "index.html": "<p>mine</p>",
}


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def oomph(directory, *words):
    return subprocess.run(
        [OOMPH, *words, "job.py"], cwd=directory, capture_output=True, text=True, timeout=300
    )


@pytest.fixture
def place(tmp_path):
    (tmp_path / "job.py").write_text("import torch\ntorch.zeros(1 << 20, device='cuda')\n")
    return tmp_path


@pytest.mark.parametrize("out", [".", "runs"])
@pytest.mark.parametrize(
    "command", [["run", "--gpu", "t4"], ["run", "--gpu", "t4:2"], ["fit", "--gpu", "t4"]]
)
def test_other_peoples_files_are_never_touched(place, command, out):
    for name, text in THEIRS.items():
        path = place / out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    before = contents(place)
    done = oomph(place, *command, "--out", out)
    assert done.returncode == 2, done.stderr
    assert "Nothing was changed" in done.stderr
    assert contents(place) == before


def test_an_own_directory_is_used_again_until_something_else_is_in_it(place):
    for _ in range(2):
        done = oomph(place, "run", "--gpu", "t4", "-q", "--out", "own")
        assert done.returncode == 0, done.stderr
    (place / "own/notes.txt").write_text("mine")
    before = contents(place)
    done = oomph(place, "run", "--gpu", "t4", "-q", "--out", "own")
    assert done.returncode == 2
    assert "notes.txt" in done.stderr
    assert contents(place) == before
