"""Real runs of pytest with the plugin, on suites as users write them (`suites/`)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support import schemas

SUITES = Path(__file__).parent / "suites"
MIB = 2**20
OF_PYTEST = ("PYTEST_", "COV_", "OOMPH_TESTS")


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OF_PYTEST)}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **more}


class Outcome:
    """How a run of pytest ended, and what its JUnit file says of each test."""

    def __init__(self, process, junit):
        self.status, self.text = process.returncode, process.stdout + process.stderr
        self.tests, self.peaks, self.messages = {}, {}, {}
        for case in ET.parse(junit).iter("testcase") if junit.exists() else ():
            name = case.get("name")
            kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
            self.tests[name] = next(iter(kinds), "passed")
            self.messages[name] = "".join(
                child.get("message", "") + (child.text or "") for child in case
            )
            for one in case.iter("property"):
                if one.get("name") == "gpu_peak_bytes":
                    self.peaks[name] = int(one.get("value"))


@pytest.fixture
def suite(tmp_path):
    """`suite("test.py", *options, gpu=…)`: run a suite, or files that `files` has the texts of."""

    def run(*words, gpu="rtx-4090", files=None, **how):
        for name, text in (files or {}).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        for word in words:
            if (SUITES / word).is_file() and not (tmp_path / word).exists():
                shutil.copy(SUITES / word, tmp_path)
        (tmp_path / "pytest.ini").touch()
        junit = tmp_path / "junit.xml"
        junit.unlink(missing_ok=True)
        options = ["--oomph-gpu", gpu] if gpu else []
        process = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={junit}", *options, *words],
            cwd=tmp_path, env=environment(**how.pop("env", {})), capture_output=True, text=True, timeout=300, **how,
        )  # fmt: skip
        return Outcome(process, junit)

    return run


# Limits need no values, which take longer.
BASELINE = ["--oomph-baseline", "peaks.json", "--oomph-compute", "none"]


def test_limits_leaks_and_peaks(suite, tmp_path):
    out = suite("memory_suite.py", *BASELINE, "--oomph-largest", "3")
    assert out.status == 1
    wrong = {name: kind for name, kind in out.tests.items() if kind != "passed"}
    assert wrong == {
        "test_trains_above": "failure", "test_leaks": "error", "test_runs_out_of_memory": "failure", "test_above": "failure",
    }, out.text  # fmt: skip
    above = out.messages["test_trains_above"]
    assert (
        "above its limit of 64.0 MiB" in above
        and "memory_suite.py:24 in net  parameters of Net.up" in above
    )
    assert "16.0 MiB  memory_suite.py" in out.messages["test_leaks"]
    full = out.text.split("test_runs_out_of_memory __")[1].split("\n____")[0]
    assert "4.0 GiB more were asked for" in full and "20.0 GiB  memory_suite.py" in full
    assert "oomph/_virtual_gpu" not in full
    # The same whatever ran before, what others left aside.
    assert (
        out.peaks["test_trains_within"]
        == out.peaks["test_leaks_nothing"]
        == out.peaks["test_trains_above"]
    )
    assert out.peaks["test_what_others_left_does_not_count"] == 16 * MIB
    assert (
        out.peaks["test_of_several_sizes[3]"] == 48 * MIB and "test_without_a_gpu" not in out.peaks
    )
    summary = out.text.split("GPU memory: virtual NVIDIA GeForce RTX 4090 · 23.5 GiB")[1]
    assert (
        "20.0 GiB  memory_suite.py::test_runs_out_of_memory" in summary
        and "more tests that use the GPU" in summary
    )
    kept = schemas.read((tmp_path / "peaks.json").read_text())
    assert (
        kept["tests"]["memory_suite.py::test_trains_within"]["peak_bytes"]
        == out.peaks["test_trains_within"]
    )
    assert "memory_suite.py::test_trains_above" not in kept["tests"]


def test_a_baseline_is_compared_in_workers(suite, tmp_path):
    """Somebody makes the layer wider, and a test less large."""
    out = suite("memory_suite.py", *BASELINE)
    kept = json.loads((tmp_path / "peaks.json").read_text())
    text = (tmp_path / "memory_suite.py").read_text()
    text = "\n\n" + text.replace("width=4096", "width=5120").replace("[1, 2, 3]", "[1, 2]")
    text = text.replace("torch.zeros(size * 16", "torch.zeros(size * 15")
    (tmp_path / "memory_suite.py").write_text(text)
    chosen = ["-k", "within or nothing or sizes or shared or cycle", "-n", "2", "-p", "no:forked"]
    again = suite("memory_suite.py", *BASELINE, *chosen)
    assert {name for name, kind in again.tests.items() if kind != "passed"} == {
        "test_trains_within",
        "test_leaks_nothing",
    }, again.text
    assert again.peaks["test_within"] == out.peaks["test_within"]
    assert (
        "less than in the baseline: 1 test, such as memory_suite.py::test_of_several_sizes[2]"
        in again.text
    )
    more = again.peaks["test_leaks_nothing"] - out.peaks["test_leaks_nothing"]
    message = again.messages["test_leaks_nothing"]
    assert f"{more / MIB:.1f} MiB more than in the baseline" in message
    assert "+4.0 MiB  memory_suite.py:26 in net  parameters of Net.up" in message
    assert json.loads((tmp_path / "peaks.json").read_text()) == kept


LARGE = """
import torch, torchvision

