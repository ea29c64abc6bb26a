"""The virtual GPU behind PyTorch's own interface, and the symbols it must define."""

import glob
import json
import os
import re
import subprocess

import oomph
import torch

from tests.support.command import OOMPH, ROOT

LIBRARY = os.path.join(os.path.dirname(oomph.__file__), "_vgpu", "libcuda.so.1")
FAMILIES = re.compile(
    r"^(cuda[A-Z]|__cuda|cu[A-Z]|cublas|cudnn|cusparse|cusolver|cufft|curand|nccl|nvrtc|cuFile|cupti|nvshmem)"
)


def symbols(path, *options):
    out = subprocess.run(
        ["nm", "-D", *options, path], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines() if line.split()}


def test_every_cuda_function_that_the_wheel_needs_is_defined():
    libraries = glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "*.so"))
    needed = set().union(*(symbols(path, "--undefined-only") for path in libraries))
    needed = {name for name in needed if FAMILIES.match(name)}
    defined = symbols(LIBRARY, "--defined-only")
    assert len(needed) > 600
    assert not needed - defined, f"missing: {sorted(needed - defined)}"


ASKS = """
    import ctypes, torch
    kept = torch.ones(1 << 28, device="cuda")
    if kept.sum() > 5 or kept.mean() > 5 or kept.max() > 5 or kept.std() > 5:
        pass
    at, status = ctypes.c_void_p(1), ctypes.c_int()
    driver, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
    out = ctypes.byref(at), 12000, ctypes.c_uint64(0), ctypes.byref(status)
    assert driver.cuGetProcAddress_v2(b"cuNobodyHasThis", *out) == 0 and (at.value, status.value) == (None, 1)
    assert runtime.cudaGetDriverEntryPointByVersion(b"cuNorThis", *out) == 0 and not at.value
    assert driver.cuGetProcAddress_v2(b"cuMemAlloc", *out) == 0 and at.value and status.value == 0
    print("went on", hasattr(driver, "cuNorAnyOther"))
    [driver.cuGetProcAddress_v2(b"cuAll%d" % of, *out) for of in range(MANY)]
"""


def test_a_function_that_is_not_there_is_named_at_the_end_of_the_run(oomph):
    """It stood below the first three assumptions, which are all that is shown, and not at all where PyTorch runs."""
    run = oomph(ASKS.replace("MANY", "0"))
    assert run.status == 0 and "went on False" in run.out, run.err
    said = "the virtual GPU lacks functions that the script asked for: cuNobodyHasThis, cuNorAnyOther, cuNorThis"
    assert said in " ".join(run.out.split())
    assert run.json["assumptions"][0]["what"] == said
    # NVIDIA's bindings for Python ask for all that there is when they are imported.
    run = oomph(ASKS.replace("MANY", "40"))
    assert run.json["assumptions"][0]["what"].endswith("asked for: cuNorAnyOther")


def test_what_pytorch_asks_the_driver_for_ahead_is_lacking_only_where_it_is_called(oomph):
    """It asks for all that it knows of the driver when memory runs out, and each job that did not fit was said to lack eight functions."""
    run = oomph("import torch; torch.empty(1 << 40, device='cuda')")
    assert run.status == 3 and not run.json["assumptions"], run.out
    run = oomph("""
        import ctypes, torch
        torch.ones(1, device="cuda")
        print("said", ctypes.CDLL("libcuda.so.1").cuMulticastCreate(None, None))
    """)
    assert "said 801" in run.out, run.err
    assert run.json["assumptions"][0]["what"].endswith("asked for: cuMulticastCreate")


def test_a_product_of_halves_is_the_virtual_gpus(oomph):
    """vLLM's kernels are linked to it. The installed library would look behind the handle."""
    run = oomph("""
        import ctypes, torch
        handle = ctypes.c_uint64(torch.cuda.current_blas_handle())
        cublas = ctypes.CDLL(f"libcublas.so.{torch.version.cuda.split('.')[0]}")
        print("said", cublas.cublasHgemm(handle, 0, 0, 4, 4, 4, None, None, 4, None, 4, None, None, 4))
    """)
    assert run.status == 0 and "said 0" in run.out, run.err


def test_a_140_gib_job_needs_no_memory_here(oomph):
    run = oomph(
        """
        import resource, torch
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        blocks = [torch.empty(7 << 30, dtype=torch.uint8, device="cuda") for _ in range(17)]
        copies = torch.cat(blocks[:1]) + 1
        del copies
        assert torch.cuda.memory_allocated() == 119 << 30
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print("grown", grown)
        assert grown < 300_000, grown
        """,
        gpu="h200",
    )
    assert run.status == 0, run.err


def test_memory_streams_events_graphs_and_pools(oomph):
    run = oomph("""
        import torch
        free, total = torch.cuda.mem_get_info()
        x = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        assert free - torch.cuda.mem_get_info()[0] >= 300 << 20
        del x; torch.cuda.empty_cache()
        stream = torch.cuda.Stream()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            begin.record(); y = torch.ones(1000, device="cuda") * 2; end.record()
        end.synchronize()
        assert begin.elapsed_time(end) > 0 and stream.query()
        graph, static = torch.cuda.CUDAGraph(), torch.zeros(1 << 20, device="cuda")
        with torch.cuda.graph(graph):
            out = static * 2 + 1
        graph.replay()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            z = torch.empty(1 << 22, device="cuda")
        pinned = torch.zeros(1 << 20, pin_memory=True)
        assert pinned.is_pinned() and not torch.zeros(4).is_pinned()
        assert torch.cuda.get_device_properties(0).multi_processor_count > 0
        print("all well")
    """)
    assert "all well" in run.out, run.err


def test_expandable_segments(oomph):
    code = """
        import torch
        blocks = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
        del blocks[::2]
        big = torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
        segments = torch.cuda.memory_snapshot()
        print("expandable", all(s["is_expandable"] for s in segments if s["segment_type"] == "large"))
    """
    run = oomph(code, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert "expandable True" in run.out, run.err
    assert oomph(code).status == 0


def test_a_forked_child_is_told_that_cuda_is_gone(oomph):
    run = oomph("""
        import os, torch
        torch.zeros(1, device="cuda")
        pid = os.fork()
        if pid == 0:
            try:
                torch.zeros(1, device="cuda")
            except RuntimeError as error:
                os.write(1, b"refused: " + str(error)[:60].encode())
            os.kill(os.getpid(), 9)
        os.waitpid(pid, 0)
    """)
    assert "refused: Cannot re-initialize CUDA in forked subprocess" in run.out, run.err


def test_recurrent_layers_take_what_they_take_on_a_real_gpu(tmp_path):
    """Work and reserve spaces of random layers, packed sequences among them, within the bytes by
    which cuDNN aligns its parts."""
    bench = os.path.join(ROOT, "bench", "gpu")
    out = tmp_path / "virtual.jsonl"
    words = [
        OOMPH,
        "run",
        "--gpu",
        "h200",
        "--quiet",
        "--out",
        tmp_path / "run",
    ]
    subprocess.run([*words, os.path.join(bench, "recurrent.py"), out, "80"], check=True)
    with open(os.path.join(bench, "results", "h200_recurrent.jsonl")) as real, open(out) as virtual:
        pairs = list(zip(map(json.loads, real), map(json.loads, virtual), strict=False))
    assert len(pairs) == 80
    for measured, found in pairs:
        for what in ("forward", "kept", "backward"):
            assert abs(measured[what] - found[what]) <= 256, (measured, found)
