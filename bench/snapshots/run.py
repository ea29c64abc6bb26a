"""Reading and explaining a large snapshot, against CPython's pickle and peers, in one run.

    python bench/snapshots/run.py SNAPSHOT.pickle OOMPH_COMMAND… [--peer NAME=COMMAND]

Each command runs as its own process; wall time and peak memory are the process's own, as the
system reports them. Prints one JSON object per measurement.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import time

PICKLE = "import gc, pickle, sys; gc.disable(); pickle.load(open(sys.argv[1], 'rb'))"
PICKLE_GC = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"


def cpu():
    with open("/proc/cpuinfo") as info:
        names = [line.split(":")[1].strip() for line in info if line.startswith("model name")]
    return f"{names[0]} × {len(names)}" if names else platform.machine()


def measure(name, command, repeats):
    runs = []
    for _ in range(repeats):
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        runs.append(
            {
                "wall_s": round(time.perf_counter() - begin, 3),
                "user_s": round(usage.ru_utime, 3),
                "sys_s": round(usage.ru_stime, 3),
                "max_rss_mib": round(usage.ru_maxrss / 1024),
                "exit": os.waitstatus_to_exitcode(status),
            }
        )
    print(json.dumps({"name": name, "command": shlex.join(command), "runs": runs}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("snapshot")
    parser.add_argument("oomph", help="the oomph command")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    size = os.path.getsize(args.snapshot)
    print(
        json.dumps(
            {
                "date": datetime.date.today().isoformat(),
                "machine": cpu(),
                "python": platform.python_version(),
                "snapshot_bytes": size,
                "load_average_before": os.getloadavg(),
            }
        ),
        flush=True,
    )
    with open(args.snapshot, "rb") as file:  # into the page cache, for everybody
        while file.read(1 << 24):
            pass
    measure("oomph explain", [*shlex.split(args.oomph), "explain", args.snapshot], args.repeats)
    measure("pickle.load, gc off", [sys.executable, "-c", PICKLE, args.snapshot], 1)
    measure("pickle.load", [sys.executable, "-c", PICKLE_GC, args.snapshot], 1)
    for peer in args.peer:
        name, command = peer.split("=", 1)
        measure(name, [*shlex.split(command), args.snapshot], 1)


if __name__ == "__main__":
    main()
