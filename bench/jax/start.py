"""What a start of JAX takes, on the CPU and on virtual GPUs: `python bench/jax/start.py RESULTS.jsonl [GPU ...] [--rounds N]`.

Each round starts `import jax; jax.numpy.ones(1)` once on the CPU without oomph, and once per GPU under `oomph run`, with the pool that JAX takes
in advance and without one. A row has the seconds of user and system, the page faults and the largest resident size (KiB) of the processes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = "import jax\njax.numpy.ones(1)\n"


def start(words, directory, **settings):
    """Start a command; what it and its children took."""
    with subprocess.Popen(
        words,
        cwd=directory,
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{words} ended with status {process.returncode}")
    return {
        "user_s": round(used.ru_utime, 2),
        "system_s": round(used.ru_stime, 2),
        "faults": used.ru_minflt,
        "resident_kib": used.ru_maxrss,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("gpus", nargs="*", default=["t4", "l4", "a100", "h100", "h200"])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, asked.results.open("a") as results:
        Path(directory, "ones.py").write_text(SCRIPT)

        def row(words, gpu, pool, **settings):
            used = start([sys.executable, *words, "ones.py"], directory, **settings)
            print(json.dumps({"gpu": gpu, "pool": pool, **used}), file=results, flush=True)

        for _ in range(asked.rounds):
            row([], None, False, JAX_PLATFORMS="cpu")
            for gpu in asked.gpus:
                for pool in (True, False):
                    words = ["-m", "oomph", "run", "--gpu", gpu]
                    row(words, gpu, pool, XLA_PYTHON_CLIENT_PREALLOCATE=str(pool).lower())


if __name__ == "__main__":
    main()
