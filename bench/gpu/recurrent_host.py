"""What recurrent layers take the host: `python bench/gpu/recurrent_host.py OUT.jsonl`.

One line for each layer, microseconds to issue a forward and a backward pass, the median of several, beside the kernels that each
launches. Small layers run all steps in one kernel; wide ones launch some for each step.
"""

import json
import statistics
import sys
import time

CALLS, ROUNDS = 10, 9
SIZES = [(64, 8, 4), (64, 8, 64), (512, 8, 4), (512, 8, 64)]
"""State, batch and steps."""


def cases():
    """Kind, layers, directions, and sizes."""
    for kind in ("LSTM", "GRU", "RNN"):
        for layers, both in ((1, False), (1, True), (2, False), (2, True)):
            for sizes in SIZES:
                yield kind, layers, both, *sizes


def measure(torch, kind, layers, both, hidden, batch, steps):
    """One layer."""
    layer = getattr(torch.nn, kind)(hidden, hidden, layers, batch_first=True, bidirectional=both)
    layer = layer.cuda()
    x = torch.randn(batch, steps, hidden, device="cuda", requires_grad=True)
    gradient = torch.ones_like(layer(x)[0])
    forward, backward = [], []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        outputs = [layer(x)[0] for _ in range(CALLS)]
        forward.append((time.perf_counter() - began) / CALLS * 1e6)
        torch.cuda.synchronize()
        began = time.perf_counter()
        torch.autograd.backward(outputs, [gradient] * CALLS)
        backward.append((time.perf_counter() - began) / CALLS * 1e6)
    launches = []
    for run in (lambda: layer(x)[0], lambda: outputs.pop().backward(gradient)):
        outputs = [layer(x)[0]]
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
        found = profile.profiler.kineto_results.events()
        launches.append(sum("CUDA" in str(one.device_type()) for one in found))
    return dict(
        kind=kind, layers=layers, both=both, hidden=hidden, batch=batch, steps=steps,
        forward_us=round(statistics.median(forward), 1), backward_us=round(statistics.median(backward), 1),
        forward_kernels=launches[0], backward_kernels=launches[1],
    )  # fmt: skip


def main(out):
    """All of them, in the order of `cases`."""
    import torch

    with open(out, "w") as file:
        for case in cases():
            file.write(json.dumps(measure(torch, *case)) + "\n")
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1])
