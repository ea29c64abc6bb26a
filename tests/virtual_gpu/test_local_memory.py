"""Kernels whose threads need more stack than a context gives them: the device pays for all threads that it can hold."""

import json
import subprocess
from pathlib import Path

import triton

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "bench/gpu/results/h200_local_memory.jsonl"
PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry deep(.param .u64 out, .param .u32 at) {{
    .local .align 16 .b8 here[{bytes}];
    .reg .b32 %at;
    .reg .b64 %out, %where;
    ld.param.u64 %out, [out];
    ld.param.u32 %at, [at];
    mov.u64 %where, here;
    cvt.u64.u32 %out, %at;
    add.u64 %where, %where, %out;
    st.local.u32 [%where], %at;
    ld.local.u32 %at, [%where+4];
    ld.param.u64 %out, [out];
    st.global.u32 [%out], %at;
    ret;
}}
"""
LAUNCHED = """
import ctypes, sys, torch
cuda = ctypes.CDLL("libcuda.so.1")
torch.cuda.init()
torch.cuda.current_stream().synchronize()
limit = ctypes.c_size_t()
def launch(path):
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert not cuda.cuModuleLoadData(ctypes.byref(module), open(path, "rb").read())
    assert not cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"deep")
    return cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
launch(sys.argv[1])
for path in sys.argv[2:]:
    before = torch.cuda.mem_get_info()[0]
    status = launch(path)
    cuda.cuCtxGetLimit(ctypes.byref(limit), 0)
    print("launched", status, before - torch.cuda.mem_get_info()[0], limit.value)
"""


def compiled(folder, *sizes):
    """Machine code of kernels with so many bytes of stack."""
    for size in sizes:
        source = folder / f"{size}.ptx"
        source.write_text(PTX.format(bytes=size))
        subprocess.run([PTXAS, "-arch=sm_90", source, "-o", folder / f"{size}.cubin"], check=True)
    return [str(folder / f"{size}.cubin") for size in sizes]


def launched(run):
    lines = [line.split()[1:] for line in run.out.splitlines() if line.startswith("launched")]
    return [tuple(map(int, line)) for line in lines]


def test_an_h200_takes_as_much_for_deeper_stacks(oomph, tmp_path):
    row = json.loads(MEASURED.read_text().splitlines()[1])
    sizes = row["local_size_bytes"][1:-1]
    run = oomph(LAUNCHED, args=compiled(tmp_path, 16, *sizes), gpu="h200")
    assert run.status == 0, run.err
    taken = row["taken"][3:-1:2]
    deepest = [max(1024, *sizes[: number + 1]) for number in range(len(sizes))]
    assert launched(run) == [(0, took, deep) for took, deep in zip(taken, deepest)]


def test_a_launch_without_room_for_its_stacks_is_refused(oomph, tmp_path):
    kernels = compiled(tmp_path, 16, 40_000, 2_048)
    run = oomph(LAUNCHED, "--memory", "8GiB", args=kernels, gpu="h200")
    assert run.status == 0, run.err
    assert [(status, limit) for status, _, limit in launched(run)] == [(2, 1024), (0, 2048)]
