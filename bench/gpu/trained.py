"""Trained weights in host memory, on a real GPU: `python trained.py OUT.jsonl [--width 2048] [--depth 12] [--steps 12]`.

A decoder trains plain, with its gradients and its optimizer's state on the host, and with its weights there as well (`stream_trained`); with the state there
alone, or half of it; and with the arguments of its blocks there: in fp32, under autocast to bf16, and with every block checkpointed. Each run is a process of its own, forked from one that has imported torch. A line has the time of each step,
the allocator's peak, the losses, and a digest of the weights at the end: with deterministic kernels it is that of the run whose gradients and state are on the host.
Run it under `oomph run --gpu h200` with `--inline` to try the script.
"""

import argparse
import functools
import hashlib
import json
import os
import time
from pathlib import Path

from forked import forked

STATE, HALF = dict(name="optimizer_on_cpu"), dict(name="optimizer_on_cpu", percent=50)
HOST = [dict(name="gradients_on_cpu"), STATE]
KINDS = {
    "plain": [],
    "gradients and state": HOST,
    "weights too": [*HOST, dict(name="stream_trained")],
    "state": [STATE],
    "half of the state": [HALF],
    "activations": [dict(name="offload_activations")],
}
OF_BLOCKS = ("checkpoint", "stream_trained", "offload_activations")


def job(width, depth, steps, how):
    """Trains; the times of its steps, its losses and its model."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, w = x.shape
            q, k, v = self.qkv(self.one(x)).view(b, t, 3, -1, 64).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
            return x + self.down(F.gelu(self.up(self.two(x))))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(8192, width), nn.Linear(width, 8192)
            self.blocks = nn.ModuleList(Block() for _ in range(depth))

        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    # PyTorch's fused kernels of attention give other bits each time.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(0)
    model = Decoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw = torch.Generator().manual_seed(1)
    times, losses = [], []
    for _ in range(steps):
        ids = torch.randint(8192, (8, 512), generator=draw).cuda()
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=how == "bf16"):
            loss = F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        losses.append(loss.item())
    return times, losses, model


def child(options, how, kind):
    """One run in this process."""
    import torch

    from oomph.levers import Levers, prepare

    torch.use_deterministic_algorithms(True, warn_only=True)
    blocks = [f"Decoder.blocks.{index}" for index in range(options.depth)]
    named = [dict(name="checkpoint")] if how == "checkpoint" else []
    levers = [dict(lever) for lever in KINDS[kind] + named]
    for lever in levers:
        if lever["name"] in OF_BLOCKS:
            lever["modules"] = blocks
    prepare(levers)
    installed = Levers(levers)
    installed.install()
    times, losses, model = job(options.width, options.depth, options.steps, how)
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return dict(
        step_s=times, losses=losses, digest=digest.hexdigest()[:16],
        allocated_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved(),
        levers=installed.report(), gpu=torch.cuda.get_device_name(0), torch=torch.__version__,
    )  # fmt: skip


def main():
    """All ways of all kinds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--how", nargs="+", default=["fp32", "bf16", "checkpoint"])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--inline", metavar="KIND")
    options = parser.parse_args()
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch  # noqa: F401  # what is forked has it

    for how in options.how:
        for kind in [options.inline] if options.inline else options.kinds:
            found = child if options.inline else functools.partial(forked, child)
            row = found(options, how, kind)
            row = dict(how=how, kind=kind, width=options.width, depth=options.depth, **row)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            told = row.get("error") or [row["allocated_bytes"] >> 20, row["digest"]]
            last = [round(1e3 * s, 1) for s in row.get("step_s", [])[-4:]]
            print(f"{how:12} {kind:22} {last} {told}", flush=True)


if __name__ == "__main__":
    main()
