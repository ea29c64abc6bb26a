"""A pytest plugin: the CPU seconds of each test, of its children too (`-p tests.support.cpu_seconds`).

Unlike `--durations` they hardly depend on what else the machine does. They are written to
`$CPU_SECONDS` (default: `cpu-seconds.tsv`), the costliest first. A fixture counts for the test that sets it up.
"""

import os
import resource

import pytest

SPENT = "cpu_seconds"
spent = {}


def now():
    """User and system seconds of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    before = now()
    try:
        return (yield)
    finally:
        spent[item.nodeid] = now() - before


def pytest_sessionfinish(session):
    path = os.environ.get("CPU_SECONDS", "cpu-seconds.tsv")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        path += f".{worker}"
    elif not spent:
        return
    with open(path, "w") as file:
        for name, seconds in sorted(spent.items(), key=lambda pair: -pair[1]):
            file.write(f"{seconds:.2f}\t{name}\n")
