#!/bin/sh
# Lines a second of the whole command, cold process, over a folder of Python code:
#   bench/lint/speed.sh DIR [RUNS]
# Prints the best and the median of the runs. Nothing else should be running.
set -eu
dir=$1
runs=${2:-7}
cargo build --release --quiet -p oomph-cli --example oomph
lines=$(find "$dir" -name '*.py' -type f -print0 | xargs -0 cat | wc -l)
python3 - "$dir" "$runs" "$lines" <<'PY'
import os, subprocess, sys, time
folder, runs, lines = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
command = ["target/release/examples/oomph", "lint", "--isolated", "--output-format", "concise", folder]
walls, cpus = [], []
for _ in range(runs):
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    walls.append(time.perf_counter() - start)
    after = os.times()
    cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
walls.sort()
cpus.sort()
print(f"{lines} lines of Python, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
print(f"wall  best {walls[0]:.2f} s = {lines / walls[0]:,.0f} lines/s   median {walls[runs // 2]:.2f} s = {lines / walls[runs // 2]:,.0f} lines/s")
print(f"cpu   best {cpus[0]:.2f} s = {lines / cpus[0]:,.0f} lines per core-second")
PY
