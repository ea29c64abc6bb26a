"""The backend cudaMallocAsync, call by call: `python malloc_async.py OUT.jsonl`.

A fixed sequence of allocations and frees of many sizes. After each: torch's statistics, the driver's free memory,
the pool's figures (reserved and used, now and highest), the address. Then other streams, emptied caches, a release
threshold, CUDA graphs, a fraction of the device and the message when memory is out.
"""

import ctypes
import json
import os
import sys
import time

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"

import torch

cuda = torch.cuda
driver = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20
# CUmemPool_attribute
NAMES = {
    1: "reuse_event_dependencies",
    2: "reuse_opportunistic",
    3: "reuse_internal_dependencies",
    4: "release_threshold",
    5: "reserved",
    6: "reserved_high",
    7: "used",
    8: "used_high",
}


def pool_handle():
    pool = ctypes.c_void_p()
    assert driver.cuDeviceGetMemPool(ctypes.byref(pool), 0) == 0
    return pool


def pool_figures():
    found, pool = {}, pool_handle()
    for attribute, name in NAMES.items():
        value = ctypes.c_uint64() if attribute > 3 else ctypes.c_int()
        status = driver.cuMemPoolGetAttribute(pool, attribute, ctypes.byref(value))
        found[name] = value.value if status == 0 else f"error {status}"
    return found


def main():
    file = open(sys.argv[1], "w")
    held = {}

    def note(what, **more):
        """One line: what was just done, and all figures after it."""
        free, total = cuda.mem_get_info()
        stats = {k: v for k, v in cuda.memory_stats().items() if v}
        line = dict(what=what, **more, free=free, total=total, pool=pool_figures(), stats=stats)
        file.write(json.dumps(line) + "\n")
        file.flush()

    def allocate(key, size):
        held[key] = torch.empty(size, dtype=torch.uint8, device="cuda")
        note("allocate", key=key, size=size, address=held[key].data_ptr())

    def release(key):
        del held[key]
        note("free", key=key)

    def wait():
        cuda.synchronize()
        note("synchronize")

    def section(name):
        held.clear()
        cuda.synchronize()
        cuda.empty_cache()
        cuda.reset_peak_memory_stats()
        note("section", name=name)

    cuda.init()
    cuda.mem_get_info()
    note("begin", backend=cuda.get_allocator_backend(), torch=torch.__version__)

    section("sizes, each alone and freed")
    sizes = [1, 256, 511, 512, 513, 1000, 4096, 65535, 65536, 65537, MIB - 1, MIB, MIB + 1]
    sizes += [n * MIB for n in (2, 3, 5, 10, 20, 31, 32, 33, 64, 100, 257, 1000, 3000)]
    for i, size in enumerate(sizes):
        allocate(f"alone{i}", size)
        release(f"alone{i}")
    wait()

    section("sizes, all held")
    for i, size in enumerate(sizes):
        allocate(f"held{i}", size)
    for i in list(range(0, len(sizes), 2)) + list(range(1, len(sizes), 2)):
        release(f"held{i}")
    wait()
    cuda.empty_cache()
    note("empty_cache")

    section("many small ones")
    for i in range(40):
        allocate(f"small{i}", 300 * 1024)
    for i in range(0, 40, 2):
        release(f"small{i}")
    for i in range(10):
        allocate(f"again{i}", 300 * 1024)
    allocate("between", 600 * 1024)

    section("reuse without synchronizing: smaller, equal, larger, split, joined")
    for key, size in (("a", 100), ("b", 100), ("c", 100), ("d", 100)):
        allocate(key, size * MIB)
    release("b")
    allocate("smaller", 40 * MIB)
    allocate("rest", 60 * MIB)
    release("smaller")
    release("rest")
    allocate("equal", 100 * MIB)
    release("equal")
    release("c")
    allocate("joined", 200 * MIB)
    release("joined")
    allocate("larger", 201 * MIB)
    release("a")
    allocate("after", 90 * MIB)
    wait()
    allocate("after_wait", 10 * MIB)
    wait()

    section("release threshold of 1 GiB and of none")
    for threshold in (1 << 30, 0, (1 << 64) - 1):
        value = ctypes.c_uint64(threshold)
        status = driver.cuMemPoolSetAttribute(pool_handle(), 4, ctypes.byref(value))
        note("set release_threshold", threshold=threshold, status=status)
        for i in range(4):
            allocate(f"t{i}", 512 * MIB)
        for i in range(4):
            release(f"t{i}")
        wait()
        allocate("one", 16 * MIB)
        wait()
        release("one")
        wait()
    cuda.empty_cache()
    note("empty_cache")

    section("a second stream")
    side = cuda.Stream()
    allocate("on_first", 256 * MIB)
    release("on_first")
    with cuda.stream(side):
        allocate("on_side", 256 * MIB)
    release("on_side")
    allocate("first_again", 256 * MIB)
    held["first_again"].record_stream(side)
    release("first_again")
    allocate("after_record", 256 * MIB)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        allocate("side_after_wait", 256 * MIB)
    wait()

    section("busy stream: frees that are late")
    a = torch.randn(8192, 8192, device="cuda")
    note("matrix")
    for i in range(6):
        b = a @ a
        note("product", i=i, address=b.data_ptr())
        del b
    with cuda.stream(side):
        allocate("side_while_busy", 256 * MIB)
    wait()
    del a

    section("training: a few layers, six steps")
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    note("model")
    for i in range(6):
        loss = model(torch.randn(4096 + 512 * (i % 3), 2048, device="cuda")).pow(2).mean()
        note("forward", i=i)
        optimizer.zero_grad()
        loss.backward()
        note("backward", i=i)
        optimizer.step()
        note("step", i=i)
        if i == 3:
            wait()
    del model, optimizer, loss

    section("CUDA graph")
    try:
        x = torch.randn(4096, 4096, device="cuda")
        graph = cuda.CUDAGraph()
        x @ x
        cuda.synchronize()
        with cuda.graph(graph):
            y = (x @ x).relu() @ x
        note("captured")
        graph.replay()
        wait()
        del graph, x, y
        note("graph freed")
    except Exception as error:
        note("graph failed", error=str(error)[:500])

    section("fraction of 10 %, and out of memory under it")
    cuda.set_per_process_memory_fraction(0.1)
    note("fraction")
    try:
        for i in range(40):
            allocate(f"under{i}", 700 * MIB)
    except torch.OutOfMemoryError as error:
        note("out of memory", message=str(error))
    held.clear()
    cuda.set_per_process_memory_fraction(1.0)

    section("out of memory of the device")
    total = cuda.mem_get_info()[1]
    try:
        allocate("too_much", total + (1 << 30))
    except torch.OutOfMemoryError as error:
        note("out of memory", message=str(error))
    try:
        allocate("most", int(total * 0.6))
        allocate("too_much", int(total * 0.6))
    except torch.OutOfMemoryError as error:
        note("out of memory", message=str(error))
    for call in ("memory_snapshot", "memory_summary"):
        try:
            note(call, result=str(getattr(cuda, call)())[:3000])
        except Exception as error:
            note(call, error=f"{type(error).__name__}: {error}"[:500])
    for name in ("_record_memory_history", "_snapshot"):
        try:
            note(name, result=str(getattr(cuda.memory, name)())[:500])
        except Exception as error:
            note(name, error=f"{type(error).__name__}: {error}"[:500])
    section("end")
    note("end", seconds=time.process_time())
    file.close()
    os._exit(0)


if __name__ == "__main__":
    main()
