"""Versions of torch: which are refused, what is said of them, and a wheel in an empty environment."""

import glob
import json
import os
import platform
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest
from oomph import _torch_features as torch_features
from oomph._recorder import torch_versions
from oomph._recorder.torch_versions import Torch

from tests.support.command import OOMPH, ROOT

TRAIN = """
    import torch
    from torch import nn
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 30 * 30, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        loss = model(torch.randn(256, 3, 32, 32, device="cuda")).pow(2).mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
"""


def fake_torch(place, version, cuda, imported=""):
    """A torch that is nothing but its version file, and what its import does."""
    (place / "torch").mkdir()
    (place / "torch" / "__init__.py").write_text(imported)
    (place / "torch" / "version.py").write_text(
        f"from typing import Optional\n__version__ = {version!r}\ncuda: Optional[str] = {cuda!r}\n"
    )
    (place / "s.py").write_text("import torch; print('ran')")
    return subprocess.run(
        [OOMPH, "run", "--gpu", "t4", "s.py"], capture_output=True, text=True,
        cwd=place, env={**os.environ, "PYTHONPATH": str(place)}, timeout=300,
    )  # fmt: skip


def other_torch(place, version=None, after=""):
    """The installed torch under another version, or with `after` run at the end of its import.

    Returns the environment variables that make it the one that is found.
    """
    import torch

    real, copy = os.path.dirname(torch.__file__), place / "other" / "torch"
    copy.mkdir(parents=True)
    for name in os.listdir(real):
        if name not in ("version.py", "__init__.py", "__pycache__"):
            os.symlink(os.path.join(real, name), copy / name)
    for name, change in (("version.py", version), ("__init__.py", None)):
        with open(os.path.join(real, name)) as file:
            text = file.read()
        if change:
            text = text.replace(torch.version.__version__, change)
        (copy / name).write_text(text + (after if name == "__init__.py" else ""))
    return {"PYTHONPATH": str(place / "other")}


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [
        ("2.8.0+cu128", "12.8", "proved"), ("2.8.1", "12.9", "proved"), ("2.11.0+cu130", "13.0", "proved"),
        ("2.11.0+cu128", "12.8", "unproved"), ("2.80.0", "13.0", "unproved"), ("3.0.0", "14.1", "unproved"),
        ("2.11.0a0+git1234", "13.0", "unproved"), ("2.11.0.dev20260101+cu130", "13.0", "unproved"),
        ("2.11.0rc1", "13.0", "unproved"), ("2.8.0+cu118", "11.8", "too old"), ("2.3.1+cu121", "12.1", "too old"),
        ("2.11.0+cpu", None, "too old"), ("unknown", "13.0", "too old"),
    ],
)  # fmt: skip
def test_patches_of_a_known_release_are_known_and_pre_releases_are_not(
    version, cuda, expected, monkeypatch
):
    monkeypatch.setattr(torch_versions, "PROVED", {(2, 8): 12, (2, 11): 13})
    monkeypatch.setattr(torch_versions, "OLDEST", (2, 8))
    assert Torch(version, cuda).standing.value == expected


def test_proved_releases_are_those_that_passed_every_job():
    """By the results of `make test-matrix`."""
    place = Path(ROOT, "bench", "matrix", "results", "versions.json")
    pairs = json.loads(place.read_text())["pairs"]
    every = {job for pair in pairs for job in pair["jobs"]}
    passed = {
        tuple(int(part) for part in pair["torch"].split(".")[:2]): int(pair["cuda"].split(".")[0])
        for pair in pairs
        if not pair["missing"]
        and every == {job for job, found in pair["jobs"].items() if "failure" not in found}
    }
    assert passed == torch_versions.PROVED


def test_the_installed_torch_is_proved():
    import torch

    assert Torch(torch.__version__, torch.version.cuda).standing.value == "proved"


def test_the_installed_torch_has_what_its_release_should_have():
    import torch

    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    for name, feature in torch_features.FEATURES.items():
        assert torch_features.has(name) is feature.is_expected(release), name
    for name in torch_features.NEEDED:
        assert torch_features.look_up(name) is not None, name
    assert torch_features.look_up("torch._C:no_such_name") is None


def test_a_torch_without_cuda_is_refused(tmp_path):
    found = fake_torch(tmp_path, "2.11.0+cpu", None)
    assert found.returncode == 2 and "ran" not in found.stdout
    assert "built without CUDA" in found.stderr and "pip install torch" in found.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("libcudnn.so.9: cannot open shared object file: No such file"), "libcudnn.so"),
        (ValueError("libcublasLt.so.*[0-9] not found in the system path ['']"), "libcublasLt.so"),
        (ImportError("libmine.so of this script is too old"), None),
    ],
)
def test_a_torch_without_its_libraries_is_told_what_brings_them(tmp_path, error, said):
    """Those of another release of CUDA may be there."""
    found = fake_torch(tmp_path, "2.11.0+cu130", "13.0", f"raise {error!r}")
    assert found.returncode == 1 and "ran" not in found.stdout
    lines = [line for line in found.stderr.splitlines() if line.startswith("oomph: torch")]
    assert bool(lines) == bool(said), found.stderr
    for line in lines:
        assert f"needs {said} for CUDA 13.0" in line and '"torch==2.11.0"' in line


@pytest.mark.parametrize(("version", "cuda"), [("2.3.1+cu121", "12.1"), ("2.11.0+cu118", "11.8")])
def test_an_older_version_is_refused_with_what_is_needed(tmp_path, version, cuda):
    found = fake_torch(tmp_path, version, cuda)
    assert found.returncode == 2 and "ran" not in found.stdout
    oldest = ".".join(map(str, torch_versions.OLDEST))
    for part in (f"torch {version} with CUDA {cuda}", "--unsupported", f"torch {oldest} or later"):
        assert part in found.stderr


