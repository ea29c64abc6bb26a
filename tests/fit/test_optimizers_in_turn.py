"""Scripts whose first loop steps one optimizer, and whose second one, which needs more, another."""

from tests.support.command import fit

IN_TURN = """
import torch
from torch import nn

first = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
second = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8))).cuda()
a = torch.optim.SGD(first.parameters(), lr=0.1)
b = torch.optim.Adam({parameters}, lr=0.1)
for _ in range({often}):
    first(torch.randn(512, 256, device="cuda")).sum().backward()
    a.step()
    a.zero_grad()
for _ in range(4):
    second(torch.randn(32_768, 1024, device="cuda")).mean().backward()
    b.step()
    b.zero_grad()
    a.step()
"""


def test_the_second_loop_counts(tmp_path):
    code = IN_TURN.format(parameters="second.parameters()", often=40)
    found = fit(tmp_path, code, "--memory", "1600MiB", "--margin", "0%")
    assert found.status == 0, found.err
    # The first loop alone needs no plan.
    assert found.chosen["levers"], found.json
    assert found.json["plain"]["used_bytes"] > 2 << 30
    assert not any("had not stepped" in str(what) for what in found.json["assumptions"])


def test_what_comes_too_late_is_said(tmp_path):
    code = IN_TURN.format(parameters="second.parameters()", often=400)
    found = fit(tmp_path, code, "--memory", "1600MiB", "--margin", "0%")
    assert any("had not stepped" in str(what) for what in found.json["assumptions"]), found.out


def test_an_optimizer_around_another_is_not_waited_for(tmp_path):
    code = IN_TURN.format(parameters="first.parameters()", often=100_000)
    found = fit(tmp_path, code, "--memory", "1600MiB", "--margin", "0%")
    assert found.status == 0, found.err
    assert not any("had not stepped" in str(what) for what in found.json["assumptions"])
