"""`oomph run` on a terminal: the script's own output, and the status line under it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from tests.support.command import OOMPH

STATUS = re.compile(rb"\r\x1b\[K(\x1b\[2m(.*?)\x1b\[0m)?")


class Terminal:
    """A pseudo-terminal with a command in it."""

    def __init__(self, words, cwd, columns=100, **more):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        environment = {
            **os.environ,
            "TERM": "xterm",
            "LC_ALL": "C.UTF-8",
            "COLUMNS": str(columns),
            **more,
        }
        environment.pop("CI", None)
        self.process = subprocess.Popen(
            words, cwd=cwd, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )  # fmt: skip
        os.close(slave)
        self.output = b""

    def read(self, until, limit=120):
        """Collect output until `until` is in it, or the end."""
        deadline = time.monotonic() + limit
        while until is None or until not in self.output:
            assert time.monotonic() < deadline, self.output[-2000:]
            if not select.select([self.master], [], [], 1)[0]:
                continue
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:
                break
            if not data:
                break
            self.output += data

    def finish(self):
        self.read(None)
        return self.process.wait(60)


def own_output(output):
    """What is left without the status lines, as the terminal would show it."""
    return STATUS.sub(b"", output).replace(b"\r\n", b"\n").decode()


def test_output_passes_unchanged_and_the_status_tells_the_step(tmp_path):
    (tmp_path / "job.py").write_text(
        "import os, sys, time, torch\n"
        "print('terminals', sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size().columns)\n"
        "m = torch.nn.Linear(64, 64).cuda(); o = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for step in range(3):\n"
        "    m(torch.zeros(8, 64).cuda()).sum().backward(); o.step(); o.zero_grad()\n"
        "    time.sleep(0.4)\n"
        "for n in range(3):\n"
        "    print(f'\\rprogress {n}', end='', flush=True); time.sleep(0.3)\n"
        "print(); print('done ✓', file=sys.stderr)\n"
    )
    terminal = Terminal([OOMPH, "run", "--gpu", "t4", "job.py"], tmp_path)
    assert terminal.finish() == 0
    shown = own_output(terminal.output)
    assert "terminals True True 100\n\rprogress 0\rprogress 1\rprogress 2\ndone ✓\n" in shown
    assert "fits" in shown
    statuses = {found[1].decode() for found in STATUS.findall(terminal.output)}
    assert any("running · step " in status for status in statuses), statuses


def test_an_interrupt_reaches_the_script_and_the_record_is_kept(tmp_path):
    (tmp_path / "job.py").write_text(
        "import time, torch\n"
        "x = torch.zeros(1 << 20).cuda()\n"
        "print('ready', flush=True)\n"
        "time.sleep(100)\n"
    )
    terminal = Terminal(
        [OOMPH, "run", "--gpu", "t4", "--out", "run", "--json", "out.json", "job.py"], tmp_path
    )
    terminal.read(b"ready")
    os.killpg(terminal.process.pid, signal.SIGINT)
    status = terminal.finish()
    assert status == 130
    assert (tmp_path / "run" / "record.json").exists()
    assert '"script_failed"' in (tmp_path / "out.json").read_text()
    shown = own_output(terminal.output)
    assert "interrupted; this is its memory until then" in shown and "failed" not in shown


def test_own_lines_are_as_narrow_as_the_terminal(tmp_path):
    (tmp_path / "job.py").write_text(
        "import torch\n"
        "from oomph._says import say\n"
        "say('a line that the script has oomph print, which is longer than the sixty columns that there are')\n"
    )
    words = [
        OOMPH,
        "run",
        "--gpu",
        "t4",
        "--plan",
        "no-such-plan-in-this-directory-or-anywhere.toml",
        "job.py",
    ]
    refused = Terminal(words, tmp_path, columns=60)
    assert refused.finish() == 2
    ran = Terminal([OOMPH, "run", "--gpu", "t4", "job.py"], tmp_path, columns=60)
    assert ran.finish() == 0
    for output, begin in ((refused.output, "error: "), (ran.output, "oomph: a line")):
        lines = own_output(output).splitlines()
        [first] = [number for number, line in enumerate(lines) if line.startswith(begin)]
        assert lines[first + 1].startswith("  ") and max(map(len, lines)) <= 60, lines


@pytest.mark.parametrize(("columns", "lines"), [("60", 3), ("100", 1)])
def test_programs_get_whole_lines_unless_they_ask_for_narrow_ones(tmp_path, columns, lines):
    words = [OOMPH, "run", "--gpu", "t4", "a-script-that-is-not-there-under-this-name.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"COLUMNS": columns})  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.splitlines()) == lines, done.stderr


def test_a_killed_script_is_said(tmp_path):
    (tmp_path / "job.py").write_text(
        "import os, signal, torch\ntorch.zeros(8).cuda()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    terminal = Terminal([OOMPH, "run", "--gpu", "t4", "job.py"], tmp_path)
    assert terminal.finish() == 1
    assert "killed" in own_output(terminal.output)


def test_without_colours_there_is_no_escape_sequence_and_a_narrow_terminal_no_second_line(tmp_path):
    (tmp_path / "job.py").write_text("import time, torch\ntorch.zeros(8).cuda()\ntime.sleep(0.5)\n")
    words = [OOMPH, "run", "--gpu", "t4", "job.py"]
    terminal = Terminal(words, tmp_path, columns=12, NO_COLOR="1", COLUMNS="60")
    assert terminal.finish() == 0
    assert b"fits" in terminal.output
    assert b"\x1b" not in terminal.output
    lines = terminal.output.decode().replace("\r\n", "\n").split("\r")
    drawn = [line for line in lines if line[:1] in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" and line]
    assert drawn and max(map(len, drawn)) < 12, drawn
