"""Plans of `bench/fit` on a real GPU: `python run_plans.py OUT.jsonl [--plans FILE] [--most SECONDS]`.

Each job runs plain, then with plans on a GPU with as little memory as they were made for and the 2 % that `oomph fit` leaves free unless told
otherwise (the rest of the memory is taken beforehand): peak and time of a step against what was planned. PyTorch's own limit (`torch.cuda.set_per_process_memory_fraction`) is no such GPU: of an
expandable segment it counts the whole allocation where only a part of it needs new memory.
`--jobs bench/fit/unseen` takes the scripts from there, for plans of `bench/fit/unseen/run.py`; `--only JOB:SHARE ...`
takes these plans, in this order, and `--only JOB ...` the jobs without plans.
The most telling comparison beside it: every block checkpointed, and `save_on_cpu` around the model.
Each run is a process of its own. With `--workers 8` so many start beside each other; when all of them are about to use the GPU or have
ended, they do so one after the other. A process that starts beside one that is measured slows what that one does on the host, up to ten
times: its threads wait for each other. With `--rounds 3` the processes of a job, which all start beside each other, take turns: each settles, then each takes a
few steps while the others wait, three times. As hosts differ from themselves within minutes, a plan's steps are compared with plain ones that are seconds apart: its ratio is the median over the rounds, of the same steps of both.
Jobs have to take so many steps (`JOB_STEPS`). `--again` runs each job plain once more after all plans. `--profile` adds what the GPU did in a step: the time of
its kernels and copies, and how many, and of when any of them ran; of the 25 longest kernels by name. It waits for two timed steps, or as many as it is told. `--sample` adds in which functions the process is (its steps are slower then). `OUT.jsonl --table` prints a results file.
`--tiny` takes small batches and two plans, to try the script on the virtual GPU:
`python run_plans.py /tmp/x.jsonl --tiny --virtual h200`.
"""

import argparse
import contextlib
import ctypes
import importlib.util
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

import turns

HERE = Path(__file__).resolve().parent
FIT = HERE.parent / "fit"
CHILD = "OOMPH_BENCH_CHILD"
SETTLES, TURN = 6, 3
"""Steps of a process that takes turns: until its allocator has settled, and of each turn, whose first is not counted."""
ASKED = 3
"""Steps after which the process is asked what it holds: that takes the host some time."""
MARGIN = 0.02
"""The part of a GPU's memory that `oomph fit` leaves free by default."""


def child(settings: dict) -> None:
    """One job in this process, with a clock around its steps and no recorder that would slow it."""
    from oomph.levers import Levers, prepare

    prepare(settings["levers"])
    import torch

    wait_for_the_gpu(torch, settings)
    rounds, resumed = settings.get("rounds", 0), {}
    marks: list[tuple[float, torch.cuda.Event]] = []
    """When the host came to the end of each step, and what the GPU passes then."""
    between: list[dict] = []
    first: list[torch.optim.Optimizer] = []
    samples = Samples() if settings.get("sample") else None
    profile = Profile(torch, settings["profile"]) if settings.get("profile") else None

    def stepped(optimizer, args, kwargs):
        # A job with several optimizers has a step where the first one has.
        first[:] = first or [optimizer]
        if optimizer is not first[0]:
            return
        # Nothing waits here: where the script does not, the host prepares a step while the GPU is at the one before.
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        marks.append((time.perf_counter(), mark))
        if len(between) < ASKED:
            between.append(held(torch, settings))
        if samples and len(marks) == 3:
            samples.start()
        if len(marks) == SETTLES + TURN * len(resumed) and len(resumed) <= rounds and rounds:
            wait_for_the_next_turn(torch, settings)
            mark = torch.cuda.Event(enable_timing=True)
            mark.record()
            resumed[len(marks) - 1] = time.perf_counter(), mark
        elif profile:
            profile.step(len(marks) - 1)

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
    # The script is `__main__`, as in a run of its own: levers look for its functions there.
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")
    main_module.__file__ = script
    code = compile(Path(script).read_text(), script, "exec")
    try:
        exec(code, main_module.__dict__)
    except torch.OutOfMemoryError as error:
        outcome["error"] = str(error)[:300]
    torch.cuda.synchronize()
    timed = [
        (resumed.get(at, before), after)
        for at, (before, after) in enumerate(
            itertools.pairwise(marks[: profile.steps + 1] if profile else marks)
        )
    ]
    stats = torch.cuda.memory_stats()
    outcome.update(
        outside_bytes=outside(torch, settings),
        allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
        reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
        retries=stats.get("num_alloc_retries", 0),
        step_s=[before[1].elapsed_time(after[1]) / 1e3 for before, after in timed],
        issued_s=[after[0] - before[0] for before, after in timed],
        turns=sorted(resumed)[:rounds],
        after_steps=between,
        gpu=torch.cuda.get_device_name(0),
        torch=torch.__version__,
        levers=levers.report(),
    )
    if profile:
        outcome["profile"] = profile.found
    if samples:
        outcome["samples"] = samples.most()
    Path(settings["out"]).write_text(json.dumps(outcome))
    if settings.get("idle_bytes") is not None:
        os._exit(0)  # the next one waits


