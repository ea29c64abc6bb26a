"""Plans of `bench/fit` on a real GPU: `python run_plans.py OUT.jsonl [--plans FILE] [--most SECONDS]`.

Each job runs plain, then with plans under the memory limit that they were made for
(`torch.cuda.set_per_process_memory_fraction`): peak and time of a step against what was planned.
`--jobs bench/fit/unseen` takes the scripts from there, and rows that `bench/fit/unseen/run.py --keep` and its results give.
The most telling comparison beside it: every block checkpointed, and `save_on_cpu` around the model.
Each run is a process of its own. `--tiny` takes small batches and two plans, to try the script on
the virtual GPU: `python run_plans.py /tmp/x.jsonl --tiny --virtual h200`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIT = HERE.parent / "fit"
CHILD = "OOMPH_BENCH_CHILD"


def child(settings: dict) -> None:
    """One job in this process, with a clock around its steps and no recorder that would slow it."""
    from oomph.levers import Levers, prepare

    prepare(settings["levers"])
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    if settings.get("limit"):
        torch.cuda.set_per_process_memory_fraction(min(1.0, settings["limit"] / total))
    times: list[float] = []
    last = [0.0]

    def stepped(optimizer, args, kwargs):
        torch.cuda.synchronize()
        now = time.perf_counter()
        if last[0]:
            times.append(now - last[0])
        last[0] = now

    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(stepped)
    if settings.get("baseline") == "checkpoint_all":
        checkpoint_all(torch)
    if settings.get("baseline") == "save_on_cpu":
        save_on_cpu(torch)
    levers = Levers(settings["levers"])
    levers.install()
    outcome = dict(error=None)
    script = settings["script"]
    sys.argv = [script, *settings["arguments"]]
    sys.path.insert(0, os.path.dirname(script))
    code = compile(Path(script).read_text(), script, "exec")
    try:
        exec(code, {"__name__": "__main__", "__file__": script})
    except torch.OutOfMemoryError as error:
        outcome["error"] = str(error)[:300]
    stats = torch.cuda.memory_stats()
    outcome.update(
        allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
        reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
        retries=stats.get("num_alloc_retries", 0),
        step_s=times,
        gpu=torch.cuda.get_device_name(0),
        torch=torch.__version__,
        levers=levers.report(),
    )
    Path(settings["out"]).write_text(json.dumps(outcome))


def blocks(model):
    """The repeated blocks of a model: children of lists that have parts of their own."""
    import torch

    found = []
    for module in model.modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            parts = [p for p in module if next(p.children(), None) is not None]
            if len(parts) >= 2 and not any(
                module is inner for known in found for inner in known.modules()
            ):
                found += parts
    return found


def on_first_forward(torch, change):
    """Call `change(model)` before a model's first forward."""
    from torch.nn.modules import module as nn_module

    known = set()

    def enter(module, args):
        if id(module) not in known:
            known.update(id(m) for m in module.modules())
            change(module)

    nn_module.register_module_forward_pre_hook(enter)


def checkpoint_all(torch):
    """Every block checkpointed, as guides do it."""
    import functools

    from torch.utils.checkpoint import checkpoint

    def change(model):
        for block in blocks(model):
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)

    on_first_forward(torch, change)


def save_on_cpu(torch):
    """All saved tensors in pinned host memory, as PyTorch offers it."""

    def change(model):
        forward = model.forward

        def offloaded(*args, **kwargs):
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                return forward(*args, **kwargs)

        model.forward = offloaded

    on_first_forward(torch, change)


