"""What `oomph run --net` costs of the host where all fits: `python net_launch.py --library liboomph_net.so OUT.json [--pairs 12]`.

Small operators in a process of its own, without the net and with it in turn: nanoseconds of the host for one, in the quickest of
many batches, in which nothing else came between. Neighbors on the machine slow whole processes, so steps of jobs that wait for
the host say less (`net.py --fits`).
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

BATCHES, OF = 400, 200


def child() -> None:
    """Prints the quickest batch and the quickest tenth's last, in ns an operator."""
    import torch

    x = torch.zeros(1, device="cuda")
    times = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        for _ in range(OF):
            x.add_(1)
        times.append((time.perf_counter_ns() - began) / OF)
    times.sort()
    print(json.dumps([times[0], times[len(times) // 10], torch.cuda.get_device_name()]))


def main() -> None:
    """All pairs; the ratio of the quickest, and of the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--library", required=True)
    parser.add_argument("--pairs", type=int, default=12)
    options = parser.parse_args()
    found: "dict[str, list[list[float]]]" = {"without": [], "net": []}
    gpu = ""
    for number in range(2 * options.pairs):
        # First one, then the other comes first.
        kind = ("without", "net")[(number + number // 2) % 2]
        environment = dict(os.environ, OOMPH_BENCH_CHILD="1")
        if kind == "net":
            environment |= dict(LD_PRELOAD=os.path.abspath(options.library), OOMPH_NET="on")
        done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=True)  # fmt: skip
        *times, gpu = json.loads(done.stdout)
        found[kind].append(times)
        print(kind, times, flush=True)
    quickest = {kind: min(times[0] for times in some) for kind, some in found.items()}
    usual = {kind: statistics.median(times[1] for times in some) for kind, some in found.items()}
    result = dict(
        date=datetime.date.today().isoformat(), gpu=gpu, quickest_ns=quickest, usual_ns=usual,
        quickest_ratio=quickest["net"] / quickest["without"], usual_ratio=usual["net"] / usual["without"], processes=found,
    )  # fmt: skip
    with open(options.out, "w") as file:
        json.dump(result, file)
    print({key: result[key] for key in result if key != "processes"})


if __name__ == "__main__":
    child() if "OOMPH_BENCH_CHILD" in os.environ else main()