def wait_for_the_gpu(torch, settings: dict) -> None:
    """The first use of the GPU waits for its turn, which lasts until the process ends, and sets the limit."""
    original = torch.cuda._lazy_init

    def begin():
        if not torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork():
            torch.cuda._lazy_init = original
            if settings.get("place"):
                turns.wait(settings["place"])
            settings["others"] = 0
            if settings.get("rounds") and settings["idle_bytes"] is not None:
                settings["others"] = turns.used_by_all() - settings["idle_bytes"]
            original()
            if settings.get("limit"):  # of plans that share a job
                total = torch.cuda.get_device_properties(0).total_memory
                torch.cuda.set_per_process_memory_fraction(min(1.0, settings["limit"] / total))
            if settings.get("budget"):
                _, total = torch.cuda.mem_get_info()
                take(settings, total - settings["others"] - settings["budget"])
        original()

    torch.cuda._lazy_init = begin


def take(settings: dict, rest: int) -> None:
    """Take `rest` bytes of the GPU, or up to 16 MiB less where what is free is in pieces: so that the job has no more than on a GPU as small as the plan says."""
    for less in range(0, 17 << 20, 2 << 20):
        settings["taken"], address = max(0, rest - less), ctypes.c_void_p()
        status = runtime().cudaMalloc(ctypes.byref(address), ctypes.c_size_t(settings["taken"]))
        if status == 0:
            settings["address"] = address
            return
    raise RuntimeError(f"cudaMalloc of {rest} bytes: error {status}")


def runtime() -> ctypes.CDLL:
    """CUDA's runtime in this process."""
    libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    (name,) = (name for name in libraries if Path(name).name.startswith("libcudart.so"))
    return ctypes.CDLL(name)


def wait_for_the_next_turn(torch, settings: dict) -> None:
    """Let the others have the GPU; this process may take no more of it afterwards than before."""
    torch.cuda.synchronize()
    left, _ = torch.cuda.mem_get_info()
    taken = settings.get("taken", 0)
    if taken:
        runtime().cudaFree(settings["address"])
    turns.wait(settings["place"])
    free, _ = torch.cuda.mem_get_info()
    settings["others"] += left + taken - free
    if taken:
        take(settings, free - left)


def outside(torch, settings: dict) -> int:
    """Bytes of the GPU that this process holds outside of the allocator, without what it took so that the job has less."""
    free, total = torch.cuda.mem_get_info()
    taken = settings.get("taken", 0) + settings["others"]
    return total - free - taken - torch.cuda.memory_reserved()


