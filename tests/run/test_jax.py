"""Scripts that use JAX and not torch: peaks, what ran out of memory, and what is missing."""

import importlib.util
import json
import subprocess

import pytest
import torch
from oomph._recorder import framework_recorder, jax_setup

from tests.support.command import OOMPH

GIB = 1 << 30

HAS_JAX = importlib.util.find_spec("jax") is not None
with_jax = pytest.mark.usefixtures("frameworks")

TRAINS = """
import jax, jax.numpy as jnp

@jax.jit
def step(w, x):
    return w - 1e-3 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

w, x = jnp.ones((4096, 4096)), jnp.ones((8192, 4096))
for _ in range(3):
    w = step(w, x)
jax.block_until_ready(w)
"""


def fake_jax(place, *packages):
    """A package that is called JAX, with the metadata of `packages`, and computes on the CPU alone."""
    for name, text in (
        ("jax/__init__.py", "from jax._src import hardware_utils, xla_bridge\n"),
        ("jax/_src/__init__.py", ""),
        ("jax/_src/hardware_utils.py", "def has_visible_nvidia_gpu(): return False\n"),
        ("jax/_src/xla_bridge.py", "_backends = {}\ndef backends(): return {'cpu': 1}\n"),
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    for name in ("jax", *packages):
        if "nvcc" in name:
            assembler = place / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
            assembler.parent.mkdir(parents=True)
            assembler.touch()
        info = place / f"{name.replace('-', '_')}-0.11.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.11.2\n")
    return "import jax\njax._src.xla_bridge.backends()\nprint('went on')\n"


@pytest.mark.skipif(HAS_JAX, reason="a JAX with its packages is installed")
@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ([], "the package jax-cuda13-plugin is missing"),
        (["jax-cuda13-plugin"], "the package jax-cuda13-pjrt is missing"),
        (["jax-cuda12-plugin", "jax-cuda13-plugin"], "plugins for CUDA 12 and 13"),
        # The plugin is for CUDA 12, what else is there for CUDA 13.
        (
            ["jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12", "nvidia-cublas"],
            "nvidia-cublas-cu12, nvidia-cuda-cupti-cu12",
        ),
    ],
)
def test_a_jax_that_cannot_use_the_gpu_is_refused_with_what_is_missing(
    oomph, tmp_path, packages, said
):
    run = oomph(fake_jax(tmp_path, *packages))
    assert run.status == 2, run.err
    [line] = run.err.splitlines()
    assert line.startswith("error: jax 0.11.2 in ") and said in line
    assert "went on" not in run.out


@pytest.mark.skipif(HAS_JAX, reason="a JAX with its packages is installed")
def test_beside_pytorch_jax_may_compute_on_the_cpu_but_not_in_its_stead(oomph, tmp_path):
    code = fake_jax(tmp_path)
    run = oomph(f"import torch\ntorch.zeros(1 << 20).cuda()\n{code}")
    assert run.status == 0 and "went on" in run.out, run.err
    assert run.json["peak"]["allocated_bytes"] == 4 << 20
    run = oomph(f"import torch\n{code}")
    assert run.status == 1 and "went on" in run.out, run.err
    assert "computes on the CPU alone" in run.json["failure"]


def test_frameworks_for_two_releases_of_cuda_in_a_process_are_named(oomph, tmp_path):
    """The virtual GPU has the structures of one; nothing said so."""
    major = int(torch.version.cuda.partition(".")[0])
    code = fake_jax(tmp_path, f"jax-cuda{25 - major}-plugin", f"jax-cuda{25 - major}-pjrt")
    bridge = tmp_path / "jax" / "_src" / "xla_bridge.py"
    bridge.write_text("_backends = {}\ndef backends(): return _backends\n_backends['cuda'] = 1\n")
    run = oomph(f"import torch\ntorch.zeros(1 << 20).cuda()\n{code}")
    assert run.status == 0, run.err
    [line] = [line for line in run.err.splitlines() if line.startswith("oomph: jax")]
    assert f"jax is built for CUDA {25 - major}" in line and f"as CUDA {major}" in line
    assert f'install "jax[cuda{major}]"' in line
    assert line.removeprefix("oomph: ") in [one["what"] for one in run.json["assumptions"]]


