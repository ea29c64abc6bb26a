"""Scripts that use TensorFlow and Keras, and not torch. Most need it: `requirements.txt` does not install it."""

import importlib.util
import subprocess

import pytest

GIB = 1 << 30

with_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason='TensorFlow is not installed: pip install "tensorflow[and-cuda]"',
)

FIT = """
import keras, numpy as np, tensorflow as tf
GROWTH
model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(4096, activation="relu"), keras.layers.Dense(10)])
model.compile("adam", "mse")
model.fit(np.zeros((512, 1024), "float32"), np.zeros((512, 10), "float32"), batch_size=256, verbose=0)
print("memory", tf.config.experimental.get_memory_info("GPU:0"))
"""
GROWTH = "for gpu in tf.config.list_physical_devices('GPU'): tf.config.experimental.set_memory_growth(gpu, True)"


@with_tensorflow
@pytest.mark.parametrize("growth", ["", GROWTH], ids=["in advance", "growing"])
def test_keras_trains_on_the_virtual_gpu(oomph, growth):
    run = oomph(FIT.replace("GROWTH", growth))
    assert run.status == 0, run.err
    peak, framework = run.json["peak"], run.json["framework"]
    assert (framework["name"], framework["preallocates"]) == ("tensorflow", not growth)
    assert f"'peak': {peak['allocated_bytes']}" in run.out
    # Weights, gradients and Adam's two moments.
    assert peak["allocated_bytes"] > 4 * 4 * (1024 * 4096 + 4096 * 10)
    usable = run.json["gpu"]["memory_bytes"]
    if growth:
        assert peak["reserved_bytes"] < 2 * GIB
    else:
        # All that is free but 1.5 GiB.
        assert usable - 3 * GIB < peak["reserved_bytes"] < usable - 1.5 * GIB
    assert any("no GPU has measured TensorFlow" in one["what"] for one in run.json["assumptions"])


@with_tensorflow
def test_tensorflow_on_the_cpu_is_no_run(oomph):
    run = oomph(FIT.replace("GROWTH", "tf.config.set_visible_devices([], 'GPU')"))
    assert run.status == 2 and "fell back to the CPU" in run.err


CONTEXT = """
class Context:
    _initialized = False
    def ensure_initialized(self): self._initialized = True
    def list_logical_devices(self, kind): return []

_context = Context()
def context_safe(): return _context
"""


def stand_in(directory, package, is_cuda_build=False):
    """A package that is called TensorFlow and finds no GPU, of one of the names that it has on PyPI."""
    for name, text in {
        "__init__.py": "from tensorflow.python.eager import context\n",
        "python/__init__.py": "",
        "python/eager/__init__.py": "",
        "python/eager/context.py": "from tensorflow.python.framework import versions\nfrom tensorflow.python.platform import build_info\n" + CONTEXT,
        "python/framework/__init__.py": "",
        "python/framework/versions.py": "VERSION = '2.21.0'\n",
        "python/platform/__init__.py": "",
        "python/platform/build_info.py": f"build_info = {{'is_cuda_build': {is_cuda_build}}}\n",
    }.items():  # fmt: skip
        place = directory / "tensorflow" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    installed(directory, package, "2.21.0")


def installed(directory, package, version):
    info = directory / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


OPENS = "import tensorflow\ntensorflow.context._context.ensure_initialized()\nprint('went on')\n"


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("tensorflow", 'Install: pip install "tensorflow[and-cuda]==2.21.0"'),
        ("tensorflow-cpu", "pip uninstall tensorflow-cpu, then pip install"),
        ("tf-nightly-cpu", 'Install: pip install "tensorflow[and-cuda]==2.21.0"'),
    ],
)
def test_a_tensorflow_without_kernels_for_gpus_is_refused_in_a_line(oomph, tmp_path, package, said):
    stand_in(tmp_path, package)
    run = oomph(OPENS)
    assert run.status == 2, run.err
    [line] = run.err.splitlines()
    assert "tensorflow 2.21.0 in" in line and "computes on the CPU alone" in line and said in line
    assert "went on" not in run.out


