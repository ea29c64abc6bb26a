"""Plans that a script applies itself: `oomph.apply` and `OOMPH_PLAN`."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.support.command import BIN

PLAN = """
format = "oomph.plan/1"

[[lever]]
name = "checkpoint"
modules = ["Sequential.0", "Sequential.1"]
"""

SCRIPT = """
{first}
import torch
from torch import nn

torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.5)) for _ in range(3)]
net = nn.Sequential(*blocks)
{model_exists}
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    net(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
sum_of = sum(p.double().sum().item() for p in net.parameters())
import sys; sys.stdout.write("sum " + str(sum_of) + "\\n")  # at once: ranks write to one pipe
"""


@pytest.fixture
def python(tmp_path):
    """Runs the script, with code before torch is imported or after the model is made."""
    (tmp_path / "plan.toml").write_text(PLAN)

    def run(first="", model_exists="", program=(sys.executable,), **environment):
        text = textwrap.dedent(SCRIPT).format(first=first, model_exists=model_exists)
        (tmp_path / "train.py").write_text(text)
        return subprocess.run(
            [*program, "train.py"], cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, timeout=120
        )  # fmt: skip

    return run


def test_a_plan_is_applied_from_inside(python):
    plain = python()
    inside = python(first="import oomph; oomph.apply('plan.toml')")
    outside = python(OOMPH_PLAN="plan.toml")
    both = python(first="import oomph; oomph.apply('plan.toml')", OOMPH_PLAN="plan.toml")
    assert "oomph" not in plain.stderr and "sum" in plain.stdout
    for done in (inside, outside, both):
        assert done.stdout == plain.stdout, done.stderr
        assert done.stderr.splitlines() == ["oomph: plan.toml: checkpoint Sequential[0:2]"]


def test_what_had_no_effect_is_named(python, tmp_path):
    (tmp_path / "inert.toml").write_text(PLAN + '[[lever]]\nname = "chunked_logits"\n')
    done = python(OOMPH_PLAN="inert.toml")
    assert "oomph: chunked_logits had no effect" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "how, says",
    [
        (
            dict(model_exists="import oomph; oomph.apply('plan.toml')"),
            "a model (Sequential) exists already. Call oomph.apply at the top",
        ),
        (dict(OOMPH_PLAN="none.toml"), "none.toml: No such file or directory"),
        (dict(OOMPH_PLAN="train.py"), "this is no plan (oomph.plan/1)"),
        (
            dict(first="import oomph; oomph.apply('plan.toml'); oomph.apply('other.toml')"),
            "this process has applied",
        ),
    ],
)
def test_what_cannot_be_applied_ends_the_script(python, how, says):
    done = python(**how)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    assert "sum" not in done.stdout


def test_python_starts_as_before_without_torch(tmp_path):
    words = [sys.executable, "-c", "import sys; print('oomph' in sys.modules)"]
    quiet = subprocess.run(words, capture_output=True, text=True, check=True)
    named = os.environ | {"OOMPH_PLAN": "none.toml"}
    waiting = subprocess.run(words, env=named, capture_output=True, text=True, check=True)
    assert (quiet.stdout.strip(), waiting.stdout.strip()) == ("False", "True")


def test_every_rank_of_torchrun_applies_it_and_one_says_so(python):
    torchrun = [os.path.join(BIN, "torchrun"), "--nproc-per-node", "2", "--master-port", "0"]
    done = python(program=torchrun, OOMPH_PLAN="plan.toml", OMP_NUM_THREADS="1")
    sums = [line for line in done.stdout.splitlines() if line.startswith("sum")]
    assert len(sums) == 2 and sums[0] == sums[1] == python().stdout.strip()
    assert done.stderr.count("oomph: plan.toml") == 1, done.stderr


def test_oomph_run_applies_it_too(oomph, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    code = SCRIPT.format(first="", model_exists="net.cuda()").replace("torch.randn(8, 32)", "torch.randn(8, 32).cuda()")  # fmt: skip
    done = oomph(code, env={"OOMPH_PLAN": "plan.toml"})
    assert done.json["levers"][0]["name"] == "checkpoint", done.err
    assert done.json["plan"]["file"] == "plan.toml"
