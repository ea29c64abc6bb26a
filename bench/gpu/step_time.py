"""How long steps take: `python bench/gpu/step_time.py OUT [--only JOB …] [--parts host kernel jobs] [--seconds 530]`.

The jobs of bench/accuracy and bench/time, each in a process of its own that has the GPU to itself. OUT is a folder;
each line is written as soon as it is known, so a run that is cut off keeps what it has:

host.jsonl         what single operations take the host (`host_time.py`), at the beginning and at the end
kernels.jsonl.gz   what single kernels take the GPU (`kernel_time.py`)
calibration.jsonl  small steps that calibrate a host (`python/oomph/_calibration.py`), before each round of jobs
jobs.jsonl         one line for each job, seconds: `step_s` is wall time of steps between synchronisations, `issue_s`
                   when the host had issued each step, `event_s` the same steps by CUDA events, `free_s` a step of
                   several without synchronisation, `parts_s` the issue of forward pass, backward pass and optimizer;
                   `modules` how many modules a step calls; `calibration` as above, four times between the steps
profiles.jsonl.gz  one step of each job under PyTorch's profiler: operators with shapes and their kernels

Several processes set up at once (--width); then each measures alone while the others wait.
"""

import argparse
import gzip
import importlib
import importlib.util
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOBS = HERE.parent / "accuracy" / "jobs"
MORE = HERE.parent / "time" / "jobs"
WARM, STEPS, FREE = 3, 21, 10


def listed():
    """All jobs as (set, name), those that take long to get ready last."""
    with open(HERE.parent / "accuracy" / "results" / "h200.jsonl") as file:
        rows = [json.loads(line) for line in file]
    known = [(row["set"], row["case"]) for row in rows if "+" not in row["case"]]
    added = []
    for name in (
        "fresh7",
        "fresh6",
        "fresh5",
        "fresh4",
        "fresh3",
        "fresh2",
        "fresh",
        "held_out",
        "further",
    ):
        jobs = importlib.import_module(name)
        added += [(name, case) for case in [*jobs.JOBS, *getattr(jobs, "INFERENCE", ())]]

    def slow(job):
        return job[0] == "torch_compile" or "bench" in job[1]

    quick = [job for job in known if not slow(job)]
    return added + quick + [job for job in known if slow(job)]