def test_a_tensorflow_that_finds_no_libraries_is_told_where_they_are(oomph, tmp_path):
    """In words that a shell takes."""
    stand_in(tmp_path, "tensorflow", is_cuda_build=True)
    for name in ("cublas", "cuda-runtime", "cudnn", "cufft", "cusolver", "cusparse", "cuda-nvcc"):
        installed(tmp_path, f"nvidia-{name}-cu12", "12.9")
        (tmp_path / "nvidia" / name / "lib").mkdir(parents=True)
    run = oomph(OPENS)
    assert run.status == 2, run.err
    [line] = run.err.splitlines()
    variable = "echo " + line.partition("export LD_LIBRARY_PATH=")[2].rstrip(".")
    said = subprocess.run(variable, shell=True, capture_output=True, text=True, check=True).stdout
    places = said.strip().rstrip(":").split(":")
    assert str(tmp_path / "nvidia" / "cudnn" / "lib") in places and len(places) == 7, said


# TensorFlow as far as it has a pool that is taken when it opens the GPU: all that is free but 1 GiB, or as much as it is told.
POOL = """
import ctypes
import os

gpu, place = ctypes.CDLL(None), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
class Device:
    name = "GPU:0"

device = Device()

class LogicalDeviceConfiguration:
    def __init__(self, memory_limit):
        self.memory_limit = memory_limit

class ResourceExhaustedError(Exception):
    pass

class Context:
    _initialized, _virtual_device_map, held, peak = False, {}, 0, 0

    def ensure_initialized(self):
        if self._initialized:
            return
        self._initialized = True
        gpu.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        told = self._virtual_device_map.get(device)
        self.limit = told[0].memory_limit << 20 if told else free.value - (1 << 30)
        self.grows = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") == "true"
        if not self.grows:
            self.give(self.limit)

    def give(self, size):
        assert gpu.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(size)) == 0

    def list_physical_devices(self, kind):
        return [device]

    def list_logical_devices(self, kind):
        return [device]

    def take(self, size):
        self.ensure_initialized()
        if self.held + size > self.limit:
            raise ResourceExhaustedError("failed to allocate memory [Op:Mul] name: ")
        if self.grows:
            self.give(size)
        self.held += size
        self.peak = max(self.peak, self.held)

_context = Context()

def context_safe():
    return _context
"""

POOL_ABOUT = """
from tensorflow.python.eager import context as c

def get_visible_devices(kind): return [c.device]
def get_memory_info(name): return {"current": c._context.held, "peak": c._context.peak}
def get_memory_growth(device): return False
def get_device_details(device): return {"device_name": "the GPU"}
"""

TAKES = """
import tensorflow
from tensorflow.python.framework import config

for _ in range(NUMBER):
    tensorflow.context._context.take(1 << 30)
"""


def test_without_a_limit_tensorflows_pool_grows_beyond_the_gpu(oomph, tmp_path):
    """It took what the GPU has again, ran out again, and nothing said how much was needed."""
    stand_in(tmp_path, "tensorflow", is_cuda_build=True)
    place = tmp_path / "tensorflow" / "python"
    (place / "eager" / "context.py").write_text(
        POOL + "from tensorflow.python.framework import versions\n"
    )
    (place / "framework" / "config.py").write_text(POOL_ABOUT)
    run = oomph(TAKES.replace("NUMBER", "40"))
    assert run.status == 3, run.err
    peak = run.json["peak"]
    assert peak["allocated_bytes"] == 40 * GIB and not peak["lower_bound"]
    # With what TensorFlow leaves to others, and the context.
    assert 41 * GIB < peak["used_bytes"] < 42 * GIB
    assert "too much" in run.out and "asked for 0 B" not in run.out, run.out
    run = oomph(TAKES.replace("NUMBER", "40"), "--no-measure")
    assert run.status == 3 and "one request failed, with up to" in run.out, run.out
    # A limit of the script's own is the most that TensorFlow may have; it was said to be the GPU.
    own = "c = tensorflow.context\nc._context._virtual_device_map[c.device] = [c.LogicalDeviceConfiguration(2048)]\nfor"
    run = oomph(TAKES.replace("NUMBER", "40").replace("for", own, 1), "--no-measure")
    assert (
        run.json["framework"]["limit_bytes"] == 2 * GIB
        and "2.0 GiB at most for TensorFlow" in run.out
    )
