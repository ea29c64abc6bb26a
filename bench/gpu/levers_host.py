"""What levers take of the host: `python levers_host.py OUT.jsonl [--seconds 230] [--only NAME …] [--plans PLANS.jsonl] [--steps 20]`.

Two launch-bound networks whose tensors are large enough for the levers, with each lever at two or more sizes, and jobs of `fit_twelve.py` with
its plans. A process, forked from one that has imported torch, takes steps of the plain job, then applies the levers, makes the job anew and takes steps of that: what
both need to be issued stands beside each other, because a host differs by a third from one process to the next. Each step begins with an idle GPU. `--virtual` is for
`oomph run --gpu h200`, to try the script.
"""

import argparse
import functools
import gc
import json
import statistics
import sys
import time
import tomllib
from pathlib import Path

from forked import forked

HERE = Path(__file__).resolve().parent
BLOCKS, WIDTH = 16, 256
NAMES = [f"Net.blocks.{i}" for i in range(BLOCKS)]
BOTTLENECKS = [f"Seen.blocks.{i}" for i in range(BLOCKS)]
PLANS_OF_JOBS = (
    "resnet152:75 resnet152:90 resnet152:50 swin_t:75 swin_t:90 swin_t:50 unet:50 unet:75 resnet50:50 lora:75 vit_b_16:50 vit_b_16:75 gpt2:50 llama_1b:50"
).split()  # fmt: skip


def of_modules(name, places, *parts):
    """A lever on these parts of these modules."""
    return dict(name=name, modules=[f"{n}.{p}" for n in places for p in parts] if parts else places)


def variants():
    """Each with its network and its levers."""
    fused = dict(name="optimizer_step", kind="fused")
    single = dict(name="single_threaded_backward")
    within = dict(name="step_in_backward")
    state = dict(name="optimizer_on_cpu")
    found = {
        "plain": [],
        "fused": [fused],
        "single-threaded": [single],
        "step in backward": [within],
        "step in backward, fused": [fused, within],
        "checkpoint 4": [of_modules("checkpoint", NAMES[:4])],
        "checkpoint 16": [of_modules("checkpoint", NAMES)],
        "recompute act": [of_modules("recompute", NAMES, "act")],
        "recompute norms": [of_modules("recompute", NAMES, "one", "two")],
        "recompute norms, act": [of_modules("recompute", NAMES, "one", "two", "act")],
        "recompute norms, act of 4": [of_modules("recompute", NAMES[:4], "one", "two", "act")],
        "recompute up": [of_modules("recompute", NAMES, "up")],
        "recompute up, act": [of_modules("recompute", NAMES, "up", "act")],
        "split in 2": [dict(name="split_forward", parts=2)],
        "split in 4": [dict(name="split_forward", parts=4)],
        "offload 16": [of_modules("offload_activations", NAMES)],
        "offload 4": [of_modules("offload_activations", NAMES[:4])],
        "save on cpu": [dict(name="save_on_cpu", in_flight=128 << 20)],
        "state on cpu": [state],
        "fused, state on cpu": [fused, state],
        "state on cpu in backward": [within, state],
        "fused, state on cpu in backward": [fused, within, state],
        "gradients on cpu": [dict(name="gradients_on_cpu")],
        "gradients and state on cpu": [dict(name="gradients_on_cpu"), state],
        "fused, gradients and state on cpu": [fused, dict(name="gradients_on_cpu"), state],
        "allocator": [dict(name="allocator", conf="expandable_segments:True")],
        "single-threaded, recompute norms, act": [
            single,
            of_modules("recompute", NAMES, "one", "two", "act"),
        ],
    }
    yield from ((name, "net", levers) for name, levers in found.items())
    wide = {
        "step in backward": [within],
        "step in backward, fused": [fused, within],
        "state on cpu": [state],
        "fused, state on cpu": [fused, state],
        "fused, state on cpu in backward": [fused, within, state],
        "gradients on cpu": [dict(name="gradients_on_cpu")],
        "fused, gradients and state on cpu": [fused, dict(name="gradients_on_cpu"), state],
    }
    yield from ((f"wide, {name}", "wide", levers) for name, levers in wide.items())
    seen = {
        "plain": [],
        "checkpoint": [of_modules("checkpoint", BOTTLENECKS)],
        "recompute norms": [of_modules("recompute", BOTTLENECKS, "norm1", "norm2")],
        "recompute relus": [of_modules("recompute", BOTTLENECKS, "act1", "act2")],
        "recompute both": [of_modules("recompute", BOTTLENECKS, "norm1", "norm2", "act1", "act2")],
        "recompute convolutions": [of_modules("recompute", BOTTLENECKS, "conv2")],
        "single-threaded": [single],
        "step in backward, fused": [fused, within],
        "split in 2": [dict(name="split_forward", parts=2)],
        "fused, state on cpu": [fused, state],
    }
    yield from ((f"seen, {name}", "seen", levers) for name, levers in seen.items())


