"""`oomph doctor`: what works here, and what to do about what does not, without saying whose machine it is."""

import os
import re
import socket
import subprocess
import sys

import pytest

from tests.support import schemas
from tests.support.command import OOMPH
from tests.support.machine import machine_with


@pytest.fixture
def doctor(tmp_path):
    """`doctor(**environment)`: its status, its text's lines without those of versions, and its JSON."""

    def run(prefix=(), **environment):
        done = subprocess.run(
            [*prefix, OOMPH, "doctor", "--json", "found.json"],
            capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "COLUMNS": "200", **environment}, timeout=300,
        )  # fmt: skip
        assert done.stderr == "", done.stderr
        found = schemas.read((tmp_path / "found.json").read_text())
        return done.returncode, done.stdout, found

    return run


def wrong(found):
    return {check["name"]: check for check in found["checks"] if check["state"] == "wrong"}


def other_torch(place, version, cuda):
    """The environment of a torch that is nothing but its version file, and of another package, outside of the command's own place."""
    (place / "torch").mkdir()
    (place / "torch" / "__init__.py").write_text("raise ImportError('no such torch')")
    (place / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda = {cuda!r}\n")
    (place / "nvidia_elsewhere-1.0.dist-info").mkdir()
    return dict(PYTHONPATH=str(place))


def test_all_is_well(doctor):
    status, text, found = doctor()
    assert status == 0, text
    assert wrong(found) == {} and "✓ torch " in text and "✓ virtual GPU" in text
    assert found["versions"]["torch"].startswith("2.") and found["versions"]["libc"].startswith(
        "glibc"
    )
    assert [one["works"] for one in found["works"][:2]] == [True, True]


@pytest.mark.parametrize(
    ("version", "cuda", "said"),
    [
        ("2.11.0+cpu", None, "built without CUDA"),
        ("1.13.1", "11.7", "does not support torch 1.13.1"),
        ("99.0.0", "13.0", "no such torch"),
    ],
)
def test_a_torch_that_does_not_do_is_named_with_what_to_do(doctor, tmp_path, version, cuda, said):
    status, text, found = doctor(**other_torch(tmp_path, version, cuda))
    (check,) = wrong(found).values()
    assert status == 1 and said in check["found"] and check["advice"], found
    lines = [line for line in text.splitlines() if line.startswith("✗")]
    assert len(lines) == 1 and said in lines[0]
    assert found["versions"]["nvidia_elsewhere"] == "1.0"
    works, scripts = found["works"][:2]
    assert works["works"] and not scripts["works"] and said in scripts["why"]


def test_limits_that_stop_every_job_are_named(doctor):
    status, _, found = doctor(prefix=["sh", "-c", 'ulimit -v 30000000; exec "$@"', "sh"])
    check = wrong(found)["address space"]
    assert status == 1 and "28.6 GiB" in check["found"] and check["advice"] == "ulimit -v unlimited"


def test_a_gpu_and_its_driver(doctor, tmp_path, started):
    status, text, found = doctor(**machine_with("rtx-3060", tmp_path))
    assert status == 0, text
    assert "✓ GPU" in text and "NVIDIA GeForce RTX 3060, 11.6 GiB" in text
    assert found["versions"]["driver"] and all(one["works"] for one in found["works"][:3])


def test_nothing_says_whose_machine_it_is(doctor, tmp_path):
    private = dict(
        HOME="/home/karoline-m", USER="karoline-m", LD_LIBRARY_PATH="/data/acme-secret", CUDA_VISIBLE_DEVICES="GPU-acme-secret",
        OOMPH_PLAN="",
    )  # fmt: skip
    _, text, found = doctor(**private, **other_torch(tmp_path, "2.11.0+cpu", None))
    for word in (
        "karoline",
        "acme-secret",
        str(tmp_path),
        os.path.dirname(sys.executable),
        socket.gethostname(),
    ):
        # The name of a machine may be part of a package's.
        assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", f"{text} {found}"), word
    assert found["environment"]["LD_LIBRARY_PATH"] == "(set)"