def calibration():
    """The module that calibrates hosts. It is read alone: beside it lie files with names of other packages."""
    path = HERE.parents[1] / "python" / "oomph" / "_calibration.py"
    spec = importlib.util.spec_from_file_location("calibration", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stepper(subject, name):
    """A function that takes one step of a job, and the model."""
    import torch
    from training import make_opt

    jobs = importlib.import_module(subject)
    torch.manual_seed(0)
    if name in jobs.JOBS:
        spec = jobs.JOBS[name]()
        model, batch, lossf = spec["build"]()
        opt = make_opt(spec["opt"], model)
        amp = {"bf16": torch.bfloat16, "fp16": torch.float16, None: None}[spec["amp"]]
        scaler = torch.amp.GradScaler("cuda", enabled=amp is torch.float16)

        def step():
            began = time.perf_counter()
            with torch.autocast("cuda", dtype=amp or torch.bfloat16, enabled=amp is not None):
                loss = lossf(batch())
            forward = time.perf_counter()
            scaler.scale(loss).backward()
            backward = time.perf_counter()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            return forward - began, backward - forward, time.perf_counter() - backward

        return step, model
    spec = jobs.INFERENCE[name]()
    model, batch, _ = spec["build"]()
    model.eval()
    half = name.endswith("half")
    if half:
        model.half()

    def infer():
        with torch.set_grad_enabled(name.endswith("_grad")):
            given = batch()
            given = given[0] if isinstance(given, tuple) else given
            model(given.half() if half else given)

    return infer, model


def timed(step, beside):
    """Times of one job's steps, seconds; `beside` is called before each third of them and at the end."""
    import torch

    def together(count):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    torch.cuda.synchronize()
    for _ in range(WARM):
        step()
    walls, issues, events, parts = [], [], [], []
    for at in range(STEPS):
        if at % (STEPS // 3) == 0:
            beside()
            step()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began = time.perf_counter()
        begin.record()
        parts.append(step())
        end.record()
        issues.append(time.perf_counter() - began)
        torch.cuda.synchronize()
        walls.append(time.perf_counter() - began)
        events.append(begin.elapsed_time(end) / 1e3)
    beside()
    count = FREE if statistics.median(walls) < 0.15 else 4
    return dict(
        step_s=walls,
        issue_s=issues,
        event_s=events,
        parts_s=parts,
        free_s=[together(count) for _ in range(2)],
    )


def module_calls(step):
    """Calls of modules in one step."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    calls = [0]

    def count(module, args):
        calls[0] += 1

    handle = register_module_forward_pre_hook(count)
    step()
    handle.remove()
    return calls[0]


def profiled(body):
    """Runs `body` under PyTorch's profiler; the path of the trace."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True
    ) as done:
        body()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json", delete=False) as file:
        done.export_chrome_trace(file.name)
    return file.name


def condensed(path):
    """What a trace says: each operator of each shape with its kernels, and what the host called.

    `names`: kernels. `rows`: operator, shapes, types, strides, other arguments, and kernels as [name, grid, block,
    shared bytes, launches, microseconds together]. `calls`: calls of CUDA by name, with microseconds. `nodes`,
    `operators`: of autograd; calls that no other contains, in all threads. `busy_us`: kernels and copies.
    """
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    os.unlink(path)
    operators, names, rows, calls = {}, {}, {}, {}
    nodes = outer = busy = 0
    spans = sorted(
        (e for e in events if e.get("cat") in ("cpu_op", "user_annotation")),
        key=lambda e: (e["tid"] if isinstance(e["tid"], int) else 0, e["ts"], -e["dur"]),
    )
    ends = {}
    for event in spans:
        args = event.get("args", {})
        operators[args.get("External id")] = event
        if event["name"].startswith("autograd::engine"):
            nodes += 1
        elif event["name"].startswith("aten::") and event["ts"] >= ends.get(event["tid"], 0):
            outer += 1
            ends[event["tid"]] = event["ts"] + event["dur"]
    for event in events:
        kind, args = event.get("cat"), event.get("args", {})
        if kind in ("cuda_runtime", "cuda_driver"):
            count, total = calls.get(event["name"], (0, 0))
            calls[event["name"]] = (count + 1, total + event["dur"])
        elif kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            busy += event["dur"]
            op = operators.get(args.get("External id"), {"name": "", "args": {}})
            about = [op["name"]] + [
                op["args"].get(key, [])
                for key in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
            ]
            name = names.setdefault(event["name"], len(names))
            shape = (name, *(args.get(key, 0) for key in ("grid", "block", "shared memory")))
            if kind != "kernel":
                shape = (name, args.get("bytes", 0), 0, 0)
            kernels = rows.setdefault(json.dumps(about), {})
            count, total = kernels.get(json.dumps(shape), (0, 0))
            kernels[json.dumps(shape)] = (count + 1, total + event["dur"])
    return dict(
        names=list(names),
        rows=[
            [
                *json.loads(about),
                [[*json.loads(k), n, round(us, 2)] for k, (n, us) in kernels.items()],
            ]
            for about, kernels in rows.items()
        ],
        calls={name: (n, round(us)) for name, (n, us) in calls.items()},
        nodes=nodes,
        operators=outer,
        busy_us=round(busy, 1),
    )


def child(kind, subject, name, pipe):
    """One process: sets up, says so, measures when it is told to, and sends what it found."""
    out, profile, path = dict(set=subject, case=name), None, None
    try:
        import torch

        torch.cuda.init()
        out.update(gpu=torch.cuda.get_device_name(0), torch=torch.__version__)
        if kind == "jobs":
            step, _ = stepper(subject, name)
            step()
            step()
            calls = module_calls(step)
            torch.cuda.synchronize()
            pipe.send("ready")
            pipe.recv()
            # Before the profiler: once that was on, each launch takes longer.
            small = calibration()
            ready, found = small.prepared(), []
            out.update(
                timed(step, lambda: found.append(small.measured(1, 2, ready))), modules=calls
            )
            out.update(calibration=found)
            path = profiled(step)
            del step
        else:
            part = (
                calibration() if kind == "calibration" else importlib.import_module(f"{kind}_time")
            )
            pipe.send("ready")
            pipe.recv()
            if kind in ("host", "calibration"):
                out.update(part.measured() if kind == "host" else dict(steps=part.measured()))
            else:
                out.update(part.gaps())
                path = profiled(part.SECTIONS[name])
        pipe.send("measured")
        pipe.recv()
        if path:
            profile = dict(set=subject, case=name, **condensed(path))
    except Exception:
        out["error"] = traceback.format_exc()[-1500:]
    pipe.send((out, profile))
    pipe.recv()
    os._exit(0)


class Process:
    """A process that measures."""

    def __init__(self, kind, job):
        self.kind, self.job, self.result = kind, job, None
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(
            target=child, args=(kind, *job, theirs), daemon=True
        )
        self.process.start()
        theirs.close()

    def wait(self, seconds):
        """Its next word, or its result early when it failed."""
        if self.result:
            return
        try:
            if not self.pipe.poll(max(seconds, 0.1)):
                self.result = (dict(set=self.job[0], case=self.job[1], error="out of time"), None)
                self.process.kill()
                return
            word = self.pipe.recv()
        except EOFError:
            word = (dict(set=self.job[0], case=self.job[1], error="the process died"), None)
        if isinstance(word, tuple):
            self.result = word

    def tell(self):
        """Let it go on."""
        if not self.result:
            self.pipe.send("go")

    def end(self):
        """Let it end."""
        self.process.kill()
        self.process.join()


class Results:
    """The files in OUT."""

    def __init__(self, out):
        self.out = out
        out.mkdir(parents=True, exist_ok=True)

    def add(self, file, row):
        """Append a line."""
        line = json.dumps(row) + "\n"
        if file.endswith(".gz"):
            with open(self.out / file, "ab") as raw:
                raw.write(gzip.compress(line.encode()))
        else:
            with open(self.out / file, "a") as text:
                text.write(line)


def batch(kind, jobs, results, deadline, said):
    """Some jobs: set up together, measured one after the other."""
    running = [Process(kind, job) for job in jobs]
    left = lambda: deadline - time.monotonic()
    for one in running:
        one.wait(min(left(), 150))
    for one in running:
        one.tell()
        one.wait(min(left(), 90))
    for one in running:
        one.tell()
        one.wait(min(left() + 15, 60))
        if not one.result:
            continue
        row, profile = one.result
        results.add("kernels.jsonl" if kind == "kernel" else f"{kind}.jsonl", row)
        if profile:
            results.add("kernels.jsonl.gz" if kind == "kernel" else "profiles.jsonl.gz", profile)
        median = statistics.median(row["step_s"]) * 1e3 if "step_s" in row else 0
        print(
            f"{said():6.1f} {row['case']:32} {median:9.3f} ms {row.get('error', '')[-160:]}",
            flush=True,
        )
        one.end()


def main():
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", help="these jobs")
    parser.add_argument("--parts", nargs="*", default=["host", "kernel", "jobs"])
    parser.add_argument("--seconds", type=float, default=530, help="begin nothing after these")
    parser.add_argument("--width", type=int, default=8, help="processes that set up at once")
    args = parser.parse_args()
    began = time.monotonic()
    said = lambda: time.monotonic() - began
    deadline = began + args.seconds
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    sys.path[:0] = [str(HERE), str(JOBS), str(MORE)]
    results = Results(args.out)

    # Everything is imported once, and the processes are forked.
    import torch
    import torchvision  # noqa: F401
    import transformers

    for name in (
        "GPT2LMHeadModel",
        "BertForSequenceClassification",
        "T5ForConditionalGeneration",
        "LlamaForCausalLM",
    ):
        getattr(transformers, name)
    assert not torch.cuda.is_initialized()
    print(f"{said():6.1f} imported", flush=True)

    jobs = [job for job in listed() if not args.only or job[1] in args.only]
    if "host" in args.parts:
        batch("host", [("host", "before")], results, deadline, said)
    if "kernel" in args.parts:
        import kernel_time

        sections = [("kernel", name) for name in kernel_time.SECTIONS]
        batch("kernel", sections, results, min(deadline, began + args.seconds * 0.35), said)
    if "jobs" in args.parts:
        while jobs and time.monotonic() < deadline - 10:
            batch("calibration", [("calibration", f"{said():.0f}")], results, deadline, said)
            batch("jobs", jobs[: args.width], results, deadline, said)
            jobs = jobs[args.width :]
        for subject, case in jobs:
            results.add("jobs.jsonl", dict(set=subject, case=case, error="no time was left"))
    if "host" in args.parts:
        batch("host", [("host", "after")], results, deadline + 20, said)


if __name__ == "__main__":
    main()
