"""Plans of `oomph fit` for several GPUs, on real ones.

`python run_sharded_plans.py plan PLANS.jsonl [--gpus N] [--case NUMBER ...]` makes the plans, on any machine, each
verified by N virtual ranks. `python run_sharded_plans.py run PLANS.jsonl OUT.jsonl [--most SECONDS]` runs each job
of them as it is on one GPU, and then under its plan on as many as it is for, by `torchrun`, under the memory limit that
the plan was made for (`torch.cuda.set_per_process_memory_fraction`): peak of each rank and time of a step against
what was planned. `python run_sharded_plans.py links OUT.jsonl [--gpus N]` measures what collectives of several sizes
reach. Each run is a group of processes of its own, which ends with its time; each result is written at once.
`--tiny` makes and runs the first plan only, with fewer steps; `--virtual h200` runs on virtual GPUs of that name.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from run_plans import CHILD, FIT, child

OOMPH = Path(sys.executable).parent / "oomph"
STEPS = "8"
# Job, capacity of each GPU, options of oomph fit. torchao is not there where this was measured.
CASES = [
    ("gpt2", "16GiB", []),
    ("gpt2", "6GiB", ["--keep-results"]),
    ("llama3b", "32GiB", ["--keep-results"]),
    ("llama3b", "44GiB", ["--keep-results"]),
    ("bert_base", "6GiB", ["--keep-results"]),
    ("vit_b_16", "6GiB", ["--keep-results"]),
]


def plan(out: Path, gpu: str, gpus: int, cases: list[int]) -> None:
    """Make the plans, a line each."""
    for job, memory, options in (CASES[number] for number in cases):
        with tempfile.TemporaryDirectory() as place:
            done = subprocess.run(
                [OOMPH, "fit", "--quiet", "--gpu", f"{gpu}:{gpus}", "--memory", memory, *options,
                 "--forbid", "optimizer_8bit", "--json", "fit.json",
                 FIT / "jobs" / f"{job}.py", "--steps", STEPS],
                cwd=place, capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode != 0:
                print(job, memory, f"no plan: exit status {done.returncode}", done.stderr[-500:])
                continue
            found = json.loads((Path(place) / "fit.json").read_text())
            text = (Path(place) / "oomph-plan.toml").read_text()
        keep(out, row(job, memory, found, text))


def row(job: str, memory: str, found: dict, text: str) -> dict:
    """What a plan's line holds: the plan and what was planned for it."""
    chosen = found["plans"][found["chosen"]]
    return dict(
        job=job, gpu=found["gpu"]["id"], memory=memory,
        budget_bytes=found["gpu"]["memory_bytes"] - found["gpu"]["margin_bytes"],
        plain=found["plain"], planned=chosen["peak"], predicted=chosen["predicted"],
        planned_ratio=chosen["time_ratio"], what=chosen["what"],
        levers=tomllib.loads(text)["lever"],
    )  # fmt: skip


def keep(out: Path, line: dict) -> None:
    """Add a line, at once: what was measured stays."""
    with out.open("a") as file:
        file.write(json.dumps(line) + "\n")


