"""What jobs that are off by more than a tenth owe to: `python bench/time/contributions.py LOGS JOBS PROFILES GPU HOST [LOGS JOBS …]`.

Five words for each set, as `compare.py` has them. What a job is off beyond 10 % is the host's where issuing a step took longer than its
kernels, else it is shared out among the classes of kernels that are off in the same direction. Kernels of the log and of the profile are
of one class by their names; products, convolutions and attention by the operator that launched them. Needs `price`, see `compare.py`.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict

from compare import lines
from compare_kinds import GAP_US, PRICE

# Parts of names, the first that is found; else the name's last word.
NAMES = (
    "GammaBeta layer_norm RowwiseMoments ComputeInternalGradients SoftMax softmax dropout CatArray batch_norm conv_depthwise pool "
    "upsample col2im im2col nll_loss embedding krn_ sum_and_scatter compute_grad_weight gather scatter index adix topk DeviceScan "
    "multi_tensor_apply reduce_kernel vectorized_elementwise unrolled_elementwise distribution_elementwise elementwise_kernel flash fmha"
).split()
LIBRARY = {
    "convolution": ("convolution",),
    "product": ("::mm", "::bmm", "::addmm", "::baddbmm", "::linear", "::mv"),
    "attention": ("attention",),
    "cudnn batch norm": ("cudnn_batch_norm",),
    "recurrent cells": ("rnn",),
}
# What the log calls what a kernel's name tells in the profile.
CALLED = {"reductions": "reduce_kernel", "indexing": "gather", "embeddings": "embedding"}


def of_name(name):
    """The class of a kernel by its name."""
    words = re.findall(r"[A-Za-z_]{4,}", name)
    return next((part for part in NAMES if part in name), words[-1] if words else name)


def measured(profile):
    """Microseconds of each class in a profile."""
    found = Counter()
    for op, *_, kernels in profile["rows"]:
        for number, _, _, _, _, us in kernels:
            name = profile["names"][number]
            own = "elementwise" in name or "reduce_kernel" in name or "conv_depthwise" in name
            library = (kind for kind, parts in LIBRARY.items() if any(part in op for part in parts))
            memory = name.startswith(("Memcpy", "Memset"))
            found["copy" if memory else of_name(name) if own else next(library, of_name(name))] += (
                us
            )
    return found


def estimated(work, us):
    """The same of the median step of a log whose lines take `us`."""
    steps = work["steps"][1:] or work["steps"]
    played = sorted(
        ((sum(us[line] for line in step), step) for count, step in steps for _ in range(count)),
        key=lambda pair: pair[0],
    )
    found = Counter()
    for line in played[(len(played) - 1) // 2][1]:
        kind, *values = work["table"][line]
        if us[line] <= 0:
            continue
        if kind == "kernel":
            kind = of_name(work["names"][int(values[0])])
        elif kind in ("moving", "chain", "walk", "fixed"):
            kind = "copy" if values[-1] == "fill" else CALLED.get(values[-1], values[-1])
        elif kind == "batch norm":
            kind = "cudnn batch norm"
        found[kind] += us[line] - GAP_US
    return found


def main():
    """Share out."""
    beyond, jobs = defaultdict(float), defaultdict(list)
    sets = [sys.argv[at : at + 5] for at in range(1, len(sys.argv), 5)]
    for logs, steps, profiles, gpu, host in sets:
        took = {row["case"]: row for row in lines(steps) if "step_s" in row}
        profiled = {row["case"]: row for row in lines(profiles)}
        for row in lines(logs):
            case = row["case"]
            if case not in took or not row.get("work"):
                continue
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                json.dump(dict(work=row["work"]), file)
                file.flush()
                done = subprocess.run([PRICE, "--lines", "--host", host, gpu, file.name], capture_output=True, text=True, check=True)  # fmt: skip
            told = json.loads(done.stdout)
            step, issue = (statistics.median(took[case][name]) for name in ("step_s", "issue_s"))
            off = told["step"] / step - 1
            if abs(off) <= 0.1:
                continue
            excess = min(abs(off), 1.0) - 0.1
            shares = {"the host": 1.0}
            if profiled[case]["busy_us"] / 1e6 >= issue:
                real, ours = measured(profiled[case]), estimated(row["work"], told["us"])
                same = {
                    kind: (ours[kind] - real[kind]) * (1 if off > 0 else -1)
                    for kind in {*real, *ours}
                }
                shares = {kind: us for kind, us in same.items() if us > 0} or shares
            for kind, us in shares.items():
                beyond[kind] += excess * us / sum(shares.values())
                jobs[kind].append((excess * us / sum(shares.values()), case))
    for kind, sum_of in sorted(beyond.items(), key=lambda pair: -pair[1])[:20]:
        worst = ", ".join(case for _, case in sorted(jobs[kind], reverse=True)[:3])
        print(f"{kind:26} {sum_of:6.1%} in {len(jobs[kind]):2} jobs: {worst}")


if __name__ == "__main__":
    main()
