"""What the black box costs a job on a GPU, and what is on disk after each kind of end.

    python bench/gpu/black_box.py --out bench/gpu/results/NAME.json

Cost: each job of `jobs/steady.py` makes 200 steps with and without the box, both under `oomph run`, in alternating
processes; `plain` is the script alone. What is compared is the median of the second half of the steps, after the recorder has
left. Ends: a job ends in each way in turn. For each there is how long after its end the last file was complete, how large
the run's directory is, what `oomph explain` says of it, and whether the snapshot is one.
"""

import argparse
import json
import os
import pickle
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from datetime import datetime, timezone
from pathlib import Path

import torch

STEADY = Path(__file__).parent / "jobs" / "steady.py"
JOBS = ("launch_bound", "swin_t", "gpt2", "resnet18", "trainer")
MODES = ("plain", "without", "with")

ENDS = {
    "out of memory": "torch.empty(1 << 44, dtype=torch.uint8, device='cuda')",
    "exception": "raise ValueError('bad batch')",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "os._exit": "os._exit(7)",
    "abort": "os.abort()",
    "segfault": "ctypes.string_at(0)",
    "hang in Python": "time.sleep(9); os._exit(0)",
    "hang in native code": "ctypes.PyDLL(None).sleep(9); os._exit(0)",
    "hang on the GPU": "torch.cuda._sleep(int(1.5e10)); torch.cuda.synchronize(); os._exit(0)",
    "command killed": "time.sleep(60)",
}

JOB = """
import ctypes, os, signal, time
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
        self.ends = False

    def forward(self, x):
        if self.ends:
            with open("ended", "w"):
                pass
            END
        return x + self.layers(x)

net = nn.Sequential(*(Block() for _ in range(24))).cuda()
optimizer = torch.optim.AdamW(net.parameters())
x = torch.randn(256, 1024, device="cuda")
for number in range(STEPS):
    if number == STEPS - 1:
        torch.cuda.synchronize()
        net[12].ends = True
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


HOST = """
import statistics, time
import torch
from torch import nn

net = nn.Sequential(*(layer for _ in range(40) for layer in (nn.Linear(64, 64), nn.ReLU()))).cuda()
optimizer = torch.optim.AdamW(net.parameters())
x = torch.randn(32, 64, device="cuda")

def step():
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

for _ in range(150):
    step()
main, process, blocks = time.thread_time(), time.process_time(), []
for _ in range(40):
    began = time.thread_time()
    for _ in range(10):
        step()
    blocks.append((time.thread_time() - began) / 10)
    time.sleep(0.05)
