"""What the files of jobs share. A job is a generator function: it sets up, and yields after each of its steps.

python SUBJECT.py JOB                    one JSON line with the allocator's peaks (keys of ../cases.py)
python SUBJECT.py --list                 every job and the environment that it needs, as JSON lines
JOBS_SMALL=1 python SUBJECT.py [JOB…]    tiny sizes on the CPU: finds mistakes in a job without a GPU
"""

import ctypes
import json
import os
import sys
import time
import traceback

import torch

small = bool(os.environ.get("JOBS_SMALL"))
device = "cpu" if small else "cuda"
JOBS = {}

if small:
    import small_cuda  # noqa: F401


def pick(full, tiny):
    """The size on a GPU, or the one for a try on the CPU."""
    return tiny if small else full


def job(sync=True, **env):
    """Registers a job. `env` is set before PyTorch is imported; `sync` waits for the GPU after each step."""

    def register(function):
        JOBS[function.__name__] = (function, sync, env)
        return function

    return register


def mempool():
    """Figures of the device's memory pool, which `backend:cudaMallocAsync` allocates from; bytes."""
    cuda, pool, value = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    if cuda.cuDeviceGetMemPool(ctypes.byref(pool), 0):
        return None
    names = ("release_threshold", "reserved", "reserved_high", "used", "used_high")
    found = {}
    for attribute, name in enumerate(names, 4):
        cuda.cuMemPoolGetAttribute(pool, attribute, ctypes.byref(value))
        found[name] = value.value
    return found


def run(name):
    """Runs one job on the GPU; its record."""
    function, sync, env = JOBS[name]
    torch.manual_seed(0)
    total = torch.cuda.mem_get_info()[1]
    out = dict(
        case=name,
        torch=torch.__version__,
        gpu=torch.cuda.get_device_name(0),
        cap_gib=None,
        oom=False,
        env=env,
    )
    times = []
    try:
        steps = function()
        while True:
            began = time.perf_counter()
            if next(steps, "end") == "end":
                break
            if sync:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
    except torch.OutOfMemoryError as error:
        out.update(oom=True, oom_message=str(error))
    except Exception:
        out["error"] = traceback.format_exc()[-2000:]
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    free = torch.cuda.mem_get_info()[0]
    out.update(
        max_allocated=torch.cuda.max_memory_allocated(),
        max_reserved=torch.cuda.max_memory_reserved(),
        max_requested=stats.get("requested_bytes.all.peak"),
        allocated=torch.cuda.memory_allocated(),
        reserved=torch.cuda.memory_reserved(),
        num_alloc_retries=stats.get("num_alloc_retries"),
        num_ooms=stats.get("num_ooms"),
        n_allocs=stats.get("allocation.all.allocated"),
        n_segments=stats.get("num_device_alloc"),
        total=total,
        used_outside=total - free - torch.cuda.memory_reserved(),
        step_s=times,
    )
    if torch.cuda.get_allocator_backend() != "native":
        out.update(memory_stats={k: v for k, v in stats.items() if v}, mempool=mempool())
    return out


def main():
    """The command line of a file of jobs."""
    names = sys.argv[1:]
    if names == ["--list"]:
        for name, (_, sync, env) in JOBS.items():
            print(json.dumps(dict(case=name, sync=sync, env=env)))
        return
    if small:
        failed = 0
        for name in names or JOBS:
            torch.manual_seed(0)
            began = time.perf_counter()
            try:
                steps = sum(1 for _ in JOBS[name][0]())
                print(f"{name}: {steps} steps, {time.perf_counter() - began:.1f} s", flush=True)
            except Exception:
                failed += 1
                print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
        sys.exit(1 if failed else 0)
    (name,) = names
    unset = {k: v for k, v in JOBS[name][2].items() if os.environ.get(k) != v}
    if unset:
        sys.exit(f"{name} needs the environment " + " ".join(f"{k}={v}" for k, v in unset.items()))
    out = run(name)
    print(json.dumps(out), flush=True)
    # No teardown: what a job leaves behind is of no interest, and some takes seconds to end.
    os._exit(1 if "error" in out else 0)
