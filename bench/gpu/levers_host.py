"""What each lever takes of the host: `python lever_host.py OUT.jsonl`. A launch-bound model whose tensors are large enough for the
levers, each lever in a process of its own; what it takes to issue a step, with the plain model before and after."""

import json
import os
import statistics
import subprocess
import sys
import time

BLOCKS, WIDTH = 16, 256
NAMES = [f"Net.blocks.{i}" for i in range(BLOCKS)]
PLANS = {
    "plain": [],
    "fused": [dict(name="optimizer_step", kind="fused")],
    "single_threaded_backward": [dict(name="single_threaded_backward")],
    "step_in_backward": [dict(name="step_in_backward")],
    "optimizer_on_cpu": [dict(name="optimizer_on_cpu")],
    "both": [dict(name="step_in_backward"), dict(name="optimizer_on_cpu")],
    "both, fused": [
        dict(name="optimizer_step", kind="fused"),
        dict(name="step_in_backward"),
        dict(name="optimizer_on_cpu"),
    ],
    "gradients_on_cpu": [dict(name="gradients_on_cpu")],
    "gradients and state": [dict(name="gradients_on_cpu"), dict(name="optimizer_on_cpu")],
    "save_on_cpu": [dict(name="save_on_cpu", in_flight=128 << 20)],
    "save_on_cpu, few": [dict(name="save_on_cpu", in_flight=16 << 20)],
    "offload_activations": [dict(name="offload_activations", modules=NAMES)],
    "checkpoint": [dict(name="checkpoint", modules=NAMES)],
    "recompute": [
        dict(
            name="recompute",
            modules=[f"{n}.{part}" for n in NAMES for part in ("one", "two", "act")],
        )
    ],
    "split_forward": [dict(name="split_forward", parts=2)],
}


def child(levers):
    from oomph.levers import Levers, prepare

    prepare(levers)
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
            self.act, self.drop = nn.GELU(), nn.Dropout(0.1)

        def forward(self, x):
            b, t, w = x.shape
            q, k, v = self.qkv(self.one(x)).view(b, t, 3, 4, w // 4).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, w)))
            return x + self.drop(self.down(self.act(self.up(self.two(x)))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(*[Block() for _ in range(BLOCKS)])

        def forward(self, x):
            return self.blocks(x)

    installed = Levers(levers)
    installed.install()
    factor = None
    if not levers:
        from oomph import _calibration

        factor = {name: sum(model["parts"]) for name, model in _calibration.measured().items()}
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    x = torch.randn(4, 128, WIDTH, device="cuda")
    rows = []
    for _ in range(24):
        torch.cuda.synchronize()
        times = [time.perf_counter()]
        loss = net(x).float().pow(2).mean()
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        rows.append([b - a for a, b in zip(times, times[1:])])
    free, total = torch.cuda.mem_get_info()
    print(
        json.dumps(
            dict(
                parts_s=[statistics.median(part) for part in zip(*rows[10:])],
                calibration_s=factor,
                applied=installed.report(),
                parameters=len(list(net.parameters())),
                outside_bytes=total - free - torch.cuda.memory_reserved(),
                reserved_bytes=torch.cuda.memory_reserved(),
            )
        )
    )


def main():
    out, began = open(sys.argv[1], "a"), time.time()
    for name in [*PLANS, "plain"]:
        if time.time() - began > 95:
            break
        done = subprocess.run(
            [sys.executable, __file__],
            env=dict(os.environ, LEVERS=json.dumps(PLANS[name])),
            capture_output=True,
            text=True,
        )
        try:
            row = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            row = dict(error=done.stderr[-800:])
        out.write(json.dumps(dict(what=name, **row)) + "\n")
        out.flush()


if __name__ == "__main__":
    child(json.loads(os.environ["LEVERS"])) if "LEVERS" in os.environ else main()
