"""Where a step of a job ends that has several optimizers."""

import json

import pytest

TWO = """
    import torch
    from torch import nn
    class Generator(nn.Sequential): pass
    class Critic(nn.Sequential): pass
    g = Generator(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    d = Critic(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    a, b = (torch.optim.Adam(model.parameters()) for model in (d, g))
    for i in range(4):
        fake = g(torch.randn(256, 64, device="cuda"))
        a.zero_grad()
        (d(fake.detach()).mean() - d(torch.randn(256, 64, device="cuda")).mean()).backward()
        a.step()
        if i % EVERY == EVERY - 1:
            b.zero_grad()
            (-d(fake).mean()).backward()
            b.step()
"""


@pytest.mark.parametrize(("every", "steps"), [(1, 4), (2, 3)])
def test_the_last_optimizer_of_a_round_ends_the_step(oomph, tmp_path, every, steps):
    """The generator's graph is made before the critic's step, and used after it. A critic that steps several times before
    leaves no doubt only at its second step."""
    found = oomph(TWO.replace("EVERY", str(every)), gpu="t4")
    assert found.status == 0, found.err
    written = json.loads((tmp_path / "run" / "record.json").read_text())
    assert written["steps"] == steps
    if every == 1:
        seen = {
            (phase, module.split(".")[0])
            for phase, module, _, step in written["scopes"]
            if step == 1
        }
        assert {(p, m) for p in ("forward", "backward") for m in ("Generator", "Critic")} <= seen