WITHOUT_PTXAS = """
from oomph._recorder import jax_setup
jax_setup._has_ptxas = lambda: False
import jax
jax._src.xla_bridge.backends()
raise RuntimeError("UNAVAILABLE: No PTX compilation provider is available. Neither ptxas/nvlink nor nvjtlink is available.")
"""


@pytest.mark.skipif(HAS_JAX, reason="a JAX with its packages is installed")
def test_an_error_for_want_of_ptxas_names_its_package(oomph, tmp_path):
    """As XLA does it: it opens the GPU, and fails at the first program."""
    fake_jax(tmp_path, "jax-cuda13-plugin", "jax-cuda13-pjrt")
    bridge = tmp_path / "jax" / "_src" / "xla_bridge.py"
    bridge.write_text("_backends = {}\ndef backends(): return {'cuda': 1}\n")
    run = oomph(WITHOUT_PTXAS)
    [line] = [line for line in run.err.splitlines() if line.startswith("oomph: jax")]
    assert "there is no ptxas" in line and "pip install nvidia-cuda-nvcc" in line
    assert run.status == 1


CAUGHT = """
from oomph._recorder import jax_setup
jax_setup._has_ptxas = lambda: False
import jax
from jax.errors import JaxRuntimeError
jax._src.xla_bridge.backends()
try:
    raise JaxRuntimeError("UNAVAILABLE: No PTX compilation provider is available. Neither ptxas/nvlink nor nvjtlink is available.")
except JaxRuntimeError:
    print("went on")
"""


@pytest.mark.skipif(HAS_JAX, reason="a JAX with its packages is installed")
def test_a_script_that_catches_the_error_for_want_of_ptxas_is_no_run(oomph, tmp_path):
    """It fitted, and nothing was said."""
    fake_jax(tmp_path, "jax-cuda13-plugin", "jax-cuda13-pjrt")
    bridge = tmp_path / "jax" / "_src" / "xla_bridge.py"
    bridge.write_text("_backends = {}\ndef backends(): return {'cuda': 1}\n")
    (tmp_path / "jax" / "errors.py").write_text("class JaxRuntimeError(RuntimeError): pass\n")
    run = oomph(CAUGHT)
    assert run.status == 2 and "went on" not in run.out
    [line] = run.err.splitlines()
    assert "there is no ptxas" in line and "pip install nvidia-cuda-nvcc" in line


def test_what_compiles_for_the_gpu_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(jax_setup, "_version", lambda package: "0.11.2")
    monkeypatch.setattr(jax_setup, "_has_ptxas", lambda: False)
    jax = jax_setup.Jax("0.11.2", 13)
    said = jax_setup.lacks_assembler(jax)
    assert "there is no ptxas" in said and "pip install nvidia-cuda-nvcc." in said
    assert jax_setup.missing_libraries(jax) == ["nvidia-cuda-nvcc"]
    monkeypatch.setattr(jax_setup, "_has_ptxas", lambda: True)
    assert jax_setup.lacks_assembler(jax) is None
    # Where nothing is there, one line names all.
    monkeypatch.setattr(jax_setup, "_version", lambda package: None)
    monkeypatch.setattr(jax_setup, "_has_ptxas", lambda: False)
    missing = jax_setup.missing_libraries(jax)
    assert missing[:2] == ["nvidia-cuda-nvcc", "nvidia-cublas"] and len(missing) == 10


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2.94GiB with", 3156800962),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 800 bytes.", 800),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 1073741824 bytes.", GIB),
        ("INTERNAL: something else", 0),
    ],
)
def test_messages_say_how_much_was_asked_for(message, size):
    assert framework_recorder.requested(message) == size


