"""A script that is forked (`oomph._forks`) runs and ends as one that the command started."""

import json
import os
import signal
import subprocess

import pytest

from tests.support import forked
from tests.support.command import OOMPH

FACTS = """
import sys
early = sorted(name for name in sys.modules if name == "torch" or name.startswith("torch."))
import gc, json, os, random, signal, threading
facts = dict(
    early=early, argv=sys.argv, orig_argv=sys.orig_argv, path=sys.path, file=__file__, name=__name__,
    main=sorted(vars(sys.modules["__main__"]).keys() - {"__cached__", "__annotations__"}),
    cwd=os.getcwd(), gc=gc.isenabled(), flags=str(sys.flags), environment=dict(os.environ),
    files=[os.readlink(f"/proc/self/fd/{f}").split("[")[0] for f in range(3)],
    signals=[str(signal.getsignal(n)).split(" at ")[0] for n in (signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD)],
    blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    threads=sorted(t.daemon for t in threading.enumerate()),
    streams=[(s.encoding, s.errors, s.write_through, s.line_buffering, type(s.buffer).__name__) for s in (sys.stdout, sys.stderr)],
)
import torch, torch.nn as nn
facts["torch"] = [torch.__spec__.name, nn.__name__, torch.get_num_threads(), sys.modules["torch"] is torch]
facts["used"] = torch.ones(1000, device="cuda").sum().item(), torch.cuda.memory_allocated()
with open("own.json", "w") as file:
    forked = b"server.py" in open("/proc/self/cmdline", "rb").read()
    json.dump([forked, random.random(), torch.rand(1).item()], file)
with open("facts.json", "w") as file:
    json.dump(facts, file, default=str)
"""


def test_a_forked_script_is_like_one_that_was_started(oomph, tmp_path, monkeypatch, request):
    if request.config.getoption("--start-each"):
        pytest.skip("nothing is forked")

    def facts():
        run = oomph(FACTS, "--keep-files", args=["a", "b"])
        assert run.status == 0, run.err
        return [json.loads((tmp_path / name).read_text()) for name in ("own.json", "facts.json")]

    one, first = facts()
    other, second = facts()
    monkeypatch.setenv(forked.FORKS, "")
    own, started = facts()
    assert [one[0], other[0], own[0]] == [True, True, False]
    assert one[1:] != other[1:] and not started["early"]
    for name in {*first, *started}:
        assert first[name] == second[name] == started[name], name


def test_a_file_that_hides_a_module_is_seen(oomph, tmp_path):
    (tmp_path / "pstats.py").write_text("OWN = True\n")
    run = oomph("import torch, pstats; torch.zeros(1).cuda(); print('own', pstats.OWN)")
    assert run.status == 0 and "own True" in run.out, run.err


@pytest.mark.parametrize(
    ("end", "says"), [("os._exit(7)", "7"), ("os.kill(os.getpid(), 9)", "killed")]
)
def test_how_it_ends_is_told(oomph, end, says):
    """By the process that stands for it."""
    run = oomph(f"import os, torch\ntorch.zeros(8).cuda()\n{end}\n")
    assert run.status == 1 and says in run.out + run.err


def test_it_ends_with_its_command(tmp_path):
    (tmp_path / "script.py").write_text(
        "import os, time, torch\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    command = [OOMPH, "run", "--gpu", "t4", "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        process = os.pidfd_open(int(running.stdout.readline()))
        running.send_signal(signal.SIGKILL)
        # The end of the output is that of the last process that has it.
        assert running.stdout.read() == ""
    os.close(process)
