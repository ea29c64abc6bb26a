"""Installs a wheel of a folder in an empty environment and uses what works without torch: `python release/try_wheel.py dist`.

`--source` installs the source distribution instead. Under any Python that oomph supports, on any machine that a wheel is for.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
SNAPSHOT = FIXTURES / "oom" / "loss_accumulate.pickle.xz"

# Words, the exit status, and a piece of what is printed.
COMMANDS = [
    (["--version"], 0, "oomph "),
    (["gpus", "rtx-4090"], 0, "RTX 4090"),
    (["explain", SNAPSHOT], 3, "the graphs of 16 earlier steps are still alive"),
    (["replay", SNAPSHOT], 3, "replayed 11131 events of device 0: exact"),
    (["lint", "--select", "OOM416", ROOT / "examples"], 3, "OOM416"),
    (["completions", "bash"], 0, "complete"),
    (["run", "--gpu", "t4", ROOT / "examples" / "train_gpt.py"], 2, "torch is not installed"),
    (["doctor"], 1, "torch is not installed"),
]


def main():
    """Install and try; the first thing that is wrong ends it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        python = Path(place, "bin", "python")
        began = time.monotonic()
        if asked.source:
            (source,) = asked.folder.glob("*.tar.gz")
            what = [source]
        else:
            # pip chooses the wheel of this machine, and finds none if there is none.
            what = ["--no-index", "--only-binary", ":all:", "--find-links", asked.folder, "oomph"]
        run(0, "", python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *what)
        print(f"installed in {time.monotonic() - began:.1f} s")
        for words, status, printed in COMMANDS:
            run(status, printed, Path(place, "bin", "oomph"), *words, cwd=place)
        run(
            0,
            "",
            python,
            "-c",
            "import oomph; assert oomph.__version__",
            cwd=place,
        )
        doctor = run(1, "", Path(place, "bin", "oomph"), "doctor", "--json", "-", cwd=place)
        print(json.dumps(json.loads(doctor)["versions"]))


def run(status, printed, *words, **options):
    """Run a command, which must end with `status` and print `printed`; return its standard output."""
    began = time.monotonic()
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "200"}, **options,
    )  # fmt: skip
    said = done.stdout + done.stderr
    shown = " ".join(Path(word).name if os.sep in str(word) else str(word) for word in words)
    if done.returncode != status or printed not in said:
        sys.exit(
            f"{shown}: expected status {status} and {printed!r}, found {done.returncode}:\n{said}"
        )
    print(f"{shown}: as expected, in {time.monotonic() - began:.2f} s")
    return done.stdout


if __name__ == "__main__":
    main()
