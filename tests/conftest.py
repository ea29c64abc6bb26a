"""Runs real scripts through the installed command."""

import os
import subprocess
import sys
import textwrap

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there

pytest.register_assert_rewrite("tests.support")

from tests.support import forked  # noqa: E402  (rewritten from here on)
from tests.support.command import OOMPH, Run  # noqa: E402


def pytest_addoption(parser):
    parser.addoption(
        "--start-each", action="store_true", help="start a Python for each script; none is forked"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what `slow.toml` names, before tests are chosen by their marks."""
    with open(os.path.join(os.path.dirname(__file__), "slow.toml"), "rb") as file:
        names = [name for group in tomllib.load(file)["group"] for name in group["tests"]]
    found = {item.nodeid.removeprefix("tests/"): item for item in items}
    modules = {test.partition("::")[0] for test in found}
    whole = not any("::" in argument for argument in config.args)
    for name in names:
        slow = [
            item
            for test, item in found.items()
            if test == name or test.startswith(name if "[" in name else f"{name}[")
        ]
        for item in slow:
            item.add_marker(pytest.mark.slow)
        if not slow and whole and name.partition("::")[0] in modules:
            raise pytest.UsageError(f"tests/slow.toml: no test is called {name}")


@pytest.fixture(scope="session", autouse=True)
def fork_server(request, tmp_path_factory):
    """Fork the scripts of all commands from one process that has imported torch (`support/forked`)."""
    # Two workers that each start as many threads as there are cores wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if request.config.getoption("--start-each"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(forked.FORKS, "")
            yield
        return
    place = tmp_path_factory.mktemp("forks")
    with forked.server(place) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def started(monkeypatch):
    """For tests of how Python is started: their scripts are not forked."""
    monkeypatch.setenv(forked.FORKS, "")


@pytest.fixture
def frameworks(started, monkeypatch):
    """For tests of JAX and CuPy, which scripts find in a directory of their own (`requirements-frameworks.txt`)."""
    place = os.path.join(sys.prefix, "frameworks", "site-packages")
    if not os.path.isdir(os.path.join(place, "jax")):
        pytest.skip(
            "JAX and CuPy are not installed: make .venv/.packages, with Python 3.11 or later"
        )
    monkeypatch.setenv("PYTHONPATH", place)


@pytest.fixture(autouse=True)
def same_environment():
    """Libraries set variables when they are imported, which scripts of later tests would inherit."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update({k: v for k, v in before.items() if os.environ.get(k) != v})


@pytest.fixture
def oomph(tmp_path):
    """`oomph(code, *options, args=…, gpu=…)`: run `code` as a script on a virtual GPU."""

    def run(code, *options, args=(), gpu="rtx-3060", env=None):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        command = [
            OOMPH,
            "run",
            "--json",
            str(tmp_path / "result.json"),
            "--out",
            str(tmp_path / "run"),
        ]
        command += ["--gpu", gpu] if gpu else []
        process = subprocess.run(
            [*command, *options, str(script), *args],
            capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "COLUMNS": "100", **(env or {})}, timeout=300,
        )  # fmt: skip
        return Run(process, tmp_path)

    return run
