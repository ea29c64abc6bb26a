"""ONNX Runtime on the virtual GPU, and what stands below it: functions asked of opened libraries.

The tests with sessions need `pip install onnxruntime-gpu onnx` (built for the CUDA of torch)."""

import importlib.util
import os

import pytest

from tests.support.forked import FORKS

OPENED = """
    import ctypes, torch
    torch.cuda.init()
    major = torch.version.cuda.split(".")[0]
    runtime, cudnn = (ctypes.CDLL(name) for name in (f"libcudart.so.{major}", "libcudnn.so.9"))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
    assert (free.value, total.value) == torch.cuda.mem_get_info()
    # As ONNX Runtime asks; the vendor's own answers 1001 without a driver.
    handle = ctypes.c_void_p()
    assert cudnn.cudnnCreate(ctypes.byref(handle)) == 0 and handle.value
    # What this library does not define, the opened one answers.
    assert cudnn.cudnnGetMaxDeviceVersion() > 0
    assert not hasattr(cudnn, "cudnnNoSuchFunction")
    # But not with a handle, which is none of its own: it would look behind it.
    assert cudnn.cudnnGetFilterSizeInBytes(handle, ctypes.byref(ctypes.c_size_t())) == 15
    at = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(300 << 20)) == 0
    # A pool of the program's own keeps what is freed, up to its threshold, and goes with all it holds.
    pool, one, keep = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(2**64 - 1)
    held = lambda: torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
    before = held()
    assert runtime.cudaMemPoolCreate(ctypes.byref(pool), None) == 0
    assert runtime.cudaMemPoolSetAttribute(pool, 4, ctypes.byref(keep)) == 0
    assert runtime.cudaMallocFromPoolAsync(ctypes.byref(one), ctypes.c_size_t(40 << 20), pool, None) == 0
    assert runtime.cudaFreeAsync(one, None) == 0
    print("kept", held() - before)
    assert runtime.cudaMemPoolDestroy(pool) == 0
    print("left", held() - before)
"""


def test_functions_of_opened_libraries_are_the_virtual_gpus(oomph):
    found = oomph(OPENED)
    assert found.status == 0, found.err
    assert f"kept {64 << 20}" in found.out and "left 0" in found.out
    # Nobody used PyTorch's allocator, and the memory counts.
    parts = found.json["by_category"]
    assert parts["outside_allocator"] >= 300 << 20
    held = parts["outside_allocator"] + parts["cuda_context"]
    assert found.json["peak"]["used_bytes"] == held and "not PyTorch's" in found.out


OTHERS = """
    import ctypes, torch
    torch.cuda.init()
    driver = ctypes.CDLL("libcuda.so.1")
    used = lambda: torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
    module, kernel, start = ctypes.c_void_p(), ctypes.c_void_p(), used()
    assert driver.cuModuleLoadData(ctypes.byref(module), b".version 9.0") == 0
    assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"plain") == 0
    for _ in range(2):
        assert driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None) == 0
    print("other", used() - start)
    x = torch.empty(8, device="cuda")
    print("none", used() - start)
    x.fill_(1)
    print("torch", used() - start)
"""


def test_kernels_that_are_not_pytorchs_do_not_cost_what_pytorchs_first_one_costs(oomph):
    found = oomph(OTHERS, gpu="h200")
    assert found.status == 0, found.err
    assert f"other {2 << 20}\nnone {2 << 20}\ntorch {92 << 20}" in found.out


STAND_IN = """
import ctypes

class InferenceSession:
    def __init__(self):
        self.runtime, self.held = ctypes.CDLL("libcudart.so.13"), []
    def get_providers(self):
        return ["CUDAExecutionProvider"]
    def run(self):
        for _ in range(3):
            self.held.append(ctypes.c_void_p())
            if self.runtime.cudaMalloc(ctypes.byref(self.held[-1]), ctypes.c_size_t(64 << 20)):
                raise RuntimeError("Failed to allocate memory for requested buffer of size 67108864")
        while self.held:
            self.runtime.cudaFree(self.held.pop())
"""


