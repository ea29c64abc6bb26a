"""A pytest plugin: writes each test's outcome down at once, and ends the process where a test takes too long.

`OTHERS_LOG` is the file, `OTHERS_SECONDS` the limit of a test. With `OTHERS_DEFAULT_DEVICE` new tensors are on that device: for
projects whose tests name none.
"""

import faulthandler
import json
import os
import time

import pytest
import torch


def log(**event) -> None:
    with open(os.environ["OTHERS_LOG"], "a") as file:
        file.write(json.dumps(event) + "\n")


def allocations() -> int:
    """How many times this process has asked for GPU memory."""
    if not torch.cuda.is_initialized():
        return 0
    return sum(
        torch.cuda.memory_stats(device).get("allocation.all.allocated", 0)
        for device in range(torch.cuda.device_count())
    )


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("OTHERS_DEFAULT_DEVICE"):
        torch.set_default_device(os.environ["OTHERS_DEFAULT_DEVICE"])


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):
    log(what="begin", test=item.nodeid)
    before, began = allocations(), time.perf_counter()
    with open(os.environ["OTHERS_LOG"] + ".stacks", "w") as stacks:
        faulthandler.dump_traceback_later(
            float(os.environ["OTHERS_SECONDS"]), exit=True, file=stacks
        )
        yield
        faulthandler.cancel_dump_traceback_later()
    uses = allocations() != before
    log(what="end", test=item.nodeid, seconds=round(time.perf_counter() - began, 2), gpu=uses)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    reason = ""
    if report.skipped:
        reason = (
            str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "expected to fail"
        )
    elif report.failed:
        reason = str(report.longrepr)[-2500:]
    log(what=report.outcome, test=report.nodeid, reason=reason)
