"""Scripts that use Numba's part for CUDA, and no framework. Numba itself is not among the packages of the tests, but for who installs it:
a stand-in asks the driver for memory as Numba does."""

import importlib.util

import pytest

GIB = 1 << 30

with_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None,
    reason="Numba is not installed: pip install numba-cuda",
)

DRIVER = """
import ctypes

gpu = ctypes.CDLL(None)

class CudaAPIError(Exception):
    pass

class _PendingDeallocs:
    def __init__(self):
        self.waiting = []

    def add_item(self, free, place, size=0):
        self.waiting.append((free, place))

    def clear(self):
        while self.waiting:
            free, place = self.waiting.pop()
            free(place)

def free(place):
    assert gpu.cuMemFree_v2(place) == 0

class NumbaCUDAMemoryManager:
    def __init__(self, context):
        self.context, self.deallocations = context, _PendingDeallocs()

    def memalloc(self, size):
        place = ctypes.c_uint64()
        status = gpu.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size))
        if status:
            raise CudaAPIError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY")
        return Array(self, place)

class Array:
    def __init__(self, manager, place):
        self.manager, self.device_pointer = manager, place

    def release(self):
        self.manager.deallocations.add_item(free, self.device_pointer)
"""

CUDA = """
from types import SimpleNamespace
from numba.cuda.cudadrv import driver

device = SimpleNamespace(id=0, name=b"the GPU")
context = driver.ctypes.c_void_p()
assert driver.gpu.cuInit(0) == 0 and driver.gpu.cuDevicePrimaryCtxRetain(driver.ctypes.byref(context), 0) == 0
assert driver.gpu.cuCtxSetCurrent(context) == 0
manager = driver.NumbaCUDAMemoryManager(SimpleNamespace(device=device))

def list_devices():
    return [device]
"""


@pytest.fixture
def numba(tmp_path, monkeypatch):
    """Numba as far as it asks for memory."""
    for name, text in {
        "numba/__init__.py": "__version__ = '0.68.1'\n",
        "numba/cuda/__init__.py": CUDA,
        "numba/cuda/cudadrv/__init__.py": "",
        "numba/cuda/cudadrv/driver.py": DRIVER,
    }.items():
        file = tmp_path / "packages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))


HOLDS = """
from numba import cuda

first = cuda.manager.memalloc(1 << 30)
second = cuda.manager.memalloc(1 << 29)
first.release()
third = cuda.manager.memalloc(1 << 29)
cuda.manager.deallocations.clear()
fourth = cuda.manager.memalloc(1 << 29)
"""


@pytest.mark.usefixtures("numba")
def test_arrays_of_numba_are_recorded(oomph):
    run = oomph(HOLDS)
    assert run.status == 0, run.err
    assert run.json["framework"]["name"] == "numba" and "numba 0.68.1" in run.out
    # The driver has what is freed until Numba gives it back: 2 GiB, of which 1.5 GiB are arrays.
    peak = run.json["peak"]
    assert peak["allocated_bytes"] == 3 * GIB // 2 and peak["reserved_bytes"] == 2 * GIB
    assert 2 * GIB < peak["used_bytes"] < 3 * GIB
    assert "peak 1.5 GiB in use" in run.out and "Numba's kernels do not run" in run.out


FULL = """
from numba import cuda

kept = []
for _ in range(20):
    kept.append(cuda.manager.memalloc(1 << 30))
"""


@pytest.mark.usefixtures("numba")
def test_out_of_memory_in_numba_has_its_line_and_says_how_much_is_needed(oomph):
    run = oomph(FULL)
    assert run.status == 3, run.err
    assert "out of memory (script.py:6)" in run.out and "peak needed 20." in run.out, run.out
    assert run.json["oom"]["requested_bytes"] == GIB, run.json["oom"]


@pytest.mark.usefixtures("numba")
def test_a_script_that_uses_numba_first_and_then_pytorch_is_one_of_pytorch(oomph):
    run = oomph(
        "from numba import cuda\nimport torch\nheld = torch.empty(1 << 28, device='cuda')\n"
    )
    assert run.status == 0 and not run.json.get("framework"), run.err
    assert run.json["peak"]["allocated_bytes"] == GIB


