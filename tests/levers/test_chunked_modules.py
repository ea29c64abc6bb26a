"""Modules that run some rows at a time: the same to rounding, and what is refused."""

import pytest

from tests.support.levers import distance, run

MODEL = """
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(C, 6 * C, bias=False), nn.Linear(3 * C, C)
            self.scale = nn.Parameter(torch.ones(C))

        def forward(self, x):
            y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
            gate, y = self.up((self.scale * y).type_as(x)).chunk(2, dim=-1)
            return self.down(F.silu(gate) * y)

    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.LayerNorm(C // 2), nn.Linear(C, C)
            self.also = self.head

        def forward(self, hidden_states):
            y = self.norm(hidden_states.unflatten(-1, (2, C // 2))).transpose(-1, -2).flatten(-2)
            y = torch.cat([y, y.softmax(-1) + y.new_full((), 0.5)], -1)[..., : C]
            return self.also(F.gelu(self.head(y))).clamp_(-3, 3)

    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(C, 3), nn.ModuleList(Gated() for _ in range(3))

        def forward(self, x):
            flat = x.reshape(-1, C)
            best = self.gate(flat).softmax(-1)
            out = torch.zeros_like(flat)
            for number, expert in enumerate(self.experts):
                rows = (best.argmax(-1) == number).nonzero()[:, 0]
                out = out.index_add(0, rows, expert(flat[rows]) * best[rows, number, None])
            return out.view_as(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.LayerNorm(C), nn.Linear(C, 4 * C), nn.GELU("tanh"), nn.Linear(4 * C, C))
            self.gated, self.norms, self.routed = Gated(), Norms(), Routed()
            self.last = nn.Linear(C, 7)

        def forward(self, x):
            x = x + self.mlp(x)
            x = x + self.gated(x)
            x = x + self.norms(hidden_states=x)
            return self.last(x + self.routed(x))

    torch.manual_seed(0)
    C = 16
    model = Net().to(DTYPE)
    model.gated.down.weight.requires_grad_(False)
    inputs = torch.randn(2, 50, C, dtype=DTYPE, requires_grad=True)
"""
TRAIN = """
    from torch.utils.checkpoint import checkpoint
    fired = []
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p: fired.append(p.shape))
    for step in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=AUTOCAST):
            y = checkpoint(model, inputs, use_reentrant=False) if AROUND else model(inputs)
        y.float().square().mean().backward()
    with torch.inference_mode():
        inferred = model(inputs[:, :40])
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    out = y.detach(), inferred, inputs.grad, grads, len(fired)
"""
NAMES = ["Net.mlp", "Net.gated", "Net.norms", "Net.routed.experts.0", "Net.routed.experts.2", "Net.last"]


def chunked(*modules, chunks=3):
    return "chunked_modules", {"modules": [*modules], "chunks": chunks}


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize(
    ("dtype", "autocast", "most"),
    [("float32", False, 1e-6), ("float64", False, 1e-13), ("bfloat16", False, 0.02), ("float32", True, 0.02)],
)
def test_equal_to_rounding(tmp_path, dtype, autocast, most, around):
    import torch

    names = dict(DTYPE=getattr(torch, dtype), AUTOCAST=autocast, AROUND=around)
    plain = run(tmp_path, MODEL + TRAIN, **names)
    found = run(tmp_path, MODEL + TRAIN, chunked(*NAMES), **names)
    assert found.refusal is None, found.refusal
    report = found.levers["chunked_modules"]
    assert report["applied"] == len(NAMES) and report["note"] is None, report
    for ours, theirs in zip(found.out[:4], plain.out[:4], strict=True):
        assert distance(ours, theirs) <= most
    assert found.out[4] == plain.out[4], "each gradient arrives once"
