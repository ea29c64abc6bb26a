"""`chunked_vmap`: in parts as in one, or refused by name."""

import json

import pytest

from tests.support.levers import run
from tests.support.plans import plan

LEVER = ("chunked_vmap", {"parts": 3})

ENSEMBLE = """
    from torch.func import functional_call, grad_and_value, stack_module_state, vmap
    members = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(7)]
    weights, _ = stack_module_state(members)
    weights = {k: w.detach() for k, w in weights.items()}
    def loss(weights, x, y):
        return (functional_call(members[0], weights, (x,)) - y).square().mean()
    x, y = torch.randn(5, 4), torch.randn(7, 5, 1)
    out = []
    for _ in range(3):
        grads, losses = vmap(grad_and_value(loss), in_dims=(0, None, 0))(weights, x, y)
        weights = {k: w - 0.1 * grads[k] for k, w in weights.items()}
        out += [losses, *grads.values()]
"""
DERIVATIVES = """
    from torch.func import hessian, vmap, functional_call
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = dict(net.named_parameters())
    def laplacian(x):
        return hessian(lambda x: functional_call(net, state, (x,)).squeeze(-1))(x).diagonal().sum()
    out = []
    for _ in range(3):
        points = torch.rand(8, 2, requires_grad=True)
        loss = (vmap(laplacian)(points) - points[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        out += [loss.detach(), points.grad, *(p.grad is None or p.grad.clone() for p in net.parameters())]
        optimizer.step()
"""
ARGUMENTS = """
    from torch.func import vmap
    hyper, bias, other = nn.Linear(3, 20), torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    shared = torch.randn(4, 4, requires_grad=True)
    def render(weights, pair, xy, scale=1.0):
        a, b = pair
        image = torch.tanh(xy @ shared @ weights.view(4, 5) + (bias + other)) * scale
        return {"image": image + a, "sums": (image.sum(0), b.square().sum()), "flat": a * 2}
    mapped = vmap(render, in_dims=(0, (None, 0), 1), out_dims={"image": 2, "sums": (0, 0), "flat": None})
    a, b, xy = torch.randn(5, requires_grad=True), torch.randn(6, 2, requires_grad=True), torch.randn(9, 6, 4)
    found = mapped(hyper(torch.randn(6, 3)), (a, b), xy, scale=2.0)
    loss = found["image"].square().mean() + found["sums"][0].sin().sum() + found["sums"][1].sum()
    (loss + found["flat"].sum()).backward()
    out = [found["image"].detach(), found["image"].shape, loss.detach()]
    out += [t.grad for t in (shared, bias, other, a, b, *hyper.parameters())]
"""
SAME = """
    weight = torch.randn(4, 4, requires_grad=True)
    def noisy(x):
        return torch.nn.functional.dropout(x @ weight, 0.5)
    out = []
    for _ in range(2):
        found = torch.vmap(noisy, randomness="same")(torch.randn(6, 3, 4))
        found.square().sum().backward()
        out += [found.detach(), weight.grad.clone(), torch.randn(2)]
"""
SMALL = """
    found = torch.vmap(lambda x: x.sin())(torch.randn(2, 3))
    out = [found]
"""


def close(a, b):
    import torch

    if isinstance(a, torch.Tensor):
        return (a - b).norm() <= 1e-6 * b.norm().clamp_min(1e-9)
    return a == b


@pytest.mark.parametrize(
    "code", [ENSEMBLE, DERIVATIVES, ARGUMENTS, SAME], ids=["ensemble", "derivatives", "arguments", "same"]
)  # fmt: skip
def test_in_parts_as_in_one(tmp_path, code):
    plain, parts = run(tmp_path, code), run(tmp_path, code, LEVER)
    assert parts.refusal is None, parts.refusal
    assert parts.levers["chunked_vmap"]["applied"] > 0
    assert len(parts.out) == len(plain.out) > 1
    assert [at for at, two in enumerate(zip(parts.out, plain.out)) if not close(*two)] == []


def test_too_few_entries_stay(tmp_path):
    parts = run(tmp_path, SMALL, LEVER)
    assert parts.levers["chunked_vmap"]["applied"] == 0
    assert "no outermost vmap" in parts.levers["chunked_vmap"]["note"]


REFUSED = {
    "draws random numbers": """
        torch.vmap(lambda x: x + torch.randn(3), randomness="different")(torch.randn(6, 3))
    """,
    "changes a tensor from outside": """
        count = torch.zeros(())
        def counts(x):
            count.add_(1)
            return x * 2
        torch.vmap(counts)(torch.randn(6, 3))
    """,
    "closes over a tensor that was computed": """
        weight = torch.randn(3, requires_grad=True) * 2
        torch.vmap(lambda x: x * weight)(torch.randn(6, 3)).sum().backward()
    """,
    "gradients of gradients": """
        x = torch.randn(6, 3, requires_grad=True)
        found = torch.vmap(lambda x: x.pow(3))(x).sum()
        torch.autograd.grad(found, x, create_graph=True)
    """,
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_by_name(tmp_path, why):
    refused = run(tmp_path, REFUSED[why] + "\n        out = []", LEVER)
    assert refused.refusal and why in str(refused.refusal)


GPU = """
    import torch
    from torch import nn
    from torch.func import functional_call, vmap
    net = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        points = torch.randn(16384, 64, device="cuda")
        loss = vmap(lambda x: functional_call(net, dict(net.named_parameters()), (x,)))(points).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_the_peak_is_that_of_a_part(oomph, tmp_path):
    plain = oomph(GPU)
    assert plain.status == 0, plain.err
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record["facts"]["mapped"] == 16384
    parts = oomph(GPU, "--plan", plan(tmp_path, ("chunked_vmap", {"parts": 8})))
    assert parts.status == 0, parts.err
    held = [found.json["peak"]["allocated_bytes"] for found in (plain, parts)]
    # Four results of 64 MiB are kept without it.
    assert held[0] - held[1] > 150 << 20, held


def test_parts_are_no_steps(oomph, tmp_path):
    """Of a script that puts new weights in place of the old ones, each part asks for gradients."""
    code = """
        import torch
        x = torch.randn(8, 64, 1024, device="cuda")
        weights = torch.randn(8, 1024, 1024, device="cuda")
        small = torch.randn(8, 1024, device="cuda")
        def loss(weights, x):
            return torch.tanh(x @ weights[0] + weights[1]).square().mean()
        for _ in range(4):
            given = torch.vmap(torch.func.grad(loss))((weights, small), x)
            weights, small = weights - 0.1 * given[0], small - 0.1 * given[1]
    """
    parts = oomph(code, "--plan", plan(tmp_path, ("chunked_vmap", {"parts": 4})))
    assert parts.status == 0, parts.err
    assert json.loads((tmp_path / "run/record.json").read_text())["steps"] == 4
