"""Scripts that infer before they train: those passes are no steps."""

import concurrent.futures
import importlib.util
import sys
import textwrap

import pytest
from oomph._recorder.training_ahead import training_ahead

SCORES_FIRST = """
    import sys
    import torch
    from torch import nn

    @torch.no_grad()
    def scores(network):
        return [network(torch.randn(64, 32, device="cuda")) for _ in range({passes})]

    def train(model, steps):
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            model(torch.randn(1 << 14, 1024, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def main(mode):
        kept = scores(nn.Linear(32, 4).cuda())
        if mode == "score":
            return
        train(nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8))).cuda(), 5)

    main(*sys.argv[1:])
"""


def test_passes_before_training_are_no_steps(oomph):
    """Three of them ended the run, which then said that the script fits: it had not trained yet."""
    run = oomph(SCORES_FIRST.format(passes=40), "--steps", "3", args=["train"])
    assert run.status == 0, run.err
    assert run.json["peak"]["used_bytes"] > 1 << 30 and "· 3 steps in" in run.out, run.out
    assert not any("begun to train" in one["what"] for one in run.json["assumptions"])
    # Nor do they count for its time.
    whole = oomph(SCORES_FIRST.format(passes=40), args=["train"])
    assert whole.json["time"]["low"] > 0.5 * run.json["time"]["step_seconds"], whole.out


def test_a_script_that_could_train_and_does_not_infers(oomph):
    run = oomph(SCORES_FIRST.format(passes=40), "--steps", "3", args=["score"])
    assert run.status == 0 and "· 40 passes in" in run.out and "a pass" in run.out, run.out


def test_training_that_comes_too_late_is_said(oomph):
    run = oomph(SCORES_FIRST.format(passes=400), "--steps", "3", args=["train"])
    assert "· 203 passes in" in run.out, run.out
    assert any("had not begun to train" in one["what"] for one in run.json["assumptions"])


TRAINS = {
    "behind it": "look(); loss.backward()",
    "in a function": "look(); train(4)",
    "in a method of an object": "look(); Runner().run()",
    "in the turn of a loop": "for of in range(2):\n    if of: train(of)\n    look()",
    "in an outer function": "within(); loss.backward()",
    "behind a try": "try:\n    look()\nexcept ValueError:\n    pass\nelse:\n    train(1)",
    "by a trainer": "trainer = Mine()\nlook()\ntrainer.fit(1)",
    "by an optimizer of a list": "look(); [torch.optim.AdamW for _ in range(2)]",
}
DOES_NOT = {
    "nothing": "look(); print(1)",
    "before it": "loss.backward() if loss else 0\nlook()",
    "in another branch": "if loss is None:\n    look()\nelse:\n    train(1)",
    "behind a return": "look()\nreturn\ntrain(1)",
    "a mode of the model": "look(); model.train()",
    "a function of its name": "look(); backwards(1)",
}
MODULE = """
import torch
from lightning import Trainer

seen = []
loss = model = None

class Mine(Trainer):
    def __init__(self): pass
    def fit(self, _): pass

def look():
    seen.append(training_ahead())

def within():
    look()

def backwards(_): pass

def step(loss):
    loss.backward()

def train(n):
    for _ in range(n if loss else 0):
        step(loss)

class Runner:
    def run(self):
        self.one()
    def one(self):
        train(1)

def main():
"""


@pytest.mark.parametrize("body", [*TRAINS.values(), *DOES_NOT.values()], ids=[*TRAINS, *DOES_NOT])
def test_what_is_ahead_is_read(tmp_path, body):
    path = tmp_path / "scripted.py"
    path.write_text(MODULE + textwrap.indent(body, "    ") + "\n")
    spec = importlib.util.spec_from_file_location("scripted", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["scripted"] = module
    module.training_ahead = training_ahead
    try:
        spec.loader.exec_module(module)
        # In a thread, whose frames are the script's alone; most fail after what they looked at.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            pool.submit(module.main).exception()
    finally:
        del sys.modules["scripted"]
    assert module.seen[0] is (body in TRAINS.values())