def test_what_a_session_lacks_is_said_though_pytorch_holds_nothing(oomph, tmp_path):
    module = tmp_path / "onnxruntime" / "capi" / "onnxruntime_inference_collection.py"
    module.parent.mkdir(parents=True)
    module.write_text(STAND_IN)
    for place in (module.parent, module.parent.parent):
        (place / "__init__.py").touch()
    found = oomph("""
        import torch
        torch.cuda.mem_get_info()
        from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
        session = InferenceSession()
        for _ in range(5):
            session.run()
    """, "--memory", "200MiB")  # fmt: skip
    assert found.status == 3, found.err
    # Three buffers and the context, which the limit leaves less room than they need.
    assert not found.json["peak"]["lower_bound"] and found.json["oom"]["short_bytes"] > 0


FALLS_BACK = """
class C:
    get_available_providers = staticmethod(lambda: [{available}"CPUExecutionProvider"])

class InferenceSession:
    def __init__(self, model, options=None, providers=None):
        print("Specified provider 'CUDAExecutionProvider' is not in available provider names")
    def get_providers(self):
        return ["CPUExecutionProvider"]
"""


@pytest.mark.parametrize(
    ("available", "said"),
    [
        ("", "computes on the CPU alone: it has no kernels for GPUs. Install onnxruntime-gpu"),
        ("'CUDAExecutionProvider', ", "could not use the GPU and computes on the CPU"),
    ],
)
def test_a_session_that_falls_back_to_the_cpu_fails_the_run(oomph, tmp_path, available, said):
    module = tmp_path / "onnxruntime" / "capi" / "onnxruntime_inference_collection.py"
    module.parent.mkdir(parents=True)
    module.write_text(FALLS_BACK.format(available=available))
    for place in (module.parent, module.parent.parent):
        (place / "__init__.py").touch()
    begin = "from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession\n"
    found = oomph(begin + "InferenceSession('m', providers=[('CUDAExecutionProvider', {})])")
    assert found.status == 1 and found.json["verdict"] == "script_failed"
    assert said in found.json["failure"] and "CUDA 13" in found.json["failure"]
    assert f"oomph: {found.json['failure'].removeprefix('Refused: ')}" in found.err
    found = oomph(begin + "InferenceSession('m', providers=['CPUExecutionProvider'])")
    assert found.status == 0, found.err


with_sessions = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("onnxruntime", "onnx")),
    reason="pip install onnxruntime-gpu onnx",
)

MODEL = """
    import numpy as np, onnx
    from onnx import TensorProto, helper, numpy_helper
    width, shape = 2048, ["n", 2048]
    weights = [numpy_helper.from_array(np.ones((width, width), "f4"), f"w{i}") for i in range(3)]
    nodes, at = [], "x"
    for i in range(3):
        nodes += [helper.make_node("MatMul", [at, f"w{i}"], [f"m{i}"]), helper.make_node("Relu", [f"m{i}"], [f"r{i}"])]
        at = f"r{i}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", at)]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    import onnxruntime
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        print("no provider for CUDA")
        raise SystemExit
    options = {"arena_extend_strategy": "kSameAsRequested"}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[("CUDAExecutionProvider", options)])
    for _ in range(3):
        (y,) = session.run(None, {"x": np.zeros((8192, width), "f4")})
    print(y.shape)
"""
WEIGHTS, ACTIVATIONS = 3 * 2048 * 2048 * 4, 8192 * 2048 * 4