def test_a_network_on_the_gpu_is_that_on_the_cpu():
    model, x = torchvision.models.resnet18().eval(), torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(model.cuda()(x.cuda()).cpu(), model.cpu()(x))

def test_a_wrong_value():
    assert torch.ones(3000, 3000, device="cuda").sum().item() == 0

def test_beyond_the_budget():
    assert torch.ones(1 << 28, device="cuda").sum().item() == 1 << 28
"""


def test_large_values_are_computed_within_a_budget(suite):
    files = {"test_large.py": LARGE}
    out = suite("test_large.py", "--oomph-compute", "500MiB", files=files)
    assert out.tests == {
        "test_a_network_on_the_gpu_is_that_on_the_cpu": "passed",
        "test_a_wrong_value": "failure",
        "test_beyond_the_budget": "failure",
    }, out.text
    assert "9000000" in out.messages["test_a_wrong_value"]
    assert "no values beyond --oomph-compute" in out.text.split("test_beyond_the_budget __")[1]
    bad = suite("test_large.py", "--oomph-compute", "much")
    assert bad.status == 4 and "--oomph-compute: " in bad.text


LEFT = """
import gc, pytest, torch
LEFT, searches = [], []
gc.callbacks.append(lambda phase, about: searches.append(1) if (phase, about["generation"]) == ("start", 2) else None)

def test_leaves_some():
    LEFT.append(torch.ones(100, device="cuda"))

@pytest.mark.parametrize("number", range(10))
def test_small(number):
    torch.ones(10, device="cuda")

def test_how_often():
    assert len(searches) < 8
"""


def test_garbage_is_looked_for_only_where_something_new_is_left(suite):
    """A search takes longer than a small test."""
    out = suite("test_left.py", "--oomph-compute", "none", files={"test_left.py": LEFT})
    assert set(out.tests.values()) == {"passed"}, out.text


def test_no_test_passes_that_checks_unknown_values(suite):
    out = suite("values_suite.py", "--oomph-compute", "none")
    expected = {
        "test_real_product": "passed", "test_real_layer_is_the_cpus": "passed", "test_real_wrong_value": "failure",
        "test_shape_alone": "passed", "test_only_printed": "passed", "test_only_logged": "passed",
        "test_skipped_by_its_marker": "skipped", "test_ignored_by_its_marker": "passed", "test_fails_by_the_rule": "failure",
    }  # fmt: skip
    for name, kind in out.tests.items():
        assert kind == expected.get(name, "failure"), f"{name}: {kind}\n{out.text}"
        if name.startswith("test_unknown"):
            assert (
                "does not compute, so that its outcome says nothing\n  values_suite.py:"
                in out.messages[name]
            )
    assert len(out.tests) == len(expected) + 13
    assert "does not compute" not in out.messages["test_real_wrong_value"]
    assert "GPU values" in out.text.split("test_fails_by_the_rule __")[1]


SEVERAL = """
import os
import sys

import torch
import torch.multiprocessing as mp

def test_each_gpu_has_its_memory(gpu_memory):
    assert torch.cuda.device_count() == 2
    held = [torch.zeros(16 << (20 + n), dtype=torch.uint8, device=f"cuda:{n}") for n in range(2)]
    assert gpu_memory.peak == 32 << 20 and gpu_memory.allocated == 32 << 20
    assert torch.cuda.mem_get_info(1)[1] < 6 << 30


def child(rank):
    x = torch.arange(10, device=f"cuda:{rank}")
    assert x.sum().item() == 45


def test_processes_use_them_too():
    mp.spawn(child, nprocs=2)


def test_how_it_was_started():
    assert input() == "typed"
    print("PROCESS", os.getpid(), os.getcwd(), sys.orig_argv[1:])
