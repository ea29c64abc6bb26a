"""SIGTERM and SIGHUP to the command are for the script: a handler saves, and the record is written."""

import os
import signal
import subprocess
import textwrap
import time

import pytest

from tests.support.command import OOMPH

TRAINS = """
    import torch, time
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100_000):
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        if step == 2:
            print("ready", flush=True)
        time.sleep(0.01)
"""
SAVES = """
    import signal, sys
    def save(number, frame):
        open("checkpoint", "w").write(str(number))
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGHUP, save)
"""
STUBBORN = """
    import os, signal, time
    signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
    open("script", "w").write(str(os.getpid()))
    print("ready", flush=True)
    while True:
        time.sleep(1)
"""


@pytest.fixture
def begun(tmp_path):
    """`begun(code, *options)`: the command of a script that has printed `ready`."""
    commands = []

    def begin(code, *options, before=()):
        (tmp_path / "script.py").write_text(textwrap.dedent(code))
        words = [OOMPH, "run", "--gpu", "t4", "--keep-files", "--out", "out", *options]
        if "--" not in options:
            words.append("script.py")
        command = subprocess.Popen(
            [*before, *words],
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        commands.append(command)
        for line in command.stdout:
            if line == "ready\n":
                return command
        raise AssertionError(command.stderr.read())

    yield begin
    for command in commands:
        command.kill()
        command.communicate()


def is_running(script):
    try:
        os.kill(int(script.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def ends(script):
    """Whether the process whose id is in the file `script` ends soon."""
    until = time.monotonic() + 60
    while is_running(script) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_running(script)


@pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="under nohup SIGHUP stays ignored"
)
def test_a_script_without_a_handler_leaves_its_record(begun):
    command = begun(TRAINS)
    command.send_signal(signal.SIGHUP)
    out, _ = command.communicate(timeout=60)
    assert command.returncode == 1
    assert "ended by SIGHUP" in out and "parameters" in out


def test_a_handler_saves_and_nothing_is_called_whole(begun, tmp_path):
    command = begun(textwrap.dedent(SAVES) + textwrap.dedent(TRAINS))
    command.send_signal(signal.SIGTERM)
    out, err = command.communicate(timeout=60)
    assert (tmp_path / "checkpoint").read_text() == str(int(signal.SIGTERM))
    assert command.returncode in (0, 4), err  # some steps may not be enough for a verdict
    assert "parameters" in out and "whole script" not in out


def test_ranks_save_under_their_launcher(begun, tmp_path):
    code = """
    import os, signal, sys, time
    def save(number, frame):
        open("checkpoint" + os.environ["RANK"], "w").write(str(number))
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
    """
    words = ["torchrun", "--standalone", "--nproc-per-node=1", "script.py"]
    command = begun(code, "--no-fork", "--", *words)
    command.send_signal(signal.SIGTERM)
    command.communicate(timeout=60)
    assert (tmp_path / "checkpoint0").exists()


def test_the_grace_ends(begun, tmp_path):
    command = begun(STUBBORN, "--grace", "1")
    sent = time.monotonic()
    command.send_signal(signal.SIGTERM)
    out, err = command.communicate(timeout=60)
    assert 1 <= time.monotonic() - sent < 25  # 30 without the option
    assert out == "no\n" and "SIGTERM ended the script before there was a record" in err
    assert command.returncode == 1
    assert ends(tmp_path / "script")


def test_a_second_signal_ends_at_once(begun, tmp_path):
    command = begun(STUBBORN)
    command.send_signal(signal.SIGTERM)
    assert command.stdout.readline() == "no\n"
    command.send_signal(signal.SIGTERM)
    command.communicate(timeout=25)
    assert command.returncode == -signal.SIGTERM
    assert ends(tmp_path / "script")


def test_a_killed_command_takes_the_script_along(begun, tmp_path):
    command = begun(STUBBORN)
    command.kill()
    command.communicate(timeout=25)
    assert ends(tmp_path / "script")


def test_an_ignored_hangup_stays_ignored(begun, tmp_path):
    command = begun(STUBBORN, before=["nohup"])
    command.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert command.poll() is None and is_running(tmp_path / "script")