def network(kind):
    """A function that takes a step."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    width = 1024 if kind == "wide" else WIDTH

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
            self.act, self.drop = nn.GELU(), nn.Dropout(0.1)

        def forward(self, x):
            b, t, w = x.shape
            q, k, v = self.qkv(self.one(x)).view(b, t, 3, 4, w // 4).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, w)))
            return x + self.drop(self.down(self.act(self.up(self.two(x)))))

    class Bottleneck(nn.Module):
        def __init__(self):
            super().__init__()
            for number in (1, 2):
                setattr(self, f"conv{number}", nn.Conv2d(64, 64, 3, padding=1, bias=False))
                setattr(self, f"norm{number}", nn.BatchNorm2d(64))
                setattr(self, f"act{number}", nn.ReLU())

        def forward(self, x):
            y = self.act1(self.norm1(self.conv1(x)))
            return self.act2(self.norm2(self.conv2(y)) + x)

    class Net(nn.Module):
        part = Block

        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(*[self.part() for _ in range(BLOCKS)])

        def forward(self, x):
            return self.blocks(x)

    class Seen(Net):
        part = Bottleneck

    net = (Seen if kind == "seen" else Net)().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    size = (8, 64, 32, 32) if kind == "seen" else (4, 128, width)

    def step():
        x = torch.randn(*size, device="cuda")
        net(x).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def made(kind):
    """A function that takes a step: of a network here, or of a job of `net.py`."""
    if kind in ("net", "wide", "seen"):
        return network(kind)
    from net_jobs import JOBS

    return JOBS[kind](False)[0]


def timed(kind, steps):
    """Medians, over the second half of so many steps: until the backward pass begins, until it ends, until all is issued, until the GPU is done; and all steps' issue."""
    import torch

    marks = []
    backward = torch.Tensor.backward

    def between(tensor, *args, **kwargs):
        marks.append(time.perf_counter())
        try:
            return backward(tensor, *args, **kwargs)
        finally:
            marks.append(time.perf_counter())

    step, rows = made(kind), []
    torch.Tensor.backward = between
    for _ in range(steps):
        torch.cuda.synchronize()
        marks[:] = [time.perf_counter()]
        step()
        marks.append(time.perf_counter())
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
        times = [*marks[:2], *marks[-3:]]
        rows.append([after - before for before, after in zip(times, times[1:])])
    torch.Tensor.backward = backward
    half = rows[steps // 2 :]
    return dict(
        parts_s=[statistics.median(part) for part in zip(*half)],
        issue_s=[sum(row[:3]) for row in rows],
    )


def child(kind, levers, steps):
    """Plain steps, then those with the levers."""
    from oomph.levers import Levers, prepare

    prepare(levers)
    import torch

    row = {}
    if not levers:
        from oomph import _calibration

        row["calibration_s"] = {n: sum(m["parts"]) for n, m in _calibration.measured().items()}
    row["plain"] = timed(kind, steps)
    gc.collect()
    torch.cuda.empty_cache()
    # PyTorch wraps a class's step once, and levers of the step are there when it does.
    torch.optim.AdamW.step = torch.optim.AdamW.step.__wrapped__
    for lever in levers:
        if lever["name"] == "allocator":  # what it sets was read when torch was imported
            torch._C._accelerator_setAllocatorSettings(lever["conf"])
    installed = Levers([lever for lever in levers if lever["name"] != "allocator"])
    installed.install()
    row["levers"] = timed(kind, steps)
    return row | dict(applied=installed.report(), gpu=torch.cuda.get_device_name(0))


def main():
    """Measure until the time is up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=230)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="+")
    parser.add_argument(
        "--plans", type=Path, default=HERE / "results" / "h200_fit_twelve_plans.jsonl"
    )
    parser.add_argument("--virtual", action="store_true")
    options = parser.parse_args()
    began = time.time()
    runs = list(variants())
    for line in options.plans.read_text().splitlines():
        row = json.loads(line)
        name = f"{row['job']}:{row['share']}"
        if name in PLANS_OF_JOBS and row.get("chosen") is not None:
            runs.append((name, row["job"], tomllib.loads(row["plan_toml"])["lever"]))
    # What is asked most comes first: plans that were off, then the levers.
    first = PLANS_OF_JOBS[:7]
    runs.sort(key=lambda run: first.index(run[0]) if run[0] in first else len(first))
    runs = [run for run in runs if not options.only or run[0] in options.only]
    sys.path.insert(0, str(HERE / "jobs"))
    import torch  # what is forked has it
    import torchvision  # noqa: F401
    import transformers  # noqa: F401

    assert not torch.cuda.is_initialized()
    with options.out.open("a") as file:
        for name, kind, levers in [*runs, *[run for run in runs if run[0] == "plain"]]:
            if time.time() - began > options.seconds:
                print("the time is up", flush=True)
                break
            found = child if options.virtual else functools.partial(forked, child)
            row = found(kind, levers, options.steps)
            row = dict(what=name, job=kind, at=round(time.time() - began, 1), **row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            told = row.get("error") or [[round(1e3 * s, 2) for s in row[k]["parts_s"]] for k in ("plain", "levers")]  # fmt: skip
            print(f"{row['at']:6} {name:40} {told}", flush=True)


if __name__ == "__main__":
    main()