"""


def test_what_starts_again_is_the_same(suite, tmp_path):
    """Arguments, standard input, working directory; two virtual GPUs, of another size, named in the configuration."""
    settings = '[tool.pytest]\noomph_gpu = "h100-80gb:2"\noomph_memory = "5 GiB"\n'
    files = {"pyproject.toml": settings, "test_several.py": SEVERAL}
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\noomph_gpu = h100-80gb:2\noomph_memory = 5 GiB\n"
    )
    out = suite(
        "test_several.py",
        "-s",
        "-o",
        "junit_suite_name=a  b",
        gpu=None,
        files=files,
        input="typed\n",
    )
    assert out.status == 0, out.text
    line = next(line for line in out.text.splitlines() if "PROCESS" in line)
    assert (
        str(tmp_path) in line
        and "'junit_suite_name=a  b'" in line
        and out.text.count("test session starts") == 1
    )
    assert "virtual NVIDIA H100 80GB HBM3 · 5.0 GiB · 2 of them" in out.text


def test_ctrl_c_ends_it(tmp_path):
    ready = tmp_path / "ready"
    (tmp_path / "test_long.py").write_text(
        f"import os, pathlib, time\ndef test_long():\n    pathlib.Path({str(ready)!r}).write_text(str(os.getpid()))\n    time.sleep(60)\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--oomph-gpu",
        "t4",
        "test_long.py",
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True,
        # Tests in the background of a shell inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        end = time.monotonic() + 60
        while not (ready.exists() and ready.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        assert int(ready.read_text()) == process.pid
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 2 and "KeyboardInterrupt" in text
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"oomph-{process.pid}-")]


MARKED = "import pytest\n@pytest.mark.{}\ndef test_x(): pass\n"
BAD = {
    "marker": (MARKED.format('gpu_memory("10 bananas")'), [], "test_x: @pytest.mark.gpu_memory('10 bananas'): "),
    "nothing": (MARKED.format("limit_gpu_leaks"), [], "expected one argument, such as \"10 GiB\""),
    "rule": (MARKED.format('gpu_uncomputed("perhaps")'), [], "expected one of fail, skip, ignore"),
    "gpu": ("", ["--oomph-gpu", "rtx-409"], "unknown GPU `rtx-409`: did you mean rtx-4090"),
    "memory": ("", ["--oomph-memory", "lots"], "--oomph-memory: `lots` is not a size"),
    "version": ("", ["--oomph-baseline", "old.json"], "old.json is a baseline of the version oomph.tests/0"),
    "damaged": ("", ["--oomph-baseline", "damaged.json"], "damaged.json is not a baseline of oomph"),
    "tests": ("", ["--oomph-baseline", "tests.json"], "tests.json is damaged"),
    "other GPU": ("", ["--oomph-baseline", "other.json"], "other.json is a baseline of Voodoo 2, and"),
    "no torch": ("", ["-p", "no_torch"], "torch is not installed in"),
    "torch for CPUs": ("", ["-p", "cpu_torch"], "is built without CUDA"),
    "workers": (MARKED.format('gpu_memory("")'), ["-n", "1", "-p", "no:forked"], "test_x: @pytest.mark.gpu_memory('')"),
}  # fmt: skip
GPU = "NVIDIA GeForce RTX 4090, 25241321472 bytes"


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_status_4(case, suite, tmp_path):
    text, options, line = BAD[case]
    files = {
        "test_it.py": text or "def test_x(): pass\n",
        "old.json": json.dumps(dict(format="oomph.tests/0")),
        "damaged.json": '{"format": "oomph.te',
        "tests.json": json.dumps(dict(format="oomph.tests/1", gpu=GPU, tests=[1])),
        "other.json": json.dumps(dict(format="oomph.tests/1", gpu="Voodoo 2", tests={})),
        "no_torch.py": "import sys\nsys.modules['torch'] = None\n",
        "cpu_torch.py": "import sys\nsys.path.insert(0, 'cpu')\n",
        "cpu/torch.py": "",
    }
    (tmp_path / "cpu" / "torch").mkdir(parents=True)
    (tmp_path / "cpu" / "torch" / "__init__.py").touch()
    (tmp_path / "cpu" / "torch" / "version.py").write_text(
        "__version__ = '2.11.0+cpu'\ncuda: str = None\n"
    )
    gpu = None if "--oomph-gpu" in options else "rtx-4090"
    out = suite("test_it.py", *options, gpu=gpu, files=files, env={"PYTHONPATH": "."})
    said = [one for one in out.text.splitlines() if "ERROR" in one]
    assert out.status == 4 and len(said) == 1 and line in said[0], out.text


def test_without_its_option_nothing_changes(suite):
    """Neither the library, nor torch, nor the command is loaded; markers are known, and its fixture says what it needs."""
    files = {
        "test_off.py": MARKED.format('gpu_memory("1 B")')
        + "import sys\ndef test_light():\n    assert not {'torch', 'oomph._oomph', 'oomph._testing.tests'} & set(sys.modules)\n"
        "def test_needs(gpu_memory): pass\n"
    }
    out = suite("test_off.py", "--strict-markers", "-rs", gpu=None, files=files)
    assert out.status == 0 and out.tests == dict(
        test_x="passed", test_light="passed", test_needs="skipped"
    )
    assert "needs a virtual GPU: pytest --oomph-gpu NAME" in out.text and "oomph:" not in out.text
