"""Ranks forked from one process that has imported torch are what launchers would have started."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.support.command import OOMPH
from tests.support.protocol import run_settings

FACTS = """
import sys
early = sorted(name for name in sys.modules if name == "torch" or name.startswith("torch."))
import gc, json, os, signal, threading
facts = dict(
    early=early, argv=sys.argv, orig_argv=sys.orig_argv, path=sys.path, file=__file__, name=__name__,
    main=sorted(vars(sys.modules["__main__"]).keys() - {"__cached__", "__annotations__"}),
    cwd=os.getcwd(), leads=os.getsid(0) == os.getpid() == os.getpgid(0), gc=gc.isenabled(), flags=str(sys.flags),
    adopted=b"torch.distributed.run" in open(f"/proc/{os.getppid()}/cmdline", "rb").read(),
    environment={k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "MASTER", "OOMPH"))},
    files=sorted(os.readlink(f"/proc/self/fd/{f}").split("[")[0] for f in range(3)),
    signals=[str(signal.getsignal(n)).split(" at ")[0] for n in (signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD)],
    blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    threads=sorted(t.daemon for t in threading.enumerate()),
    streams=[(s.encoding, s.errors, s.write_through, s.line_buffering, type(s.buffer).__name__) for s in (sys.stdout, sys.stderr)],
)
class Annotated: x: int = 0
facts["annotation"] = str(Annotated.__annotations__)
import random, numpy, torch, torch.nn as nn
import multiprocessing as mp
from torch.utils.data import DataLoader
facts["torch"] = [torch.__spec__.name, torch.__name__, nn.__name__, torch.get_num_threads(), sys.modules["torch"] is torch]
drawn = random.random(), numpy.random.rand(), torch.rand(1).item()

def double(x):
    return 2 * x

if __name__ == "__main__":
    local = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(local)
    torch.distributed.init_process_group("nccl")
    x = torch.ones(1, device="cuda"); torch.distributed.all_reduce(x); facts["sum"] = x.item()
    facts["loaded"] = [b.tolist() for b in DataLoader(torch.arange(4), batch_size=2, num_workers=1)]
    if local == 0:
        with mp.get_context("spawn").Pool(1) as pool:
            facts["spawned"] = pool.map(double, [1, 2])
    with open(f"facts-{sys.argv[1]}-{local}.json", "w") as file:
        json.dump(facts, file, default=str)
    with open(f"own-{sys.argv[1]}-{local}.json", "w") as file:
        forked = b"oomph._ranks.fork_server" in open("/proc/self/cmdline", "rb").read()
        json.dump([forked, *drawn], file)
    torch.distributed.destroy_process_group()
    print("output of", local); print("error of", local, file=sys.stderr)
"""


def oomph_run(
    directory, script, *options, ranks=2, launcher=("--standalone",), words=(), check=True
):
    path = directory / "script.py"
    path.write_text(script)
    if launcher is None:
        words = [*words, path.name]
    else:
        words = ["torchrun", *launcher, "--nproc-per-node", str(ranks), path.name, *words]
    process = subprocess.run(
        [OOMPH, "run", "--gpu", f"t4:{ranks}", "-q", "--out", directory / "run",
         *options, "--", *words],
        capture_output=True, text=True, cwd=directory, timeout=300,
    )  # fmt: skip
    assert not check or process.returncode == 0, process.stderr
    return process


def test_a_forked_rank_is_like_one_that_was_started(tmp_path):
    for kind, options in ((0, []), (1, ["--no-fork"])):
        process = oomph_run(
            tmp_path, FACTS, *options, words=[str(kind)],
            launcher=["--standalone", "--tee", "3", "--log-dir", str(tmp_path / f"logs-{kind}")],
        )  # fmt: skip
        assert "[default1]:output of 1" in process.stdout, process.stdout
        assert len(list((tmp_path / f"logs-{kind}").rglob("stderr.log"))) == 2

    def read(name):
        return json.loads((tmp_path / name).read_text())

    for rank in (0, 1):
        text = (tmp_path / f"facts-0-{rank}.json").read_text()
        forked, started = json.loads(text), read(f"facts-1-{rank}.json")
        assert forked["adopted"] and forked["sum"] == 2 and not forked["early"]
        for facts, kind in ((forked, "0"), (started, "1")):
            assert facts["argv"].pop() == facts["orig_argv"].pop() == kind
            facts["files"] = [name.replace(f"logs-{kind}", "logs") for name in facts["files"]]
            facts["files"] = [re.sub(r"logs/[^/]*/", "logs/", name) for name in facts["files"]]
        assert forked == started
    forked, started = [read(f"own-0-{n}.json") for n in (0, 1)], read("own-1-0.json")
    assert [own[0] for own in forked] == [True, True] and not started[0]
    # Whatever draws its seed when it is imported draws another one in each rank.
    assert all(one != other for one, other in zip(forked[0][1:], forked[1][1:], strict=True))


ENDS = """
import os, sys, time, torch
if os.environ["RANK"] == "1":
    {}
