"""A pytest plugin: values are computed as in `oomph run`, and each test's outcome is logged at once.

With VGPU_EXPANDABLE set, the allocator uses expandable segments, as test_cuda_expandable_segments.py
of PyTorch does.
"""

import faulthandler
import json
import os

import pytest
import torch

if os.environ.get("OOMPH_VGPU"):
    from oomph._virtual_gpu.assumptions import Assumptions
    from oomph._virtual_gpu.values import ValueLayer

    ValueLayer(Assumptions()).install()


def log(what: str, test: str, reason: str = "") -> None:
    with open(os.environ["VGPU_LOG"], "a") as file:
        file.write(json.dumps(dict(what=what, test=test, reason=reason)) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    if os.environ.get("VGPU_EXPANDABLE") and not session.config.option.collectonly:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        for item in session.items:
            if hasattr(item.cls, "expandable_segments"):
                item.cls.expandable_segments = property(lambda _: True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    log("begin", item.nodeid)
    faulthandler.dump_traceback_later(float(os.environ["VGPU_SECONDS"]), exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        reason = ""
        if report.skipped:
            reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "xfail"
        elif report.failed:
            reason = str(report.longrepr)[-1500:]
        log(report.outcome, report.nodeid, reason)
