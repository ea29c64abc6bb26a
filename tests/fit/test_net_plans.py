"""Plans with the net: what nothing else makes fit."""

import os
import subprocess
import sys

from tests.support.command import command, fit

JOB = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(32 if i else 3, 32, 3, padding=1), nn.BatchNorm2d(32)) for i in range(4)]
    model = nn.Sequential(*blocks).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(32, 3, 128, 128, device="cuda")).square().mean().backward()
        optimizer.step()
    print("trained")
"""


def test_the_net_makes_fit_what_nothing_else_does(tmp_path):
    """Its plan is verified, `oomph run --plan` brings the net along, and what comes too late for it says so."""
    found = fit(tmp_path, JOB, "--memory", "700MiB", "--allow", "net")
    assert found.status == 0, found.err
    chosen = found.chosen
    (lever,) = chosen["levers"]
    assert lever["name"] == "net" and lever["host_bytes"] > 100 << 20
    assert chosen["verified"] and chosen["same_results"] == "exact"
    assert chosen["peak"]["used_bytes"] <= 700 << 20 and chosen["time_ratio"] > 1.5
    assert "oomph run --plan" in found.out and "or inside" not in found.out
    assert "in words: oomph-plan.md" in " ".join(found.out.split())

    again = command(tmp_path, "run", "--gpu", "rtx-3060", "--memory", "700MiB", "--plan", "oomph-plan.toml", "script.py")  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "trained" in again.stdout and "lay in host memory" in again.stderr
    assert "net applied" in again.stdout

    environment = os.environ | dict(OOMPH_PLAN="oomph-plan.toml")
    late = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert late.returncode != 0 and "trained" not in late.stdout
    assert "the net has to be there before Python starts" in late.stderr


def test_the_net_makes_room_for_code_that_comes_late(tmp_path):
    """A library's code is loaded when the script has filled the GPU."""
    found = fit(tmp_path, """
        import torch

        w = torch.randn(2048, 2048, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        held = [torch.ones(2048, 2048, device="cuda") for _ in range(50)]
        for _ in range(3):
            optimizer.zero_grad()
            sum((w * x).sum() for x in held).backward()
            (w @ w).sum().backward()
            optimizer.step()
    """, "--memory", "700MiB", "--allow", "net")  # fmt: skip
    assert found.status == 0, found.err
    assert [lever["name"] for lever in found.chosen["levers"]] == ["net"]
    assert found.chosen["peak"]["used_bytes"] <= 700 << 20
