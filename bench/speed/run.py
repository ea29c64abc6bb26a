"""Time and memory of the whole command against importing the same libraries: `make bench-speed`.

    python bench/speed/run.py [--rounds N] [--out FILE]

Each round times, one after the other, the imports of torch, torchvision and transformers in a fresh
interpreter and `oomph run --gpu h200` of two jobs of bench/accuracy; the ratio of medians is what
counts, the machine is noisy. Resident memory is that of the largest process of each, of the imports
and of a job that holds 25 GiB on the GPU. `oomph --help` is timed beside it.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
JOBS = os.path.join(HERE, "..", "accuracy", "jobs")
OOMPH = os.path.join(os.path.dirname(sys.executable), "oomph")
IMPORTS = [sys.executable, "-c", "import torch, torchvision, transformers"]


def measure(command):
    """Seconds, and resident bytes of the largest process of `command`."""
    reader, writer = os.pipe()
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        # A process of its own, so that its children's peak is not mixed with other commands'.
        process = subprocess.run(
            command, cwd=JOBS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        usage = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        os.write(
            writer, json.dumps([process.returncode, usage, process.stderr[-500:].decode()]).encode()
        )
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        status, resident, stderr = json.load(file)
    os.waitpid(child, 0)
    if status:
        sys.exit(f"{command} ended with status {status}: {stderr}")
    return time.perf_counter() - began, resident


def job(file, case, directory):
    return [
        OOMPH,
        "run",
        "--gpu",
        "h200",
        "--steps",
        "3",
        "--quiet",
        "--out",
        directory,
        file,
        case,
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        commands = dict(
            imports=IMPORTS,
            gpt2_b8=job("language.py", "gpt2_b8", place + "/a"),
            resnet50_b32=job("vision.py", "resnet50_b32", place + "/b"),
            help=[OOMPH, "--help"],
        )
        for command in commands.values():  # caches
            measure(command)
        seconds = {name: [] for name in commands}
        for _ in range(args.rounds):
            for name, command in commands.items():
                seconds[name].append(measure(command)[0])
        imported = measure(IMPORTS)[1]
        _, resident = measure(job("language.py", "llama1b_bf16_b4", place + "/c"))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = dict(
        date=time.strftime("%Y-%m-%d"),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        command=" ".join(["python bench/speed/run.py", *sys.argv[1:]]),
        python=platform.python_version(),
        median_seconds=medians,
        ratio_to_imports={
            name: medians[name] / medians["imports"] for name in ("gpt2_b8", "resnet50_b32")
        },
        resident_bytes=dict(
            imports=imported, llama1b_bf16_b4=resident, above_imports=resident - imported
        ),
        seconds=seconds,
    )
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        with open(args.out, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