@with_sessions
def test_a_session_takes_what_its_arena_asks_for(oomph):
    found = oomph(MODEL)
    assert found.status == 0, found.err
    if "no provider" in found.out:
        pytest.skip("onnxruntime without its provider for CUDA: pip install onnxruntime-gpu")
    held = found.json["by_category"]["outside_allocator"]
    # Its input and two products at a time; and a cuBLAS work space.
    least = WEIGHTS + 2 * ACTIVATIONS
    assert least <= held <= least + 2 * ACTIVATIONS + (64 << 20)
    assert found.json["step_count"] == 3 and found.json["peak"]["used_bytes"] > held
    assert any("ONNX Runtime" in found["what"] for found in found.json["assumptions"])


@with_sessions
def test_a_session_that_gets_no_memory_is_out_of_memory(oomph):
    found = oomph(MODEL, "--memory", "250MiB")
    if "no provider" in found.out:
        pytest.skip("onnxruntime without its provider for CUDA: pip install onnxruntime-gpu")
    assert found.status == 3, found.err
    assert found.json["verdict"] == "out_of_memory" and found.json["oom"]["short_bytes"] > 0
    assert found.json["oom"]["requested_bytes"] >= min(WEIGHTS // 3, ACTIVATIONS)
    assert os.path.basename(found.json["oom"]["location"]).startswith("script.py:")


ALONE = """
    import sys

    class NoTorch:
        def find_spec(self, name, *rest):
            if name == "torch":
                raise ModuleNotFoundError("No module named 'torch'", name=name)

    sys.meta_path.insert(0, NoTorch())
    import onnxruntime
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
"""


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """ONNX Runtime's stand-in, for scripts in which torch is not to be had."""
    monkeypatch.setenv(FORKS, "")
    module = tmp_path / "onnxruntime" / "capi" / "onnxruntime_inference_collection.py"
    module.parent.mkdir(parents=True)
    module.write_text(STAND_IN.replace('"libcudart.so.13"', "None"))
    (module.parent / "build_and_package_info.py").write_text("cuda_version = '13.0'\n")
    (module.parent / "__init__.py").touch()
    (module.parent.parent / "__init__.py").write_text(
        "from onnxruntime.capi.build_and_package_info import cuda_version\n__version__ = '1.31.1'\n"
    )
    return module


@pytest.mark.usefixtures("alone")
def test_onnx_runtime_without_pytorch_is_recorded(oomph):
    run = oomph(
        ALONE + "    session = InferenceSession()\n    for _ in range(4):\n        session.run()\n"
    )
    assert run.status == 0, run.err
    assert run.json["framework"]["name"] == "onnxruntime" and "onnxruntime 1.31.1" in run.out
    assert run.json["peak"]["allocated_bytes"] == 192 << 20 and "192.0 MiB in its arena" in run.out
    assert run.json["step_count"] == 4 and "ONNX Runtime's results are not computed" in run.out


@pytest.mark.usefixtures("alone")
def test_a_session_that_runs_out_is_run_without_a_limit_no_further_than_it_came(oomph):
    code = (
        ALONE
        + """
    import itertools
    session = InferenceSession()
    for number in itertools.count():
        print("pass", number, flush=True)
        session.run()
    """
    )
    run = oomph(code, "--memory", "250MiB")
    assert run.status == 3, run.err
    assert run.json["oom"]["requested_bytes"] == 64 << 20 and run.json["oom"]["location"].endswith(
        ":17"
    )
    assert run.json["oom"]["short_bytes"] > 0 and not run.json["peak"]["lower_bound"]


def test_a_session_without_pytorch_that_falls_back_to_the_cpu_ends_the_run_in_a_line(oomph, alone):
    alone.write_text(FALLS_BACK.format(available="'CUDAExecutionProvider', "))
    run = oomph(
        ALONE
        + "    InferenceSession('m', providers=['CUDAExecutionProvider'])\n    print('went on')\n"
    )
    assert run.status == 2 and "went on" not in run.out
    assert (
        "needs NVIDIA's libraries for CUDA 13" in run.err
        and "onnxruntime-gpu[cuda,cudnn]" in run.err
    )