def held(torch, settings: dict) -> dict:
    """What the process holds outside of the allocator, and what the allocators of both memories had to do so far."""
    stats, host = torch.cuda.memory_stats(), torch.cuda.host_memory_stats()
    return dict(
        outside_bytes=outside(torch, settings),
        reserved_bytes=stats.get("reserved_bytes.all.current", 0),
        retries=stats.get("num_alloc_retries", 0),
        driver_calls=stats.get("num_device_alloc", 0) + stats.get("num_device_free", 0),
        synchronized=stats.get("num_sync_all_streams", 0),
        pinned_bytes=host.get("allocated_bytes.current", 0),
        pinned_calls=host.get("num_host_alloc", 0),
        pinned_s=host.get("host_alloc_time.total", 0) / 1e6,
    )


class Samples:
    """Where the threads of this process are, a thousand times a second: the innermost function, and the innermost of a lever."""

    def __init__(self) -> None:
        """Not begun."""
        self.found: dict[str, int] = {}
        self.taken = 0

    def start(self) -> None:
        """From here on."""
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        own = threading.get_ident()
        while True:
            self.taken += 1
            for ident, frame in sys._current_frames().items():
                if ident != own:
                    innermost, lever = place(frame), ""
                    while frame is not None and not lever:
                        name = frame.f_code.co_filename
                        lever = place(frame) if "/oomph/levers/" in name else ""
                        frame = frame.f_back
                    key = f"{lever} > {innermost}"
                    self.found[key] = self.found.get(key, 0) + 1
            time.sleep(1e-3)

    def most(self) -> dict:
        """The places that were seen most, of how many samples."""
        most = sorted(self.found.items(), key=lambda one: -one[1])[:80]
        return dict(taken=self.taken, found=dict(most))


def place(frame) -> str:
    """A function, by its file."""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"


class Profile:
    """What the GPU does in one step, after `steps` that were timed."""

    def __init__(self, torch, steps: int) -> None:
        """Nothing is profiled yet."""
        self.torch, self.steps, self.runs, self.found = torch, steps, None, None

    def step(self, timed: int) -> None:
        """A step has ended."""
        from torch.profiler import ProfilerActivity, profile

        if self.runs is not None and self.found is None:
            self.torch.cuda.synchronize()
            taken = time.perf_counter() - self.began
            self.runs.stop()
            kinds: dict[str, list[float]] = {}
            kernels: dict[str, list[float]] = {}
            spans = []
            for event in self.runs.profiler.kineto_results.events():
                if "CUDA" in str(event.device_type()):
                    name = event.name()
                    kind = name if name.startswith(("Memcpy", "Memset")) else "kernels"
                    spans.append((event.start_ns(), event.start_ns() + event.duration_ns()))
                    sums_of_one = kernels.setdefault(name[:200], [0, 0.0])
                    for sums in (kinds.setdefault(kind, [0, 0.0]), sums_of_one):
                        sums[0] += 1
                        sums[1] += event.duration_ns() / 1e9
            most = sorted(kernels.items(), key=lambda one: -one[1][1])[:25]
            self.found = dict(seconds=taken, busy=covered(spans) / 1e9, gpu=kinds, most=dict(most))
        elif timed == self.steps:
            self.torch.cuda.synchronize()
            self.runs = profile(activities=[ProfilerActivity.CUDA])
            self.runs.start()
            self.began = time.perf_counter()


def covered(spans) -> int:
    """How long at least one of the spans lasts."""
    length, reached = 0, 0
    for begin, end in sorted(spans):
        length += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return length


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


def start(settings: dict, place: str, virtual: str | None) -> turns.Process:
    """A process of a run."""
    settings = dict(dict(levers=[]), **settings, place=place, out=os.path.join(place, "out.json"))
    environment = dict(os.environ, **{CHILD: json.dumps(settings)})
    if any(lever["name"] == "net" for lever in settings["levers"]):
        environment |= the_net()
    script = str(Path(__file__).resolve())
    command = [sys.executable, script]
    if virtual:
        oomph = str(Path(sys.executable).parent / "oomph")
        command = [oomph, "run", "-q", "--keep-files", "--out", os.path.join(place, "run"), "--gpu", virtual, script]  # fmt: skip
    return turns.Process(place, command, environment)