def test_a_torch_in_the_working_directory_is_not_the_scripts(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.3.1'\ncuda = '12.1'\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "s.py").write_text("print('ran')")
    found = subprocess.run(
        [OOMPH, "run", "--gpu", "t4", "job/s.py"], capture_output=True, text=True,
        cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0 and "ran" in found.stdout


def test_a_newer_version_runs_with_one_warning(oomph, tmp_path):
    plain = oomph(TRAIN)
    run = oomph(TRAIN, env=other_torch(tmp_path, "2.99.0+cu130"))
    assert run.status == 0, run.err
    said = [line for line in run.err.splitlines() if "2.99.0+cu130" in line]
    assert len(said) == 1 and "a short probe of it passed" in said[0]
    assert [a["what"] for a in run.json["assumptions"] if a["kind"] == "version"]
    # The probe leaves nothing behind: neither in what is measured nor in what was assumed.
    assert run.json["peak"] == plain.json["peak"]
    # A version that needs no excuse gets none.
    assert not [a for a in plain.json["assumptions"] if a["kind"] == "version"]
    assert "probe" not in plain.err


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("del torch_C._current_graph_task_id", "_current_graph_task_id"),
        ("cuda.memory._snapshot = lambda *a, **k: dict(device_traces=[[]])", "memory history"),
        ("import os; os.abort()", "SIGABRT"),
    ],
)
def test_a_newer_version_that_fails_the_probe_gets_one_line(oomph, tmp_path, change, word):
    """What the recorder and the value layer rest on is gone, or is another."""
    if "abort" in change:
        change = f"_empty = empty\ndef empty(*a, **k):\n    if k.get('device') == 'cuda': {change}\n    return _empty(*a, **k)\n"
    after = f"\nfrom torch import _C as torch_C\n{change}\n"
    env = other_torch(tmp_path, "2.99.0+cu130", after)
    script = "import torch; print('ran')"
    run = oomph(script, env=env)
    assert run.status == 2 and "ran" not in run.out
    lines = [line for line in run.err.splitlines() if line.strip()]
    assert len(lines) == 1 and "the probe of it failed" in lines[0] and word in lines[0]
    assert "--unsupported" in lines[0]


def test_unsupported_skips_the_probe_and_is_an_assumption(oomph, tmp_path):
    env = other_torch(tmp_path, "2.99.0+cu130")
    run = oomph(TRAIN, "--unsupported", env=env)
    assert run.status == 0, run.err
    said = [a["what"] for a in run.json["assumptions"] if a["kind"] == "version"]
    assert len(said) == 1 and "torch 2.99.0" in said[0] and "probe" not in run.err


def test_without_metadata_the_stacks_carry_phases_and_modules(oomph, tmp_path):
    """Torch before 2.10 keeps no metadata with an allocation."""
    env = other_torch(tmp_path, after="\ndel _C._cuda_setMemoryMetadata\n")
    found, expected = oomph(TRAIN, env=env).json, oomph(TRAIN).json
    assert found["peak"] == expected["peak"] and found["peak_phase"] == expected["peak_phase"]
    assert found["modules"] == expected["modules"] and found["operators"] == expected["operators"]
    for category, size in expected["by_category"].items():
        assert found["by_category"][category] == pytest.approx(size, rel=0.01), category


def test_the_installed_cudnn_is_one_whose_work_spaces_were_compared(oomph):
    run = oomph(TRAIN, gpu="h200")
    assert not [a for a in run.json["assumptions"] if a["location"] == "cuDNN"]


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory):
    """An environment with the wheel and nothing else, and no program on the PATH."""
    wheels = [
        wheel
        for place in ("dist", "target/wheels")
        for wheel in glob.glob(f"{ROOT}/{place}/*{platform.machine()}.whl")
    ]
    if not wheels:
        pytest.skip("needs the wheel that `make build` or `make test` leaves")
    wheel = max(wheels, key=os.path.getmtime)
    place = tmp_path_factory.mktemp("empty")
    venv.create(place / "venv", with_pip=False, symlinks=True)
    path = {"PATH": str(place / "no-programs"), "HOME": str(place)}
    install = [sys.executable, "-m", "pip", "--python", str(place / "venv" / "bin" / "python"), "install"]  # fmt: skip
    subprocess.run([*install, "-q", "--no-index", wheel], check=True, env=path, capture_output=True)

    def run(*words):
        command = [str(place / "venv" / "bin" / "oomph"), *words]
        return subprocess.run(
            command, capture_output=True, text=True, env=path, cwd=place, timeout=300
        )

    return run


def test_the_wheel_works_in_an_empty_environment(empty_environment):
    help_ = empty_environment("--help")
    assert help_.returncode == 0 and "run" in help_.stdout
    gpus = empty_environment("gpus")
    assert gpus.returncode == 0 and "rtx-4090" in gpus.stdout


def test_without_torch_the_message_says_what_to_install(empty_environment, tmp_path):
    script = tmp_path / "s.py"
    script.write_text(textwrap.dedent(TRAIN))
    found = empty_environment("run", "--gpu", "t4", str(script))
    assert found.returncode == 2 and "Traceback" not in found.stderr
    assert "torch is not installed" in found.stderr and "pip install torch" in found.stderr


def test_without_torch_the_doctor_says_what_works(empty_environment):
    found = empty_environment("doctor")
    assert found.returncode == 1 and found.stderr == "", found.stderr
    (wrong,) = [line for line in found.stdout.splitlines() if line.startswith("✗")]
    assert "torch is not installed in ENVIRONMENT" in wrong and "pip install torch" in found.stdout
    assert "works" in found.stdout and "explain" in found.stdout.split("does not")[0]