LAUNCHES = """
import ctypes
import torch

torch.cuda.init()
gpu, function = ctypes.CDLL(None), ctypes.c_uint64()
assert gpu.cuModuleGetFunction(ctypes.byref(function), None, b"kernel") == 0

def by_driver(grid, block, shared=0):
    return gpu.cuLaunchKernel(function, *map(ctypes.c_uint32, (*grid, *block, shared)), None, None, None)

class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32)]

def by_runtime(grid, block, shared=0):
    return gpu.cudaLaunchKernel(function, Dim3(*grid), Dim3(*block), None, ctypes.c_size_t(shared), None)

most = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
takes = [((1 << 20, 1, 1), (32, 32, 1)), ((1, 65535, 65535), (1, 1, 64)), ((1, 1, 1), (1, 1, 1), most)]
shapes = [((1, 1, 1), (4096, 1, 1)), ((1, 1, 1), (64, 32, 1)), ((1, 1, 1), (1, 1, 65)), ((1, 1 << 16, 1), (1, 1, 1)), ((0, 1, 1), (1, 1, 1))]
for launch in (by_driver, by_runtime):
    print(launch.__name__, "takes", [launch(*shape) for shape in takes])
    print("refuses", [launch(*shape) for shape in shapes], launch((1, 1, 1), (1, 1, 1), most + 1))
print("last", gpu.cudaGetLastError(), gpu.cudaGetLastError())
"""


def test_a_launch_that_no_gpu_takes_fails(oomph):
    run = oomph(LAUNCHES)
    lines = run.out.splitlines()
    # As CUDA says it: an invalid value to the driver, and of the runtime's an invalid configuration, if it is the shape.
    assert lines[:2] == ["by_driver takes [0, 0, 0]", "refuses [1, 1, 1, 1, 1] 1"], (
        run.out + run.err
    )
    assert lines[2:5] == ["by_runtime takes [0, 0, 0]", "refuses [9, 9, 9, 9, 9] 1", "last 1 0"], (
        run.out
    )


# What Numba without the package numba-cuda asks the driver for when it begins, and for streams and other processes.
ASKS = """
import ctypes

gpu = ctypes.CDLL("libcuda.so.1")

def find(name):
    for one in (name + "_v2", name):
        try:
            return getattr(gpu, one)
        except AttributeError:
            pass

assert find("cuInit")(0) == 0
for name in ("cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle", "cuStreamAddCallback", "cuOccupancyMaxPotentialBlockSizeWithFlags"):
    assert find(name), name
assert not find("cuNobodyHasThis")

from numba import cuda

kept = cuda.manager.memalloc(1 << 20)
kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
called = kind(lambda stream, status, data: print("called", status, data))
assert gpu.cuStreamAddCallback(None, called, ctypes.c_void_p(7), 0) == 0
handle = (ctypes.c_char * 64)()
assert gpu.cuIpcGetMemHandle(handle, kept.device_pointer) == 0 and gpu.cuIpcGetMemHandle(handle, None) != 0
"""


@pytest.mark.usefixtures("numba")
def test_numbas_own_binding_finds_what_it_asks_the_driver_for(oomph):
    """It ended with a TypeError of ctypes, and its second versions of functions were said to be missing."""
    run = oomph(ASKS)
    assert run.status == 0 and "called 0 7" in run.out, run.err
    [said] = [one["what"] for one in run.json["assumptions"] if "lacks functions" in one["what"]]
    assert said.endswith("asked for: cuNobodyHasThis, cuNobodyHasThis_v2"), said


REAL = """
import numpy as np
from numba import cuda

@cuda.jit
def add(x, out):
    at = cuda.grid(1)
    if at < out.size:
        out[at] += x[at]

x = cuda.to_device(np.ones(1 << 20, np.float32))
out = cuda.device_array(1 << 20, np.float32)
add[1 << 12, 256](x, out)
print("out", out.copy_to_host().shape)
try:
    add[1, 4096](x, out)
except Exception as error:
    print("refused", "INVALID_VALUE" in str(error))
"""


@with_numba
def test_kernels_of_numba_are_launched_as_far_as_a_gpu_would(oomph):
    run = oomph(REAL)
    assert run.status == 0 and "out (1048576,)" in run.out and "refused True" in run.out, run.err
    assert run.json["peak"]["allocated_bytes"] == 8 << 20


@pytest.mark.usefixtures("numba")
def test_what_numba_lacks_is_named_with_its_package(oomph, tmp_path):
    info = tmp_path / "packages" / "cuda_bindings-13.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cuda-bindings\nVersion: 13.2.0\n")
    run = oomph("from numba import cuda\nraise RuntimeError('Missing libdevice file.')\n")
    assert run.status == 1 and 'pip install "numba-cuda[cu13]"' in run.err, run.err


@pytest.mark.usefixtures("numba")
def test_numba_alone_is_told_which_package_compiles(oomph):
    """Its own words are of conda."""
    code = "from numba import cuda\nraise RuntimeError('libNVVM cannot be found. Do `conda install cudatoolkit`:\\nlibnvvm.so: cannot open shared object file')\n"
    run = oomph(code)
    assert run.status == 1 and "needs libNVVM" in run.err, run.err
    assert 'pip install "numba-cuda[cu13]"' in run.err
