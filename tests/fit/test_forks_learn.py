"""The fork server of `oomph fit` imports what the first run of a script imported from packages."""

import json
import os
import re
import signal
import subprocess
import textwrap
import time

import pytest

from tests.support import forked
from tests.support.command import OOMPH, fit

FACTS = """
    import json, os, sys, warnings
    hidden = sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "transformers", "accelerate", "lightning", "rich"))
    import torch
    {imports}
    from torch import nn
    with open("runs", "a") as file:
        loading = sys.modules["transformers.modeling_utils"]
        print(json.dumps(dict(
            hidden=hidden, filters=len(warnings.filters),
            forked=b"_forks" in open("/proc/self/cmdline", "rb").read(),
            hooked=[os.path.basename(function.__code__.co_filename) for function in (
                loading.PreTrainedModel.from_pretrained.__func__, sys.modules["safetensors.torch"].load_file,
                sys.modules["transformers.generation.utils"].GenerationMixin.generate,
            )],
            same=getattr(loading, "safe_load_file", None) in (None, sys.modules["safetensors.torch"].load_file),
            environment=sorted(name for name in os.environ if not name.startswith("OOMPH")),
        )), file=file)
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(64, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
IMPORTS = {
    "transformers": "from transformers import GPT2LMHeadModel, Trainer",
    "lightning": "import lightning; from transformers import ViTForImageClassification, GPT2LMHeadModel",
    "accelerate": "import accelerate; from transformers import GPT2LMHeadModel",
}


@pytest.mark.parametrize(
    "package",
    ["transformers", "lightning", "accelerate"],
)
def test_what_it_learned_is_as_if_it_were_imported(tmp_path, monkeypatch, package):
    pytest.importorskip(package)
    code = FACTS.format(imports=IMPORTS[package])
    found = {}
    for kind in ("started", "forked"):
        if kind == "started":
            monkeypatch.setenv(forked.FORKS, "")
        else:
            monkeypatch.delenv(forked.FORKS)
            monkeypatch.setenv("OOMPH_FORKS_LOG", str(tmp_path / "log"))
        done = fit(
            tmp_path, code, "--memory", "270MiB", "--allow", "step_in_backward", "--plan", f"{kind}.toml"
        )  # fmt: skip
        runs = [json.loads(line) for line in (tmp_path / "runs").read_text().splitlines()]
        (tmp_path / "runs").unlink()
        found[kind] = (done.status, done.json, runs)
    assert re.fullmatch(r"learned \d+ modules in .* s\n", (tmp_path / "log").read_text())
    (status, started, plain), (other, learned, runs) = found["started"], found["forked"]
    assert len(runs) > 1 and all(run.pop("forked") for run in runs)
    assert not any(run.pop("forked") for run in plain)
    for run in [*plain, *runs]:
        assert run == plain[0]
    assert not runs[0]["hidden"] and runs[0]["hooked"] == ["facts.py", "loading.py", "passes.py"]
    assert status == other
    for one, two in zip(started["plans"], learned["plans"], strict=True):
        assert one["levers"] == two["levers"] and one["peak"] == two["peak"]


CHANGES = {
    "thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "threads",
    ),
    "file": ("kept = open('/dev/null')", "files"),
    "seed": ("import torch; torch.manual_seed(1)", "torch"),
    "signal": ("import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)", "handlers"),
    "torch": ("import torch; torch.load = print", "is replaced"),
}
"""What a package does when it is imported, and the reason for which it is not learned."""


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """What is learned of each package, and the log: the function that the server calls, in processes of their own."""
    place = tmp_path_factory.mktemp("learns")
    packages = place / "packages"
    packages.mkdir()
    (packages / "harmless.py").write_text("value = 1")
    for what, (does, _) in CHANGES.items():
        (packages / f"changing_{what}.py").write_text(does)
    code = f"""
        import site, sys
        site.getsitepackages = lambda: [{str(packages)!r}]
        import gc, os, torch
        from oomph._forks import learned
        gc.freeze()
        notes = lambda name: dict(steps=[(learned.read_early(os.environ), [name])], path=[{str(packages)!r}, *sys.path])
        for what in sys.argv[1:]:
            if child := os.fork():
                os.waitpid(child, 0)
                continue
            os.environ["OOMPH_FORKS_LOG"] = "log-" + what
            found = learned.learn(notes("harmless"))
            print(what, list(found.modules), learned.learn(notes("changing_" + what)), flush=True)
            os._exit(0)
    """
    script = place / "learns.py"
    script.write_text(textwrap.dedent(code))
    python = os.path.join(os.path.dirname(OOMPH), "python")
    done = subprocess.run(
        [python, script, *CHANGES], cwd=place, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )  # fmt: skip
    return place, done


@pytest.mark.parametrize("what", CHANGES)
def test_a_package_that_changes_the_process_is_not_learned(taught, what):
    place, done = taught
    assert f"{what} ['harmless'] None" in done.stdout.splitlines(), done.stderr
    assert CHANGES[what][1] in (place / f"log-{what}").read_text().splitlines()[-1]


def test_the_directory_of_the_socket_goes_with_the_command(tmp_path, monkeypatch):
    """Also where signals end the command at once, while the server starts, and where it is killed."""
    monkeypatch.delenv(forked.FORKS)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "script.py").write_text("import time, torch\ntime.sleep(600)\n")
    for signals in ([signal.SIGTERM, signal.SIGTERM], [signal.SIGKILL]):
        running = subprocess.Popen(
            [OOMPH, "fit", "--gpu", "t4", "--memory", "1GiB", "script.py"], cwd=tmp_path,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        until = time.monotonic() + 60
        while not list(tmp_path.glob("oomph-forks-*/socket")) and time.monotonic() < until:
            time.sleep(0.1)
        assert list(tmp_path.glob("oomph-forks-*"))
        for number in signals:
            os.killpg(running.pid, number) if number != signal.SIGKILL else running.kill()
            time.sleep(1)
        running.wait(60)
        until = time.monotonic() + 60
        while list(tmp_path.glob("oomph-forks-*")) and time.monotonic() < until:
            time.sleep(0.1)
        assert not list(tmp_path.glob("oomph-forks-*"))
