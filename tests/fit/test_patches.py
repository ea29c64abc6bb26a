"""What `oomph fit` offers as a patch has run within the budget; `--write` and `--undo`."""

import json
import subprocess
import textwrap

from tests.support.command import command, fit

JOB = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def make():
        layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(8)]
        return torch.nn.Sequential(*layers)

    class Trainer:
        def __init__(self):
            self.model = make().cuda()
            self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def run(self, data):
            for x, y in DataLoader(data, batch_size=32768):
                x, y = x.cuda(), y.cuda()
                loss = (self.model(x) - y).pow(2).mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()

    Trainer().run(TensorDataset(torch.randn(131072, 256), torch.randn(131072, 256)))
"""


def test_a_patch_is_run_written_and_taken_out_again(tmp_path):
    found = fit(tmp_path, JOB, "--memory", "450MiB", "--allow", "micro_batch", "--write")
    assert found.status == 0, found.err + found.out
    script, copy = tmp_path / "script.py", tmp_path / "script.py.orig"
    assert copy.read_text() == textwrap.dedent(JOB)
    assert "for x, y in zip(x.split(" in script.read_text()
    assert found.json["original_file"] == "script.py.orig"
    assert found.json["patch_file"][0] == "oomph-plan.patch"
    for patch in ("oomph-plan.patch", "oomph-plan.apply.patch"):
        check = ["git", "apply", "--check", patch]
        copy_of = tmp_path / "elsewhere"
        copy_of.mkdir(exist_ok=True)
        (copy_of / "script.py").write_text(copy.read_text())
        (copy_of / patch).write_text((tmp_path / patch).read_text())
        done = subprocess.run(check, cwd=copy_of, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for name in ("patch-apply", "patch-by-hand"):
        record = tmp_path / "oomph-report" / "script-1" / name / "record.json"
        outcome = json.loads(record.read_text())["outcome"]
        assert (outcome["kind"], outcome["status"]) == ("finished", 0), outcome

    def said(*words):
        done = command(tmp_path, *words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    again = ("fit", "--gpu", "rtx-3060", "--write", "script.py")
    assert "script.py.orig is there" in said(*again)
    # A plan that is in the script already is not applied on top.
    applied = ("run", "--gpu", "rtx-3060", "--plan", "oomph-plan.toml", "script.py")
    assert "is in script.py already" in said(*applied)
    written = script.read_text()
    script.write_text(written + "# mine\n")
    assert "would lose later changes" in said("fit", "--undo", "script.py")
    assert script.read_text() == written + "# mine\n" and copy.exists()
    script.write_text(written)
    assert command(tmp_path, "fit", "--undo", "script.py").returncode == 0
    assert script.read_text() == textwrap.dedent(JOB) and not copy.exists()
    assert "nothing to undo" in said("fit", "--undo", "script.py")
    script.chmod(0o444)
    assert "script.py is read-only" in said(*again)
    assert "is none" in said("fit", "--gpu", "rtx-3060", "--write", "-m", "json.tool")


def test_what_has_no_place_is_an_instruction_beside_a_patch_of_one_line(tmp_path):
    (tmp_path / "oomph-plan.patch").write_text("# The plan for script.py, of another day\n")
    found = fit(tmp_path, JOB, "--memory", "450MiB", "--allow", "split_forward")
    assert found.status == 0, found.err + found.out
    assert found.json["patch_file"] is None and not (tmp_path / "oomph-plan.patch").exists()
    text = (tmp_path / "oomph-plan.md").read_text()
    assert "it has no clear place for the model's call in" in text
    assert "git apply oomph-plan.apply.patch" in text
    subprocess.run(["git", "apply", "oomph-plan.apply.patch"], cwd=tmp_path, check=True)
    assert 'oomph.apply("oomph-plan.toml")' in (tmp_path / "script.py").read_text()
    assert "in words: oomph-plan.md" in found.out
