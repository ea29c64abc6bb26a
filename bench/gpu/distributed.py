"""Measures the jobs of bench/distributed on this machine's GPUs: `distributed.py OUT.jsonl [SECONDS]`.

One `torchrun` a job, each with a time limit; lines are written as they come, so that what was
measured stays when time runs out.
"""

import importlib.util, os, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "..", "distributed", "jobs", "own.py")
LIMIT = 60


def jobs():
    spec = importlib.util.spec_from_file_location("cases", CASES)
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    return [("nccl",), ("nccl", "-", "eager"), *cases.JOBS]


def main():
    out, seconds = sys.argv[1], float((sys.argv[2:] or ["1e9"])[0])
    import torch

    count, began = torch.cuda.device_count(), time.time()
    for job in jobs():
        left = seconds - (time.time() - began)
        if left < 5:
            print("no time left for", *job)
            continue
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(count),
            "--master-port",
            "29517",
            CASES,
            *job,
        ]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=min(LIMIT, left))
        except subprocess.TimeoutExpired:
            print("too slow:", *job)
            continue
        lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
        with open(out, "a") as file:
            file.writelines(line + "\n" for line in lines)
        print(
            *job,
            len(lines),
            f"{time.time() - began:.0f} s",
            "" if lines else run.stderr[-1500:],
            flush=True,
        )


if __name__ == "__main__":
    main()
