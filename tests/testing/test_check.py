"""`oomph check` on two revisions of a repository, by itself and by the steps of the GitHub action as they stand."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support import schemas
from tests.support.command import OOMPH, ROOT

TRAIN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, WIDTH), nn.Linear(WIDTH, 512)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters())
for _ in range(3):
    net(torch.zeros(64, 512, device="cuda")).sum().backward()
    optimizer.step()
"""
JOBS = """
gpu = "rtx-3060"
[job.train]
script = "src/train.py"
max_growth = "8 MiB"
"""
GH = """#!/bin/sh
echo "$@" >> gh.log
case "$*" in
    *PATCH*|*POST*) for word; do case $word in body=@*) cp "${word#body=@}" comment.md;; esac; done;;
    *) cat comments 2>/dev/null;;
esac
"""


@pytest.fixture
def repository(tmp_path):
    """Two revisions: in the second the layers are twice as wide."""
    place = tmp_path / "project"
    (place / "src").mkdir(parents=True)

    def git(*words):
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *names, *words], cwd=place, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(width):
        (place / "src" / "train.py").write_text(TRAIN.replace("WIDTH", str(width)))
        git("add", ".")
        git("commit", "-qm", f"{width} wide")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    (place / "oomph.toml").write_text(JOBS)
    (place / ".gitignore").write_text("oomph-report\ngh.log\ncomment*\n")
    return place, commit(8192), commit(16384), git


def steps_of_the_action(place, temporary, base, git):
    """Run the `run` steps of action.yml with what GitHub would put into their expressions; each one's exit status."""
    action = yaml.safe_load(Path(ROOT, "action.yml").read_text())
    inputs = {name: one.get("default", "") for name, one in action["inputs"].items()} | {
        "package": "",
        "token": "secret",
    }
    outputs = temporary / "outputs"
    values = {
        **{f"inputs.{name}": value for name, value in inputs.items()},
        "github.event.pull_request.number": "7", "runner.temp": str(temporary),
        "inputs.against || github.event.pull_request.base.sha": base,
    }  # fmt: skip
    environment = {
        **os.environ, "RUNNER_TEMP": str(temporary), "GITHUB_OUTPUT": str(outputs), "GITHUB_REPOSITORY": "someone/project",
        "GITHUB_STEP_SUMMARY": str(temporary / "summary.md"), "PATH": f"{temporary}/bin:{Path(OOMPH).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    (temporary / "bin").mkdir(parents=True, exist_ok=True)
    (temporary / "bin" / "gh").write_text(GH)
    (temporary / "bin" / "gh").chmod(0o755)
    outputs.touch()
    ended = {}
    for step in action["runs"]["steps"]:
        if "run" not in step:
            assert step["uses"].count("@") == 1
            continue
        assert step["shell"] == "bash"
        known = dict(line.split("=") for line in outputs.read_text().splitlines())
        values.update({f"steps.check.outputs.{name}": value for name, value in known.items()})
        own = {
            name: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values[found[1]], str(text))
            for name, text in step.get("env", {}).items()
        }
        assert "${{" not in step["run"]  # what others wrote never becomes a part of a script
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=place, env=environment | own, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        ended[step["name"]] = done.returncode
        assert done.returncode == 0 or step["name"] == "Result", done.stdout + done.stderr
    return ended


def test_the_action_says_what_a_pull_request_changes(repository, tmp_path):
    place, base, _, git = repository
    ended = steps_of_the_action(place, tmp_path / "one", base, git)
    assert ended == {"Install": 0, "Check": 0, "Comment": 0, "Result": 5}
    found = schemas.read((tmp_path / "one" / "oomph-check" / "check.json").read_text())
    [job] = found["jobs"]
    grew = job["peak_bytes"] - job["before_bytes"]
    # Twice the weights and gradients of two layers of 512 by 8192, and of their activations.
    assert 64 * 2**20 < grew < 96 * 2**20 and not found["passes"]
    assert job["limit_bytes"] == job["before_bytes"] + 8 * 2**20
    weights = next(place for place in job["places"] if place["name"].startswith("train.py:15"))
    assert weights["bytes"][1] - weights["bytes"][0] > 32 * 2**20 and weights["what"] == "grew"
    assert {"Net.up", "Net.down"} <= {module["name"] for module in job["modules"]}
    assert Path(job["report"]).is_file()
    comment = (place / "comment.md").read_text()
    assert comment.startswith("<!-- oomph check -->\n### GPU memory: the job fails")
    assert (
        f"+{grew / 2**20:.1f} MiB" in comment
        and "train.py:15" in comment
        and "above max\\_growth" in comment
    )
    assert comment == (tmp_path / "one" / "summary.md").read_text()
    assert "--method POST repos/someone/project/issues/7/comments" in (place / "gh.log").read_text()
    assert git("worktree", "list").count("\n") == 0 and not git("status", "--short")

    # The next push takes it back: the comment that is there is updated.
    (place / "src" / "train.py").write_text(TRAIN.replace("WIDTH", "8192"))
    (place / "comments").write_text("42\n")
    ended = steps_of_the_action(place, tmp_path / "two", base, git)
    assert ended["Result"] == 0
    assert (
        "--method PATCH repos/someone/project/issues/comments/42" in (place / "gh.log").read_text()
    )
    assert (
        "the job passes" in (place / "comment.md").read_text()
        and "±0" in (place / "comment.md").read_text()
    )


def test_a_job_is_held_to_its_limits(repository):
    place = repository[0]
    (place / "oomph.toml").write_text(JOBS + 'max_peak = "200 MiB"\n')
    done = subprocess.run(
        [OOMPH, "check", "--json", "check.json", "--markdown", "check.md"],
        cwd=place, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    found = json.loads((place / "check.json").read_text())
    [job] = found["jobs"]
    assert job["peak_bytes"] > job["limit_bytes"] == 200 * 2**20 and not found["passes"], found
    assert "above max" in done.stdout and "the job fails" in (place / "check.md").read_text()


@pytest.mark.parametrize(
    "words, jobs, line",
    [
        ([], "", "in oomph.toml: there is no job"),
        ([], JOBS.replace("rtx-3060", "rtx-306"), "job.train: unknown GPU `rtx-306`"),
        (["--config", "none.toml"], JOBS, "cannot read none.toml"),
        (["--against", "nowhere"], JOBS, "git knows no revision nowhere"),
        (["serve"], JOBS, "oomph.toml has no job serve; its jobs are train"),
    ],
)
def test_bad_input_gets_one_line(words, jobs, line, repository):
    place = repository[0]
    (place / "oomph.toml").write_text(jobs)
    done = subprocess.run([OOMPH, "check", *words], cwd=place, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and line in done.stderr, (
        done.stderr
    )
