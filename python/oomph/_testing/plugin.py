"""What pytest loads wherever oomph is installed: options, markers, a fixture. All else waits until a GPU is named.

Nothing is imported here that pytest has not imported: a run without `--oomph-gpu` must not notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oomph._testing.options import OPTIONS, setting

MARKERS = (
    'gpu_memory(limit): fail if the test holds more GPU memory in tensors at one time than limit, such as "10 GiB" (oomph)',
    'limit_gpu_leaks(limit): fail if the test leaves more GPU memory behind than limit, such as "1 MiB" (oomph)',
    'gpu_uncomputed(rule): what becomes of the test if it checks values that a virtual GPU does not compute: "fail", "skip" or "ignore" (oomph)',
)

NAME = "oomph-tests"
"""The name of the plugin that does the work, in pytest's plugin manager."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and settings of the same names."""
    group = parser.getgroup("oomph", "GPU memory, on a virtual GPU (oomph)")
    for name, metavar, _, text in OPTIONS:
        group.addoption(f"--oomph-{name}", metavar=metavar, default=None, help=text)
        parser.addini(f"oomph_{name}", text)
    group.addoption(
        "--oomph-update-baseline", action="store_true", help="write the baseline anew, and compare nothing"
    )  # fmt: skip
    group.addoption(
        "--oomph-unsupported", action="store_true",
        help="run with a version of torch that is not known to work on the virtual GPU",
    )  # fmt: skip


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Iterator[None]:
    """Start pytest again on the virtual GPU, before anything is captured and any conftest is imported."""
    gpu = setting(early_config, "gpu")
    if gpu:
        from oomph._testing import preload

        early_config.pluginmanager.register(preload.begin(early_config, gpu), NAME)
    yield


def pytest_configure(config: pytest.Config) -> None:
    """The markers are known, and without a GPU do nothing."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> Any:
    """What the test holds of the GPU's memory so far: `peak`, `reserved`, `allocated`, in bytes; `categories`,
    `modules`, `places`, `steps`."""
    tests = request.config.pluginmanager.get_plugin(NAME)
    if tests is None:
        pytest.skip("needs a virtual GPU: pytest --oomph-gpu NAME")
    return tests.memory()