@with_jax
def test_a_training_step_of_jax_is_measured_by_its_allocator_and_the_driver(oomph):
    run = oomph(TRAINS, gpu="h200")
    assert run.status == 0, run.err
    assert (run.json["verdict"], run.json["basis"]) == ("fits", "whole_script")
    assert run.json["framework"]["preallocates"] and "torch" not in run.json["versions"]
    peak = run.json["peak"]
    # 75 % of the memory is taken in advance, as on an H200 (`bench/jax/results/h200_jax.jsonl`).
    assert run.json["framework"]["limit_bytes"] == peak["reserved_bytes"] == 112_583_507_968
    # Weights, input, the product and its gradient: 64 MiB and 128 MiB each.
    assert 0.4 * GIB < peak["allocated_bytes"] < 1.2 * GIB
    assert peak["reserved_bytes"] < peak["used_bytes"] < peak["reserved_bytes"] + GIB
    assert "in use, of the 104.9 GiB that JAX takes in advance" in run.out
    assert not [one for one in run.json["assumptions"] if "lacks functions" in one["what"]]


LETS_GO = """
import jax, jax.numpy as jnp

def train():
    w = jnp.ones((4096, 4096))
    step = jax.jit(lambda w: jnp.sin(w) + 1)
    for _ in range(4):
        w = step(w)
    return w

jax.block_until_ready(train())
"""


@with_jax
def test_what_a_function_lets_go_is_not_kept_by_a_look_at_its_variables(oomph):
    run = oomph(LETS_GO, "--net")
    # JAX does not get its memory from where the net stands.
    assert run.err.count("oomph: net: it serves PyTorch's memory") == 1, run.err
    # An argument and a result of 64 MiB, not those of the call before.
    assert 128 << 20 <= run.json["peak"]["allocated_bytes"] < 160 << 20


PROFILED = """
import jax, jax.numpy as jnp

def make(rows):
    return jnp.ones((rows, 1 << 20))

kept = [make(64) for _ in range(3)]
moved = jax.device_put(kept[0], jax.local_devices()[-1])
jax.block_until_ready([kept, moved])
jax.profiler.save_device_memory_profile("memory.prof")
"""


