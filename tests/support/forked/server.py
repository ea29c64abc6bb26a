"""The product's fork server (`oomph._forks.server`), which notes how long each test's scripts used a core."""

import os
import resource

from oomph._forks import server


def note_seconds(request):
    """For `tests/support/cpu_seconds.py`."""
    path = os.environ.get("TESTS_FORKED_SECONDS")
    test = request["environment"].get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if path is not None:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(path, "a") as file:
            file.write(f"{used.ru_utime + used.ru_stime:.2f}\t{test}\n")


if __name__ == "__main__":
    server.main(note_seconds)