def in_turn(
    runs: list[tuple[dict, dict]], workers: int, most: float, virtual: str | None, rounds: int = 0
) -> Iterator[tuple[dict, dict]]:
    """Each run's line and what it measured; after `most` seconds none begins. So many start beside each other and use the GPU in turn:
    one after the other, or in so many rounds those of a job."""
    began = time.time()
    idle_bytes = None if virtual else turns.used_by_all()  # each has a virtual GPU to itself
    jobs: dict[object, list[tuple[dict, dict]]] = {}
    for number, one in enumerate(runs):
        jobs.setdefault(one[1]["job"] if rounds else number, []).append(one)
    groups = list(jobs.values())

    def left() -> float:
        return max(1, min(120, most + 30 - (time.time() - began)))

    while groups:
        if time.time() - began > most:
            print("the time is up", flush=True)
            break
        some = [groups.pop(0)]
        while groups and sum(map(len, some)) + len(groups[0]) <= workers:
            some.append(groups.pop(0))
        with contextlib.ExitStack() as places:
            started = []
            for group in some:
                processes = []
                for settings, line in group:
                    place = places.enter_context(tempfile.TemporaryDirectory())
                    settings = dict(settings, rounds=rounds, idle_bytes=idle_bytes)
                    process = start(settings, place, virtual)
                    places.callback(process.close)
                    processes.append((process, line))
                started.append(processes)
            waiting = {process for group in started for process, _ in group if process.waits(left())}  # fmt: skip
            for group in started:
                for _ in range(100):  # the last one has ended, and its memory may not be free yet
                    if virtual or turns.used_by_all() <= idle_bytes:
                        break
                    time.sleep(0.1)
                for _ in range(rounds + 1):
                    for process, _ in group:
                        if process in waiting:
                            process.go()
                            if not process.waits(left()):
                                waiting.remove(process)
                for process, line in group:
                    if process in waiting:
                        process.go()
                        process.waits(left())
                    yield line, outcome(process)


def outcome(process: turns.Process) -> dict:
    """What a process that has ended measured."""
    wall = dict(wall_s=time.time() - process.began)
    out = process.place / "out.json"
    if process.timed_out or not out.exists():
        return dict(error="timed out" if process.timed_out else process.said()[-600:], **wall)
    return dict(json.loads(out.read_text()), **wall)


def the_net() -> dict[str, str]:
    """What `oomph run` has in the environment for plans with the net."""
    spec = importlib.util.find_spec("oomph")
    library = Path(spec.origin).parent / "_net" / "liboomph_net.so"
    return dict(LD_PRELOAD=str(library), OOMPH_NET="on")