def finished(command: list[str], environment: dict, timeout: float) -> str | None:
    """Runs a command with all that it starts; what it said, or None if its time was up."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        said.seek(0)
        return said.read()


def measure(settings: dict, ranks: int, timeout: float, virtual: str | None) -> list[dict]:
    """One job as `ranks` processes; what each measured."""
    with tempfile.TemporaryDirectory() as place:
        settings = dict(settings, out=os.path.join(place, "out.json"))
        start = [str(Path(__file__).resolve())]
        if ranks > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            start = [*torchrun, str(ranks), *start]
        if virtual:
            run = [OOMPH, "run", "-q", "--out", os.path.join(place, "run"), "--gpu"]
            start = [
                *run,
                f"{virtual}:{ranks}",
                *(["--", sys.executable] if ranks > 1 else []),
                *start,
            ]
        else:
            start = [sys.executable, *start]
        said = finished(start, dict(os.environ, **{CHILD: json.dumps(settings)}), timeout)
        files = sorted(Path(place).glob("out.json*"))
        if said is None or len(files) != ranks:
            return [dict(error="timed out" if said is None else said[-1500:])]
        return [json.loads(file.read_text()) for file in files]


def median(found: list[dict]) -> float | None:
    """Median time of a step, the first two left out; of several ranks the slowest."""
    times = [
        statistics.median(one["step_s"][1:]) for one in found if len(one.get("step_s", [])) > 1
    ]
    return max(times) if times else None


def run(plans: Path, out: Path, most: float, tiny: bool, virtual: str | None) -> None:
    """Measure plans until the time is up."""
    began, plain = time.time(), {}
    lines = [json.loads(line) for line in plans.read_text().splitlines()]

    def left() -> float:
        return most - (time.time() - began)

    for line in lines[:1] if tiny else lines:
        if left() < 0:
            print("the time is up")
            return
        job = line["job"]
        settings = dict(
            script=str(FIT / "jobs" / f"{job}.py"),
            arguments=["--steps", "4" if tiny else STEPS], levers=[],
        )  # fmt: skip
        if job not in plain:
            plain[job] = measure(settings, 1, min(120, left() + 30), virtual)
            keep(out, dict(job=job, kind="plain", planned=line["plain"], measured=plain[job]))
            print(job, "plain", [one.get("error") for one in plain[job]], median(plain[job]))
        # What lies outside of the allocator is no part of the limit that PyTorch keeps.
        outside = line["planned"]["used_bytes"] - line["planned"]["reserved_bytes"]
        limited = dict(settings, levers=line["levers"], limit=line["budget_bytes"] - outside)
        shard = next(lever for lever in line["levers"] if lever["name"] == "shard")
        found = measure(limited, shard["gpus"], min(120, left() + 30), virtual)
        times = median(found), median(plain[job])
        ratio = times[0] / times[1] if all(times) else None
        keep(out, dict(line, kind="plan", measured=found, ratio=ratio))
        reserved = [round(one.get("reserved_bytes", 0) / 2**30, 2) for one in found]
        print(
            job, line["memory"], line["what"], "reserved", reserved,
            f"planned {line['planned']['reserved_bytes'] / 2**30:.2f} GiB;",
            f"time {ratio and round(ratio, 2)} planned {line['planned_ratio']:.2f}",
            [one.get("error") for one in found], f"{time.time() - began:.0f} s", flush=True,
        )  # fmt: skip


LINKS = "OOMPH_BENCH_LINKS"


def links(out: str) -> None:
    """As one of several ranks: bytes a second of ring volumes, by collective and size."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    count = dist.get_world_size()
    for size in (1 << 20, 25 << 20, 256 << 20, 1 << 30):
        whole = torch.zeros(size, dtype=torch.uint8, device="cuda")
        part = torch.zeros(size // count, dtype=torch.uint8, device="cuda")
        calls = dict(
            all_gather=(lambda: dist.all_gather_into_tensor(whole, part), 1),
            reduce_scatter=(
                lambda: dist.reduce_scatter_tensor(
                    part.view(torch.float32), whole.view(torch.float32)
                ),
                1,
            ),
            all_reduce=(lambda: dist.all_reduce(whole.view(torch.float32)), 2),
        )
        for name, (call, times) in calls.items():
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            repeats, began = 20, time.perf_counter()
            for _ in range(repeats):
                call()
            torch.cuda.synchronize()
            each = (time.perf_counter() - began) / repeats
            moved = times * size * (count - 1) / count
            if rank == 0:
                line = dict(
                    kind="link", collective=name, bytes=size, seconds=each, bytes_per_s=moved / each
                )
                keep(Path(out), line)
                print(
                    name,
                    size >> 20,
                    "MiB",
                    f"{each * 1e6:.0f} us {moved / each / 1e9:.0f} GB/s",
                    flush=True,
                )
    dist.destroy_process_group()


def main() -> None:
    """Plan or run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["plan", "run", "links"])
    parser.add_argument("plans", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--most", type=float, default=240, help="seconds after which no run begins")
    parser.add_argument("--gpus", type=int, default=2, help="for plan and links")
    parser.add_argument("--case", type=int, nargs="+", default=list(range(len(CASES))))
    parser.add_argument("--virtual", help="run on virtual GPUs of this name")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.what == "plan":
        plan(args.plans, args.gpu, args.gpus, args.case[:1] if args.tiny else args.case)
    elif args.what == "links":
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        start += ["--nproc-per-node", str(args.gpus), str(Path(__file__).resolve())]
        environment = dict(os.environ, **{LINKS: str(args.plans.resolve())})
        print(finished(start, environment, 90) or "timed out")
    elif args.out is None:
        parser.error("run: name the file for the results")
    else:
        run(args.plans, args.out, args.most, args.tiny, args.virtual)


if __name__ == "__main__":
    if CHILD in os.environ:
        settings = json.loads(os.environ.pop(CHILD))
        settings["out"] += "." + os.environ.get("RANK", "0")
        child(settings)
    elif LINKS in os.environ:
        links(os.environ[LINKS])
    else:
        main()
