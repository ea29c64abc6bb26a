"""A pytest plugin: the CPU seconds of each test, of its children too (`-p tests.support.cpu_seconds`).

Unlike `--durations` they hardly depend on what else the machine does. They are written to
`$CPU_SECONDS` (default: `cpu-seconds.tsv`), the costliest first. A fixture counts for the test that sets it up,
and a script for the test that ran it, though the fork server, or a process that has imported a framework
(`support/levers.py`), is its parent.
"""

import os
import resource

import pytest

spent = {}
FORKED = "TESTS_FORKED_SECONDS"
"""Where the fork server writes what its processes took."""


def now():
    """User and system seconds of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def note(seconds, test=None):
    """What a process took that is no child of this one; `test` is as in `PYTEST_CURRENT_TEST`."""
    file = os.environ.get(FORKED)
    test = (os.environ.get("PYTEST_CURRENT_TEST", "") if test is None else test).rpartition(" (")[0]
    if file is not None:
        with open(file, "a") as out:
            out.write(f"{seconds:.2f}\t{test}\n")


def path():
    """Of this process."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    return os.environ.get("CPU_SECONDS", "cpu-seconds.tsv") + (f".{worker}" if worker else "")


def pytest_sessionstart(session):
    os.environ[FORKED] = os.path.abspath(path()) + ".forked"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    before = now()
    try:
        return (yield)
    finally:
        spent[item.nodeid] = now() - before


def pytest_sessionfinish(session):
    if not spent:
        return
    if os.path.exists(os.environ[FORKED]):
        with open(os.environ[FORKED]) as file:
            for line in file:
                seconds, name = line.rstrip("\n").split("\t")
                spent[name] = spent.get(name, 0) + float(seconds)
        os.remove(os.environ[FORKED])
    with open(path(), "w") as file:
        for name, seconds in sorted(spent.items(), key=lambda pair: -pair[1]):
            file.write(f"{seconds:.2f}\t{name}\n")
