"""GPU time of a step by operator, beside the virtual clock's: `python bench/gpu/operators.py OUT.json`.

The jobs of `bench/fit` as they are, one step of each under PyTorch's profiler. With `--beside FILE` (made on
a GPU) the same jobs run on a virtual GPU, and what the two say is printed; this needs no GPU.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOBS = HERE.parent / "fit" / "jobs"
NAMES = ["gpt2", "bert_base", "vit_b_16", "resnet50", "llama1b"]
CHILD = "OOMPH_BENCH_CHILD"


def child(job: str, out: str) -> None:
    """One job in this process: the fourth step is profiled."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import ProfilerActivity, profile

    done = [0]
    profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])

    def stepped(optimizer, args, kwargs):
        done[0] += 1
        torch.cuda.synchronize()
        if done[0] == 3:
            profiler.start()
        if done[0] == 4:
            profiler.stop()

    register_optimizer_step_post_hook(stepped)
    script = str(JOBS / f"{job}.py")
    sys.argv = [script, "--steps", "5"]
    sys.path.insert(0, os.path.dirname(script))
    exec(
        compile(Path(script).read_text(), script, "exec"),
        {"__name__": "__main__", "__file__": script},
    )
    rows = {
        event.key: [event.self_device_time_total, event.count]
        for event in profiler.key_averages()
        if event.self_device_time_total
        and event.key.startswith(("aten::", "void", "Memcpy")) is not None
    }
    kernels = {
        event.key: [event.self_device_time_total, event.count]
        for event in profiler.key_averages()
        if str(event.device_type).endswith("CUDA")
    }
    gpu = torch.cuda.get_device_name(0)
    Path(out).write_text(json.dumps(dict(job=job, gpu=gpu, operators=rows, kernels=kernels)))


def real(jobs: list[str], out: Path) -> None:
    """Profile all jobs."""
    rows = []
    for job in jobs:
        with tempfile.TemporaryDirectory() as place:
            file = os.path.join(place, "out.json")
            environment = dict(os.environ, **{CHILD: json.dumps([job, file])})
            done = subprocess.run(
                [sys.executable, str(Path(__file__).resolve())], env=environment, capture_output=True, text=True
            )  # fmt: skip
            if not os.path.exists(file):
                print(job, done.stderr[-500:], flush=True)
                continue
            rows.append(json.loads(Path(file).read_text()))
            total = sum(time for time, _ in rows[-1]["kernels"].values())
            print(f"{job:10} {total / 1e3:.1f} ms of kernels", flush=True)
        out.write_text(json.dumps(rows, indent=1))


def virtual(jobs: list[str], beside: Path, gpu: str) -> None:
    """Print what the virtual clock says beside the profiler."""
    measured = {row["job"]: row for row in json.loads(beside.read_text())}
    for job in jobs:
        with tempfile.TemporaryDirectory() as place:
            oomph = str(Path(sys.executable).parent / "oomph")
            subprocess.run(
                [oomph, "run", "-q", "--gpu", gpu, "--out", place, str(JOBS / f"{job}.py"), "--steps", "4"], check=True
            )  # fmt: skip
            record = json.loads((Path(place) / "record.json").read_text())
        mine: collections.Counter = collections.Counter()
        for (_, _, op, step), (busy, _, _) in zip(
            record["scopes"], record["scope_times"], strict=True
        ):
            if step == 1:
                mine[op] += busy / 1e3
        theirs = {
            op: time
            for op, (time, _) in measured[job]["operators"].items()
            if op not in measured[job]["kernels"]
        }
        print(
            f"{job}: {sum(mine.values()) / 1e3:.1f} ms, measured {sum(theirs.values()) / 1e3:.1f}"
        )
        for op in sorted({*mine, *theirs}, key=lambda op: -max(mine[op], theirs.get(op, 0)))[:24]:
            print(f"   {mine[op] / 1e3:8.2f} {theirs.get(op, 0) / 1e3:8.2f} ms  {op}")


def main() -> None:
    """Measure or compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--job", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument(
        "--beside", type=Path, help="results of a GPU to compare a virtual one with"
    )
    parser.add_argument("--gpu", default="h200", help="the virtual GPU to compare")
    args = parser.parse_args()
    if args.beside:
        virtual(args.job, args.beside, args.gpu)
    elif args.out:
        real(args.job, args.out)
    else:
        parser.error("expected OUT.json or --beside FILE")


if __name__ == "__main__":
    if CHILD in os.environ:
        child(*json.loads(os.environ.pop(CHILD)))
    else:
        main()