def main() -> None:
    """Measure plans until the time is up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--plans", type=Path, nargs="+", default=[FIT / "results" / "h200_virtual.jsonl"]
    )
    parser.add_argument(
        "--jobs",
        type=Path,
        help="folder of the scripts, if not bench/fit/jobs; they take no arguments",
    )
    parser.add_argument("--only", nargs="+", metavar="JOB[:SHARE]")
    parser.add_argument("--most", type=float, default=450, help="seconds after which no run begins")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--no-limit", action="store_true", help="plans without their limits")
    parser.add_argument("--profile", type=int, nargs="?", const=2, metavar="STEPS")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--virtual", help="run on the virtual GPU of this name instead")
    args = parser.parse_args()
    if args.table:
        table([json.loads(line) for line in args.out.read_text().splitlines()])
        return
    rows = [json.loads(line) for file in args.plans for line in file.read_text().splitlines()]
    rows = [row for row in rows if row.get("chosen") is not None]
    if args.only:
        known = {f"{row['job']}:{row['share']}": row for row in rows}
        rows = [known[name] if ":" in name else dict(job=name, share=None) for name in args.only]
    if args.tiny:
        rows = rows[:2]
    baselines = () if args.tiny or args.no_baselines else ("checkpoint_all", "save_on_cpu")
    runs: list[tuple[dict, dict]] = []
    """What is run: its settings, and what its line says beside what was measured."""
    jobs = list(dict.fromkeys(row["job"] for row in rows))
    for job in jobs:
        of_job = [row for row in rows if row["job"] == job]
        script = str((args.jobs or FIT / "jobs").resolve() / f"{job}.py")
        arguments = [] if args.jobs else ["--steps", "3" if args.tiny else "14"]
        settings = dict(
            script=script, arguments=arguments, profile=args.profile, sample=args.sample
        )
        plain = (settings, dict(job=job, kind="plain", planned=of_job[0].get("plain")))
        runs.append(plain)
        for baseline in baselines:
            runs.append((dict(settings, baseline=baseline), dict(job=job, kind=baseline)))
        for row in of_job:
            if row["share"] is None:
                continue
            chosen = row["plans"][row["chosen"]]
            changed = dict(
                settings,
                levers=tomllib.loads(row["plan_toml"])["lever"],
                budget=int(row["budget_bytes"] / (1 - MARGIN)),
            )
            if args.no_limit:
                del changed["budget"]
            line = dict(
                job=job, kind="plan", share=row["share"], budget_bytes=row["budget_bytes"],
                what=chosen["what"], planned=chosen.get("on_whole_gpu") or chosen["peak"], planned_ratio=chosen["time_ratio"],
            )  # fmt: skip
            runs.append((changed, line))
    if args.again:
        plains = [one for one in runs if one[1]["kind"] == "plain"]
        runs += [(settings, dict(job=line["job"], kind="plain again")) for settings, line in plains]

    plain_of: dict[str, dict] = {}
    with args.out.open("a") as file:
        for line, result in in_turn(runs, args.workers, args.most, args.virtual, args.rounds):
            if line["kind"] == "plain":
                plain_of[line["job"]] = result
            else:
                line["ratio"] = ratio(result, plain_of[line["job"]])
            line["measured"] = result
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(say(line), flush=True)
    table([json.loads(line) for line in args.out.read_text().splitlines()])


def table(lines: list[dict]) -> None:
    """Each plan's ratio beside the planner's, against the mean of the plain runs before and after; and a summary."""
    plain: dict[str, list[float]] = {}
    for line in lines:
        if line["kind"].startswith("plain") and (one := settled(line["measured"])):
            plain.setdefault(line["job"], []).append(one)
    off = []
    for line in lines:
        one, base = settled(line["measured"]), plain.get(line["job"])
        if line["kind"] != "plan" or not one or not base:
            continue
        ratio = line["ratio"] if by_turns(line["measured"]) else one / statistics.mean(base)
        off.append(line["planned_ratio"] / ratio - 1)
        again = f"{max(base) / min(base):.2f}" if len(base) > 1 else ""
        retries = line["measured"]["retries"] / (len(line["measured"]["step_s"]) + 1)
        print(f"{line['job']:28} {line['share']:>3} {line['planned_ratio']:6.2f} {ratio:6.2f} {off[-1]:+6.0%}  plain {1e3 * base[0]:6.1f} ms {again:5} retries {retries:.1f}  {line['what'][:110]}")  # fmt: skip
    if off:
        errors = sorted(abs(one) for one in off)
        within = sum(error <= 0.15 for error in errors)
        print(f"{len(errors)} plans: median {statistics.median(errors):.1%}, within 15 %: {within} ({within / len(errors):.0%})")  # fmt: skip


def settled(result: dict) -> float | None:
    """Median time of a step in the second half, when the allocator has settled: the lower of two, as one of so few steps may load a library."""
    times = result.get("step_s") or []
    return statistics.median_low(times[len(times) // 2 :]) if times else None


def by_turns(result: dict) -> list[float]:
    """What the counted steps of each turn took, seconds."""
    times = result.get("step_s") or []
    whole = [times[at + 1 : at + TURN] for at in result.get("turns", [])]
    return [sum(turn) for turn in whole if len(turn) == TURN - 1]


def ratio(result: dict, plain: dict) -> float | None:
    """A step against the plain job's."""
    if pairs := list(zip(by_turns(result), by_turns(plain), strict=False)):
        return statistics.median(here / there for here, there in pairs)
    here, there = settled(result), settled(plain)
    return here / there if here and there else None


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