@with_jax
def test_a_profile_of_jaxs_memory_is_explained_by_line_and_device(oomph, tmp_path):
    run = oomph(PROFILED, "--keep-files", gpu="t4:2")
    assert run.status == 0, run.err

    def explained(*options):
        words = [OOMPH, "explain", *options, "memory.prof"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)

    done = explained()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("? JAX held ") and "on 2 devices" in done.stdout
    assert "script.py:5 in make" in done.stdout and "not the peak" in done.stdout
    found = json.loads(explained("--json", "-").stdout)
    buffers = {
        row["device"]: (row["bytes"], row["blocks"])
        for row in found["peak"]["categories"]
        if row["category"] == "buffers"
    }
    assert buffers == {"cuda:0": (3 * GIB // 4, 3), "cuda:1": (GIB // 4, 1)}
    holder = found["holders"][0]
    assert holder["stack"] == ["script.py:5 in make", "script.py:7 in <listcomp>"]
    assert (holder["bytes"], holder["blocks"]) == (3 * GIB // 4, 3)
    of_one = json.loads(explained("--json", "-", "--device", "1").stdout)
    assert of_one["holders"][0]["stack"] == ["script.py:8"]
    assert explained("--device", "2").stderr.count("\n") == 1
    # Go's own profiles have other types.
    (tmp_path / "memory.prof").write_bytes(b"\n\4\10\1\20\0022\0002\1a2\1b")
    refused = explained()
    assert refused.returncode == 2 and "something else than JAX's memory" in refused.stderr


MAPPED = """
import jax, jax.numpy as jnp

step = jax.pmap(lambda w, x: w - jax.lax.pmean(x * w, "devices"), axis_name="devices")
w = x = jnp.ones((jax.local_device_count(), 64, 1 << 20))
for _ in range(2):
    w = jax.block_until_ready(step(w, x))
print(w.shape, [len(device.memory_stats()) > 0 for device in jax.local_devices()])
"""


@with_jax
def test_pmap_runs_over_the_gpus_of_a_process(oomph):
    run = oomph(MAPPED, gpu="t4:2")
    assert run.status == 0, run.err
    assert run.out.startswith("(2, 64, 1048576) [True, True]"), run.out
    assert run.json["verdict"] == "fits"


# XLA copies the numbers of the loop's passes from a variable of the program's module, and asks on which GPU it is.
MAPS = """
import jax, jax.numpy as jnp

def loss(w, x, key):
    return (jnp.tanh(x @ w) + jax.random.normal(key, (512, 256))).sum()

run = jax.jit(lambda w, x, keys: jax.lax.map(lambda key: loss(w, x, key), keys))
print(run(jnp.ones((256, 256)), jnp.ones((512, 256)), jax.random.split(jax.random.key(0), 4)).shape)
"""
# Of a program that is one call of cuBLAS, XLA does not know how much it moves.
MULTIPLIES = """
import jax
x = jax.numpy.ones((4, 4096, 1024))
print((x[0] @ x[0].T)[0, :4].shape)
"""


@with_jax
@pytest.mark.parametrize("script", [MAPS, MULTIPLIES], ids=["constants", "one product"])
def test_programs_that_have_ended_a_run(oomph, script):
    run = oomph(script)
    assert run.status == 0 and run.out.startswith("(4,)"), run.err
    assert run.json["verdict"] == "fits"


RUNS_OUT = """
import jax
import jax.numpy as jnp

def fill():
    return jax.block_until_ready(jnp.ones((20, 1 << 30)))

"""


@with_jax
@pytest.mark.parametrize(
    ("end", "line"),
    [
        ("fill()", 6),
        ("try:\n    fill()\nexcept Exception as e:\n    print(str(e)[:18])", 6),
        # Nobody waits for it.
        ("kept = jnp.ones((20, 1 << 30))", None),
    ],
    ids=["raised", "caught", "kept"],
)
def test_out_of_memory_in_jax_has_its_line(oomph, end, line):
    run = oomph(RUNS_OUT + end)
    assert run.status == 3, run.err
    assert run.json["verdict"] == "out_of_memory"
    location = run.json["oom"]["location"]
    assert location is None if line is None else location.endswith(f"script.py:{line}")
    assert run.json["oom"]["requested_bytes"] == 80 * GIB
    assert "one request asked for 80.0 GiB" in run.out


@with_jax
def test_a_fall_back_to_the_cpu_fails_the_run(oomph):
    run = oomph("import jax\njax.numpy.ones(1)\nprint('went on')", env={"JAX_PLATFORMS": "cpu"})
    assert run.status == 2 and "went on" not in run.out
    assert run.err.splitlines()[-1].startswith("error: JAX_PLATFORMS=cpu keeps JAX from the GPU")


@with_jax
def test_a_plan_sets_the_environment_of_jax_and_changes_of_the_script_have_bytes(oomph, tmp_path):
    plan = 'format = "oomph.plan/1"\n[[lever]]\nname = "jax_settings"\nthousandths = 900\n'
    (tmp_path / "plan.toml").write_text(
        plan + 'flags = ["--xla_gpu_memory_limit_slop_factor=60"]\n'
    )
    flags = "import os\nprint(os.environ['XLA_FLAGS'])\n"
    run = oomph(flags + TRAINS, "--plan", str(tmp_path / "plan.toml"))
    assert run.status == 0, run.err
    assert "slop_factor=60" in run.out
    total, limit = run.json["gpu"]["memory_bytes"], run.json["framework"]["limit_bytes"]
    assert abs(limit / total - 0.9) < 1e-3
    advice = {one["what"].split()[0]: one for one in run.json["framework"]["advice"]}
    # `w`, which the call replaces, and the product of 8192 by 4096, which the backward pass keeps.
    assert advice["donate"]["bytes"] == 64 << 20
    assert advice["donate"]["location"].endswith("script.py:12")
    assert advice["jax.checkpoint"]["location"].endswith("script.py:8")
    assert "8192 samples of x" in advice["half"]["what"]


def test_settings_of_jax_are_refused_by_a_script_that_uses_pytorch(oomph, tmp_path):
    plan = 'format = "oomph.plan/1"\n[[lever]]\nname = "jax_settings"\nthousandths = 900\n'
    (tmp_path / "plan.toml").write_text(plan)
    run = oomph("import torch\ntorch.zeros(1).cuda()", "--plan", str(tmp_path / "plan.toml"))
    assert run.status == 2
    assert "it is for scripts that use JAX" in run.json["failure"]