time.sleep(60)  # until its launcher ends it
"""


@pytest.mark.parametrize(
    "how, says",
    [
        ("sys.exit(7)", r"exitcode *: 7"),
        ("os.kill(os.getpid(), 9)", r"Signal 9"),
        ("import nowhere", r"script.py.*\n.*import nowhere\nModuleNotFoundError: No module"),
    ],
)
def test_how_a_forked_rank_ends_is_its_launchers_business(tmp_path, how, says):
    process = oomph_run(tmp_path, ENDS.format(how), check=False)
    assert process.returncode == 1 and re.search(says, process.stderr), process.stderr
    assert (
        "fork_server" not in process.stderr and "launch.py" not in process.stderr.split("=====")[0]
    )


STARTED = """
{}
import importlib.util, os
assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch")
from torch.utils.data import DataLoader
import torch
with open(f"started-{{os.environ['RANK']}}", "w") as file:
    forked = b"oomph._ranks.fork_server" in open("/proc/self/cmdline", "rb").read()
    print(forked, torch.get_num_threads(), os.environ.get("PYTORCH_CUDA_ALLOC_CONF"), file=file)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); torch.ones(1, device="cuda")
"""


@pytest.mark.parametrize(
    "what, first, expected",
    [
        ("nothing", "", "True 1 None"),
        ("a late variable", "import os; os.environ['NCCL_DEBUG'] = 'WARN'", "True 1 None"),
        ("threads", "import os; os.environ['OMP_NUM_THREADS'] = '2'", "False 2 None"),
        ("allocator", "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:native'",
         "False 1 backend:native"),
        ("a library's name", "import pstats; assert pstats.OWN", "False 1 None"),
    ],
)  # fmt: skip
def test_what_torch_reads_when_it_is_imported_is_never_stale(tmp_path, what, first, expected):
    if "library" in what:
        (tmp_path / "pstats.py").write_text("OWN = True\n")
        (tmp_path / "data").mkdir()
    oomph_run(tmp_path, STARTED.format(first))
    for rank in (0, 1):
        assert (tmp_path / f"started-{rank}").read_text().strip() == expected
        assert (tmp_path / "run" / f"rank-{rank}" / "record.json").is_file()


@pytest.mark.parametrize(
    "launcher",
    [
        ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
        ["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
         "--mixed_precision", "no", "--dynamo_backend", "no"],
    ],
    ids=["module", "accelerate"],
)  # fmt: skip
def test_other_launchers_have_their_ranks_forked_too(tmp_path, launcher):
    oomph_run(tmp_path, STARTED.format(""), words=launcher, launcher=None)
    for rank in (0, 1):
        assert (tmp_path / f"started-{rank}").read_text().split()[0] == "True"
        assert (tmp_path / "run" / f"rank-{rank}" / "record.json").is_file()


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("ranks", [0, 2])
def test_killing_the_command_ends_what_it_started(tmp_path, ranks):
    script = tmp_path / "script.py"
    script.write_text(
        # One write: what two ranks print comes in pieces.
        "import os, time, torch\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(100)\n"
    )
    words = [script] if not ranks else ["torchrun", "--standalone", "--nproc-per-node", "2", script]
    oomph = subprocess.Popen(
        [OOMPH, "run", "--gpu", "t4:2" if ranks else "t4", "-q", "--out",
         tmp_path / "run", "--", *words],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path,
    )  # fmt: skip
    pids = [int(oomph.stdout.readline()) for _ in range(max(1, ranks))]
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    oomph.send_signal(signal.SIGKILL)
    oomph.wait()
    # The output ends when all who hold it are gone: the launcher and the server, too.
    began = time.monotonic()
    assert oomph.stdout.read() == "" and time.monotonic() - began < 60
    for pid in pids:
        process = subprocess.run(["ps", "-o", "stat=", str(pid)], capture_output=True, text=True)
        assert process.stdout.strip()[:1] in ("", "Z")


@pytest.mark.usefixtures("started")
def test_a_process_whose_command_is_gone_does_not_begin(tmp_path):
    # The command may die before the process has asked to die with it.
    (tmp_path / "lock").write_text("")
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(dict(run_settings(), locked=True)))
    (tmp_path / "script.py").write_text("print('ran')")
    process = subprocess.run(
        [sys.executable, "-m", "oomph.launch", "script.py"], cwd=tmp_path, capture_output=True,
        env={**os.environ, "OOMPH_RUN": str(settings)},
    )  # fmt: skip
    assert process.returncode == -signal.SIGKILL and not process.stdout
