"""How long `oomph --help` takes, beside Python's own start: `python bench/speed/startup.py [OOMPH] [--out FILE]`.

The commands take turns, and the first rounds, which fill caches, do not count.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

WARM, ROUNDS = 5, 60


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "oomph", nargs="?", default=os.path.join(os.path.dirname(sys.executable), "oomph")
    )
    parser.add_argument("--out")
    args = parser.parse_args()
    python = os.path.join(os.path.dirname(args.oomph), "python")
    commands = {"oomph --help": [args.oomph, "--help"], "python -c pass": [python, "-c", "pass"]}
    times = {name: [] for name in commands}
    for index in range(WARM + ROUNDS):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if index >= WARM:
                times[name].append((time.perf_counter() - began) * 1e3)
    result = dict(
        date=time.strftime("%Y-%m-%d"),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        python=platform.python_version(),
        rounds=ROUNDS,
        milliseconds={
            name: dict(
                min=round(min(values), 1),
                median=round(statistics.median(values), 1),
                max=round(max(values), 1),
            )
            for name, values in times.items()
        },
    )
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        with open(args.out, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