def run(settings: dict, virtual: str | None, timeout: float) -> dict:
    """One process; what it measured."""
    with tempfile.TemporaryDirectory() as place:
        settings = dict(dict(levers=[]), **settings, out=os.path.join(place, "out.json"))
        environment = dict(os.environ, **{CHILD: json.dumps(settings)})
        script = str(Path(__file__).resolve())
        command = [sys.executable, script]
        if virtual:
            oomph = str(Path(sys.executable).parent / "oomph")
            command = [
                oomph,
                "run",
                "-q",
                "--out",
                os.path.join(place, "run"),
                "--gpu",
                virtual,
                script,
            ]
        started = time.time()
        try:
            done = subprocess.run(
                command, env=environment, timeout=timeout, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            return dict(error="timed out", wall_s=time.time() - started)
        out = Path(settings["out"])
        if not out.exists():
            return dict(error=(done.stderr or done.stdout)[-600:], wall_s=time.time() - started)
        return dict(json.loads(out.read_text()), wall_s=time.time() - started)


def main() -> None:
    """Measure plans until the time is up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--plans", type=Path, default=FIT / "results" / "h200_virtual.jsonl")
    parser.add_argument(
        "--jobs",
        type=Path,
        help="folder of the scripts, if not bench/fit/jobs; they take no arguments",
    )
    parser.add_argument("--most", type=float, default=450, help="seconds after which no run begins")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--virtual", help="run on the virtual GPU of this name instead")
    args = parser.parse_args()
    began = time.time()
    rows = [json.loads(line) for line in args.plans.read_text().splitlines()]
    rows = [row for row in rows if row.get("chosen") is not None]
    if args.tiny:
        rows = rows[:2]
    plain: dict[str, dict] = {}
    with args.out.open("a") as file:

        def note(row: dict) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(say(row), flush=True)

        for row in rows:
            if time.time() - began > args.most:
                print("the time is up", flush=True)
                break
            job = row["job"]
            script = str((args.jobs or FIT / "jobs").resolve() / f"{job}.py")
            arguments = [] if args.jobs else ["--steps", "3" if args.tiny else "14"]
            settings = dict(script=script, arguments=arguments)
            if job not in plain:
                plain[job] = run(settings, args.virtual, 120)
                note(dict(job=job, kind="plain", measured=plain[job], planned=row["plain"]))
                for baseline in (
                    () if args.tiny or args.no_baselines else ("checkpoint_all", "save_on_cpu")
                ):
                    result = run(dict(settings, baseline=baseline), args.virtual, 120)
                    note(
                        dict(
                            job=job, kind=baseline, measured=result, ratio=ratio(result, plain[job])
                        )
                    )
            chosen = row["plans"][row["chosen"]]
            # What lies outside of the allocator is no part of the limit that PyTorch keeps.
            outside = row["plain"]["used_bytes"] - row["plain"]["reserved_bytes"]
            changed = dict(
                settings,
                levers=tomllib.loads(row["plan_toml"])["lever"],
                limit=row["budget_bytes"] - outside,
            )
            result = run(changed, args.virtual, 120)
            note(
                dict(job=job, kind="plan", share=row["share"], budget_bytes=row["budget_bytes"],
                     what=chosen["what"], planned=chosen["peak"], planned_ratio=chosen["time_ratio"],
                     measured=result, ratio=ratio(result, plain[job]))
            )  # fmt: skip


def ratio(result: dict, plain: dict) -> float | None:
    """Median step time of the second half against the plain job's: the allocator has settled then."""
    if not result.get("step_s") or not plain.get("step_s"):
        return None
    settled = [run["step_s"][len(run["step_s"]) // 2 :] for run in (result, plain)]
    return statistics.median(settled[0]) / statistics.median(settled[1])


def say(row: dict) -> str:
    """The row for people."""
    measured = row["measured"]
    text = f"{row['job']:10} {row['kind']:14} {row.get('share', ''):>3} "
    text += f"reserved {measured.get('reserved_bytes', 0) / 2**30:6.2f} GiB"
    if row.get("planned"):
        text += f" (planned {row['planned']['reserved_bytes'] / 2**30:.2f})"
    if row.get("ratio"):
        text += f" time {row['ratio']:.2f}"
    if row.get("planned_ratio"):
        text += f" (planned {row['planned_ratio']:.2f})"
    if measured.get("error"):
        text += f" ERROR {measured['error'][-200:]}"
    return text + f" {measured.get('wall_s', 0):.0f} s"


if __name__ == "__main__":
    if CHILD in os.environ:
        child(json.loads(os.environ.pop(CHILD)))
    else:
        main()