print("HOST", statistics.median(blocks) * 1e6, (time.process_time() - process) / 400 * 1e6)
"""
"""Bound by the host: the CPU time of its main thread, and of the process, in each step."""


def environment(options):
    return dict(os.environ, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "4"))


def command(options, *words):
    gpu = ["--gpu", options.gpu] if options.gpu else []
    return [sys.executable, "-m", "oomph", "run", *gpu, *words]


def cost(job, mode, options):
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "times.json"
        script = [str(STEADY), job, "--steps", str(options.steps), "--out", str(made)]
        script += ["--small"] if options.small else []
        out = str(Path(directory) / "run")
        words = {
            "plain": [sys.executable, *script],
            "without": command(options, "--no-black-box", "--out", out, *script),
            "with": command(options, "--out", out, *script),
        }[mode]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment(options))  # fmt: skip
        if not made.exists():
            return dict(job=job, mode=mode, error=(done.stdout + done.stderr)[-1500:])
        blocks = json.loads(made.read_text())["ms"]
        half = blocks[len(blocks) // 2 :]
        return dict(job=job, mode=mode, ms=round(statistics.median(half), 4), blocks=blocks)


def host(mode, options):
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "host.py").write_text(HOST)
        words = ["--no-black-box"] if mode == "without" else []
        words = command(options, "--out", str(Path(directory) / "run"), *words, "host.py")
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, cwd=directory, env=environment(options)
        )  # fmt: skip
        found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("HOST ")]
        if not found:
            return dict(mode=mode, error=(done.stdout + done.stderr)[-1500:])
        main, process = map(float, found[0])
        return dict(mode=mode, main_us=round(main, 1), process_us=round(process, 1))


def ended(end, code, options):
    """One end: the files, their size, how long after it they were complete, and what is said of them."""
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        text = JOB.replace("END", code).replace("STEPS", str(options.end_steps))
        (place / "job.py").write_text(textwrap.dedent(text))
        words = command(options, "--no-measure", "--stall", "3", "--out", "run", "job.py")
        process = subprocess.Popen(
            words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(options),
        )  # fmt: skip
        if end == "command killed":
            while not (place / "ended").exists() and process.poll() is None:
                time.sleep(0.05)
            time.sleep(2)
            process.send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=150)
        run = place / "run"
        began = (place / "ended").stat().st_mtime if (place / "ended").exists() else None
        script = ("held.pickle", "stacks.txt", "record.json")
        files = {path.name: path.stat() for path in run.iterdir()}
        later = {
            name: round(stat.st_mtime - began, 2)
            for name, stat in files.items()
            if began is not None and name in script
        }
        held = run / "held.pickle"
        bytes_held = None
        if held.exists():
            with open(held, "rb") as file:
                segments = pickle.load(file)["segments"]
            bytes_held = sum(segment["allocated_size"] for segment in segments)
        explained = subprocess.run(
            [sys.executable, "-m", "oomph", "explain", "run"], cwd=place, capture_output=True, text=True, check=False
        )  # fmt: skip
        return dict(
            end=end, status=process.returncode, size_mb=round(sum(s.st_size for s in files.values()) / 1e6, 2),
            files=sorted(files), seconds_after_end=later, bytes_held=bytes_held,
            said=[line for line in err.splitlines() if line.startswith("oomph:")][:6],
            explained=explained.stdout.splitlines()[:14], explain_status=explained.returncode,
            error=explained.stderr[-500:], report=(run / "index.html").exists(), out=out[-300:],
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--job", nargs="*", default=list(JOBS))
    parser.add_argument("--mode", nargs="*", default=list(MODES))
    parser.add_argument("--end", nargs="*", default=list(ENDS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--end-steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--host-rounds", type=int, default=3)
    parser.add_argument("--gpu", help="a virtual GPU, to try the script")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    about = dict(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"), command=" ".join(sys.argv),
        machine=torch.cuda.get_device_name() if torch.cuda.is_available() else "none", cores=os.cpu_count(),
        torch=torch.__version__, python=platform.python_version(),
    )  # fmt: skip
    rows, ends, hosts = [], [], []

    def keep():
        # As it grows: a machine may be taken away.
        result = dict(about, cost=rows, ends=ends, host=hosts)
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n")

    for end in options.end:
        ends.append(ended(end, ENDS[end], options))
        row = {key: ends[-1][key] for key in ("end", "status", "size_mb", "seconds_after_end", "report")}  # fmt: skip
        print(json.dumps(row), *ends[-1]["explained"][:3], sep="\n  ", flush=True)
        keep()
    for number in range(options.host_rounds):
        for mode in ("without", "with") if number % 2 == 0 else ("with", "without"):
            hosts.append(host(mode, options))
            print(json.dumps(dict(host=hosts[-1])), flush=True)
            keep()
    modes = [mode for mode in options.mode if not (options.gpu and mode == "plain")]
    for job in options.job:
        for number in range(options.rounds):
            for mode in modes if number % 2 == 0 else modes[::-1]:
                rows.append(cost(job, mode, options))
                shown = {key: value for key, value in rows[-1].items() if key != "blocks"}
                print(json.dumps(shown), flush=True)
                keep()


if __name__ == "__main__":
    main()
