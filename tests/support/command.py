"""The installed command, in a process of its own."""

import os
import subprocess
import sys
import textwrap

from tests.support import schemas

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""Of the repository."""
BIN = os.path.dirname(sys.executable)
OOMPH = os.path.join(BIN, "oomph")


class Run:
    """What one `oomph run` gave."""

    def __init__(self, process, directory):
        self.status, self.out, self.err = process.returncode, process.stdout, process.stderr
        path = os.path.join(directory, "result.json")
        self.json = None
        if os.path.exists(path):
            with open(path) as file:
                self.json = schemas.read(file.read())


class Fit:
    """What a run of `oomph fit` gave."""

    def __init__(self, done, place):
        self.status, self.out, self.err, self.place = (
            done.returncode,
            done.stdout,
            done.stderr,
            place,
        )
        result = place / "fit.json"
        self.json = schemas.read(result.read_text()) if result.exists() else None

    @property
    def chosen(self):
        """The plan that was chosen."""
        return self.json["plans"][self.json["chosen"]]

    @property
    def levers(self):
        """The names of its levers."""
        return [lever["name"] for lever in self.chosen["levers"]]


def command(place, *words):
    """`oomph` with `words`, in `place`."""
    return subprocess.run(
        [os.path.join(BIN, "oomph"), *map(str, words)], cwd=place, capture_output=True, text=True, timeout=600
    )  # fmt: skip


def fit(place, code, *options, gpu="rtx-3060"):
    """`oomph fit` on a script of `code`."""
    (place / "script.py").write_text(textwrap.dedent(code))
    done = command(place, "fit", "--gpu", gpu, "--json", "fit.json", *options, "script.py")
    return Fit(done, place)
