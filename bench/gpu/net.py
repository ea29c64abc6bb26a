"""What `oomph run --net` does for twelve jobs on a GPU that is smaller than they need.

    python bench/gpu/net.py --library target/release/liboomph_net.so --out FILE [--job NAME ...] [--share 90 75 50]

Each job runs plain, and then with the device memory that the net hands out limited to a share of what the
plain job reserved: blind (what comes last lies on the host) and with the net. `--fits` measures instead what the
net costs where all fits. One line of JSON for each run: the median of the last steps, in ms (the GPU is waited
for after each step); whether losses and parameters are those of the plain job, bit by bit; what lay on the host.

Runs are forked from one process that has imported what jobs need, so that each takes seconds.
"""

import argparse
import datetime
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

HERE = Path(__file__).parent
EARLY = 3
"""Blind runs end after so many steps: they are slow."""


def checksum(parameters):
    total = 0
    for p in parameters:
        total = zlib.crc32(p.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy(), total)
    return total


def mark(line):
    """Writes into the net's own log."""
    _, found, path = os.environ.get("OOMPH_NET", "").partition(",log=")
    if found:
        with open(path, "a") as log:
            log.write(f"{line}\n")


def measure(job, steps, small, alike, most):
    """Runs a job in this process; `alike` is a step whose parameters are compared beside the last one's. After `most` seconds of steps it
    ends with what it has."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    # These choose what is not the same each time.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
    began = time.time()
    step, parameters = JOBS[job](small)
    losses, times, sums, seconds = [], [], {}, 0
    for number in range(1, steps + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
        losses.append(float(loss).hex())
        if number in (EARLY, alike, steps):
            sums[number] = checksum(parameters)
        seconds += times[-1] / 1e3
        mark(f"step {number} of the job: {times[-1]:.1f} ms")
        if seconds > most:
            break
    return dict(
        ms=[round(t, 2) for t in times], losses=losses, sums=sums, seconds=round(time.time() - began, 1),
        allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved(),
        retries=torch.cuda.memory_stats().get("num_alloc_retries", 0),
    )  # fmt: skip


def run(job, steps, net, options, alike, steady=True):
    """Runs a job in a forked process, its gradients kept in their places if `steady`; what it said, and what it printed."""
    read, write = os.pipe()
    said = tempfile.TemporaryFile("w+")
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(read)
        os.dup2(said.fileno(), 2)
        try:
            if net:
                os.environ["OOMPH_NET"] = net
                if steady:
                    _steady_gradients.install()
            else:
                os.environ.pop("OOMPH_NET", None)
            result = measure(job, steps, options.small, alike, options.seconds)
        except Exception as error:
            result = dict(error=f"{type(error).__name__}: {error}"[:300])
        with os.fdopen(write, "w") as out:
            json.dump(result, out)
        # The net says what it was when the process ends; Python's own end would take seconds.
        ctypes.CDLL(None).exit(0)
    os.close(write)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
    signal.alarm(options.limit)
    with os.fdopen(read) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    said.seek(0)
    lines = [line for line in said.read().splitlines() if line.startswith("oomph")]
    if not text:
        return dict(error=f"ended with {status}"), lines
    return json.loads(text), lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--job", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--share", nargs="+", type=int, default=[90, 75, 50])
    parser.add_argument(
        "--mode",
        nargs="+",
        default=["blind", "rhythm"],
        help="settings of OOMPH_NET may follow: rhythm,unit=8388608",
    )
    parser.add_argument("--steps", type=int, default=36)
    parser.add_argument("--plain-steps", type=int, help="of the plain run, if not as many")
    parser.add_argument("--host", type=int, default=64, help="host memory for the net, GiB")
    parser.add_argument("--limit", type=int, default=90, help="seconds for one run")
    parser.add_argument(
        "--seconds", type=float, default=10**9, help="steps of one run end after so many seconds"
    )
    parser.add_argument(
        "--until", type=int, default=10**9, help="begin no job after so many seconds"
    )
    parser.add_argument("--fits", action="store_true")
    parser.add_argument(
        "--free-first", action="store_true", help="jobs free gradients before the forward pass"
    )
    parser.add_argument(
        "--wandering", action="store_true", help="gradients are not kept in their places"
    )
    parser.add_argument("--small", action="store_true", help="to try the script on a virtual GPU")
    parser.add_argument("--log", help="a folder for the net's own log of each run")
    options = parser.parse_args()
    net_jobs.FREE_FIRST = options.free_first
    began = time.time()
    try:
        ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpu = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
    except OSError:
        gpu = ""
    command = " ".join(word.rsplit("/", 1)[-1] for word in sys.argv)
    about = dict(date=datetime.date.today().isoformat(), gpu=gpu, torch=torch.__version__, command=command)  # fmt: skip
    host = options.host << 30
    alike = options.plain_steps or options.steps

    def note(job, share, mode, result, lines, plain):
        times = result.pop("ms", [])
        losses, sums = result.pop("losses", []), result.pop("sums", {})
        row = dict(job=job, share=share, mode=mode, **result, said=lines)
        if times:
            row["ms"] = round(statistics.median(times[-6:] if len(times) >= 16 else times[1:]), 2)
            row["all_ms"] = times
        if plain and times:
            row["ratio"] = round(row["ms"] / plain["ms_median"], 3)
            differs = [
                n
                for n, (a, b) in enumerate(zip(losses, plain["losses"], strict=False), 1)
                if a != b
            ][:1]
            common = sums.keys() & plain["sums"].keys()
            if any(sums[n] != plain["sums"][n] for n in common):
                differs.append("parameters")
            row["bitwise"] = not differs
            if differs:
                row["differs"] = differs
        with open(options.out, "a") as file:
            file.write(json.dumps({**row, **about}) + "\n")
        shown = {
            k: row.get(k)
            for k in ("ms", "ratio", "bitwise", "differs", "retries", "error", "seconds")
        }
        print(f"{time.time() - began:5.0f} s {job} {share} {mode}", shown, lines[-1:], flush=True)  # fmt: skip
        return row.get("bitwise", True)

    def plain_of(job):
        result, lines = run(job, alike, "", options, alike)
        if "error" in result:
            note(job, 100, "plain", result, lines, None)
            return None
        result["ms_median"] = statistics.median(result["ms"][-6:])
        note(job, 100, "plain", dict(result), lines, result)
        return result

    if options.fits:
        for job in options.job * 2:
            for mode, net in (("plain", ""), ("fits", "on")):
                result, lines = run(job, options.steps, net, options, alike)
                note(job, 100, mode, result, lines, None)
        return
    plains = {}
    for share, job in itertools.product(options.share, options.job):
        if time.time() - began > options.until:
            break
        if job not in plains:
            plains[job] = plain_of(job)
        plain = plains[job]
        if plain is None:
            continue
        same = True
        for mode in options.mode:
            device = plain["reserved"] * share // 100
            net = f"mode={mode},device={device},host={host}" if mode != "plain" else ""
            if options.log and net:
                net += f",log={options.log}/{job}_{share}_{mode.replace(',', '_')}.log"
            steps = EARLY if mode == "blind" else options.steps
            result, lines = run(job, steps, net, options, alike, not options.wandering)
            same = note(job, share, mode, result, lines, plain) and same
        if not same:
            # Is it the net, or is the plain job not the same each time?
            again, lines = run(job, EARLY, "", options, alike)
            note(job, 100, "plain again", again, lines, plain)


if __name__ == "__main__":
    library = sys.argv[sys.argv.index("--library") + 1] if "--library" in sys.argv else ""
    if library and library not in os.environ.get("LD_PRELOAD", ""):
        preload = ":".join(filter(None, [os.path.abspath(library), os.environ.get("LD_PRELOAD")]))
        os.environ.update(LD_PRELOAD=preload, CUBLAS_WORKSPACE_CONFIG=":4096:8")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    import ctypes

    import torch

    sys.path[:0] = [str(HERE / "jobs"), str(HERE.parents[1] / "python")]
    try:
        import torchvision  # noqa: F401
        import transformers  # noqa: F401
        from transformers import GPT2LMHeadModel, LlamaForCausalLM, T5ForConditionalGeneration  # noqa: F401
    except ImportError:
        pass
    import net_jobs
    from net_jobs import JOBS

    from oomph import _steady_gradients

    main()
