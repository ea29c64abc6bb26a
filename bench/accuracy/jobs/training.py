"""What the files of jobs in this folder have in common: one job, trained or run, and the peaks that it has.

A job is a function that gives a dict: `build` (makes the model, a function that makes a batch, and one that
gives a batch's loss), `opt`, `amp`, and `steps` where they are not the usual ones. JOBS are trained; INFERENCE
is forward passes without a graph.

    python vision.py NAME [--steps N] [--snapshot FILE] [--cap GIB]    one JSON line with the allocator's own peaks
    python vision.py list                                              the names

The same file runs on a real GPU and on a virtual one.
"""

import argparse
import json
import os
import sys
import time


def make_opt(kind, m):
    import torch

    p = m.parameters()
    if kind == "sgd":
        return torch.optim.SGD(p, lr=1e-3, momentum=0.9)
    if kind == "adam":
        return torch.optim.Adam(p, lr=1e-4)
    if kind == "adamw":
        return torch.optim.AdamW(p, lr=1e-4)
    if kind == "adamw_fused":
        return torch.optim.AdamW(p, lr=1e-4, fused=True)
    if kind == "adafactor":
        return torch.optim.Adafactor(p, lr=1e-4)
    if kind == "rmsprop":
        return torch.optim.RMSprop(p, lr=1e-4, momentum=0.9, centered=True)
    raise ValueError(kind)


def run(name, jobs, inference=(), steps=3, snapshot=None, cap=None):
    """One line's worth of what job `name` takes."""
    import torch

    torch.manual_seed(0)
    free0, total = torch.cuda.mem_get_info()
    if cap:
        torch.cuda.set_per_process_memory_fraction(cap * 2**30 / total)
    if snapshot:
        torch.cuda.memory._record_memory_history(max_entries=2_000_000)
    out = dict(case=name, torch=torch.__version__, gpu=torch.cuda.get_device_name(0), cap_gib=cap)
    times = []
    try:
        if name in jobs:
            s = jobs[name]()
            m, batch, lossf = s["build"]()
            opt = make_opt(s["opt"], m)
            amp = {"bf16": torch.bfloat16, "fp16": torch.float16, None: None}[s["amp"]]
            scaler = torch.amp.GradScaler("cuda", enabled=amp is torch.float16)
            out["params"] = sum(p.numel() for p in m.parameters())
            for i in range(s.get("steps", steps)):
                torch.cuda.synchronize()
                t = time.perf_counter()
                with torch.autocast("cuda", dtype=amp or torch.bfloat16, enabled=amp is not None):
                    loss = lossf(batch())
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
                torch.cuda.synchronize()
                times.append(time.perf_counter() - t)
        else:
            s = inference[name]()
            m, batch, _ = s["build"]()
            m.eval()
            half = name.endswith("half")
            if half:
                m.half()
            out["params"] = sum(p.numel() for p in m.parameters())
            with torch.set_grad_enabled(name.endswith("_grad")):
                for i in range(steps):
                    torch.cuda.synchronize()
                    t = time.perf_counter()
                    b = batch()
                    b = b[0] if isinstance(b, tuple) else b
                    y = m(b.half() if half else b)
                    torch.cuda.synchronize()
                    times.append(time.perf_counter() - t)
                    del y
        out["oom"] = False
    except torch.OutOfMemoryError as e:
        out["oom"] = True
        out["oom_message"] = str(e)
    st = torch.cuda.memory_stats()
    free1, _ = torch.cuda.mem_get_info()
    out.update(
        max_allocated=torch.cuda.max_memory_allocated(),
        max_reserved=torch.cuda.max_memory_reserved(),
        max_requested=st["requested_bytes.all.peak"],
        allocated=torch.cuda.memory_allocated(),
        reserved=torch.cuda.memory_reserved(),
        num_alloc_retries=st["num_alloc_retries"],
        num_ooms=st["num_ooms"],
        n_allocs=st["allocation.all.allocated"],
        n_segments=st["num_device_alloc"],
        total=total,
        used_outside=total - free1 - torch.cuda.memory_reserved(),
        step_s=times,
    )
    if snapshot:
        torch.cuda.memory._dump_snapshot(snapshot)
    return out


def main(jobs, inference=(), steps=3):
    """The command line of a file of jobs."""
    ap = argparse.ArgumentParser()
    ap.add_argument("name")
    ap.add_argument("--steps", type=int, default=steps)
    ap.add_argument("--snapshot")
    ap.add_argument("--cap", type=float)
    a = ap.parse_args()
    if a.name == "list":
        print("\n".join([*jobs, *inference]))
        sys.exit()
    print(json.dumps(run(a.name, jobs, inference, a.steps, a.snapshot, a.cap)), flush=True)
    os._exit(0)
