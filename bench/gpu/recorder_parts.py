"""What each part of a recorder costs a step on a GPU, with the parts taking turns in one process.

    python bench/gpu/recorder_parts.py --out bench/gpu/results/NAME.json [--job gpt2 …]

`ring`: PyTorch's memory history without stacks; `stacks`: with the Python stack of each allocation, as while oomph
records; `hooks`: two empty hooks around every module's call; `step hook`: one on the optimizer.
"""

import argparse
import contextlib
import json
import platform
import statistics
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

sys.path.insert(0, str(Path(__file__).parent / "jobs"))
import steady


@contextlib.contextmanager
def history(**options):
    torch.cuda.memory._record_memory_history(max_entries=100_000, **options)
    yield
    torch.cuda.memory._record_memory_history(enabled=None)


@contextlib.contextmanager
def hooks():
    from torch.nn.modules import module

    made = [
        module.register_module_forward_pre_hook(lambda *_: None),
        module.register_module_forward_hook(lambda *_: None),
    ]
    yield
    for hook in made:
        hook.remove()


@contextlib.contextmanager
def step_hook():
    hook = register_optimizer_step_post_hook(lambda *_: None)
    yield
    hook.remove()


PARTS = {
    "plain": contextlib.nullcontext,
    "ring": lambda: history(enabled="all", context=None),
    "stacks": lambda: history(enabled="all", context="alloc", stacks="python"),
    "hooks": hooks,
    "step hook": step_hook,
}


def measure(name, options):
    torch.manual_seed(0)
    model, loss_of = steady.JOBS[name](options.small)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def turn(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=name in steady.BF16):
                loss = loss_of()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps * 1e3

    turn(5)
    steps = max(2, min(50, int(options.milliseconds / turn(5))))
    times = {part: [] for part in PARTS}
    for number in range(options.rounds):
        order = list(PARTS)
        order = order[number % len(order) :] + order[: number % len(order)]
        for part in order:
            with PARTS[part]():
                turn(1)
                times[part].append(turn(steps))
    plain = times["plain"]
    ratios = {
        part: round(statistics.median(a / b for a, b in zip(values, plain)), 4)
        for part, values in times.items()
    }
    return dict(job=name, steps=steps, plain_ms=round(statistics.median(plain), 3), ratios=ratios, ms=times)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--job", nargs="*", default=list(steady.JOBS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--milliseconds", type=float, default=400, help="of one turn")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.job:
        rows.append(measure(name, options))
        print({key: value for key, value in rows[-1].items() if key != "ms"}, flush=True)
        torch.cuda.empty_cache()
    about = dict(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"), command=" ".join(sys.argv), machine=torch.cuda.get_device_name(),
        torch=torch.__version__, python=platform.python_version(), rounds=options.rounds,
    )  # fmt: skip
    Path(options.out).write_text(json.dumps(dict(about, rows=rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
