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
                out = out.index_add(0, rows, (expert(flat[rows]) * best[rows, number, None]).type_as(out))
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
NAMES = [
    "Net.mlp",
    "Net.gated",
    "Net.norms",
    "Net.routed.experts.0",
    "Net.routed.experts.2",
    "Net.last",
]


def chunked(*modules, chunks=3):
    return "chunked_modules", {"modules": [*modules], "chunks": chunks}


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize(
    ("dtype", "autocast", "most"),
    [
        ("float32", False, 1e-6),
        ("float64", False, 1e-13),
        ("bfloat16", False, 0.02),
        ("float32", True, 0.02),
    ],
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


ONE = """
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.out, self.drop = nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(0.1)
            self.norm, self.last = nn.BatchNorm1d(8), None

        def forward(self, x):
            y = F.gelu(self.fc(x))
            {change}
            return self.out(y)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = Mlp()

        def forward(self, x):
            return self.mlp({call})

    model = Net()
    out = model(torch.randn(1, 24, 8)).sum().backward()
"""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("y = self.drop(y)", "draws random numbers"),
        ("y = y + y.mean(1, keepdim=True)", "(mean)"),
        ("y = y / x.shape[1]", "looks at the number of its rows"),
        ("y = y + torch.arange(x.shape[1])[None, :, None]", "(add)"),
        ("y = y.cumsum(1)", "(cumsum)"),
        ("y = y.flip(1)", "(flip)"),
        ("y = y @ (y.mT @ y)", "does not compute each row by itself"),
        ("y = y.transpose(1, 2).reshape(y.shape)", "does not compute each row by itself"),
        ("y = y * (1.0 if y.sum() > 0 else 2.0)", "(sum)"),
        ("x.mul_(2)", "changes its input in place"),
        ("self.last = y", "keeps something of a call"),
        ("return y[:, 0]", "does not compute each row by itself"),
        ("return y, y", "does not return one tensor"),
        ("self.norm(x.mT)", "does not compute each row by itself"),
        ("y = torch.cat([y, y], 1)[:, : x.shape[1]]", "(cat)"),
    ],
)
def test_what_is_not_by_rows_is_refused_by_name(tmp_path, change, why):
    found = run(tmp_path, ONE.format(change=change, call="x"), chunked("Net.mlp"))
    assert found.refusal and "Net.mlp" in found.refusal and why in found.refusal, found.refusal


IMAGES = """
    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.a, self.b, self.norm = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1), nn.GroupNorm(2, c)

        def forward(self, x):
            return x + self.b(F.relu(self.norm(self.a(F.pad(F.relu(x, inplace=False), (1, 1, 1, 1))))))[..., 1:-1, 1:-1]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            down = nn.ConvTranspose2d(8, 8, 2, 2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(4)
            parts = nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(3, 2, 1), Block(8), nn.ReLU(inplace=True), nn.Upsample(scale_factor=2), *down
            self.frames, self.head = nn.Sequential(*parts, {more}), nn.Linear(128, 5)

        def forward(self, x):
            return self.head(self.frames(x.flatten(0, 1)).flatten(1).view(*x.shape[:2], -1))

    torch.manual_seed(0)
    model = Net().double().to(memory_format={format})
    inputs = torch.randn(3, 4, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    formats = []
    model.frames.register_forward_hook(lambda module, args, y: formats.append(y.stride()))
    for step in range(2):
        y = model(inputs)
        y.square().mean().backward()
    out = y.detach(), inputs.grad, [p.grad for p in model.parameters()], formats
"""


@pytest.mark.parametrize("format", ["torch.contiguous_format", "torch.channels_last"])
def test_convolutions_run_some_samples_at_a_time(tmp_path, format):
    code = IMAGES.format(format=format, more="nn.Tanh()")
    plain, found = run(tmp_path, code), run(tmp_path, code, chunked("Net.frames", chunks=4))
    assert found.refusal is None, found.refusal
    assert found.levers["chunked_modules"]["applied"] == 1
    for ours, theirs in zip(found.out[:3], plain.out[:3], strict=True):
        assert distance(ours, theirs) <= 1e-13
    assert found.out[3] == plain.out[3], "the result has the same strides"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("nn.BatchNorm2d(8)", "(native_batch_norm)"),
        ("nn.Dropout(0.1)", "draws random numbers"),
        ("nn.Flatten(0, 1)", "does not compute each row by itself (view)"),
        ("nn.Softmax(0)", "(_softmax)"),
    ],
)
def test_what_mixes_samples_is_refused_by_name(tmp_path, more, why):
    code = IMAGES.format(format="torch.contiguous_format", more=more)
    found = run(tmp_path, code, chunked("Net.frames", chunks=4))
    assert found.refusal and "Net.frames" in found.refusal and why in found.refusal, found.refusal


def test_small_calls_without_gradients_run_whole(tmp_path):
    code = (
        IMAGES.format(format="torch.contiguous_format", more="nn.Tanh()")
        + """
    sizes = []
    model.frames[0].register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    with torch.no_grad():
        model(inputs[:1]), model(inputs), model(inputs.repeat(3, 1, 1, 1, 1))
    out = sizes
    """
    )
    # 3 of the 12 pictures with gradients are a part.
    found = run(tmp_path, code, chunked("Net.frames", chunks=4))
    assert found.out == [2, 2, 3, 3, 3, 3] + 12 * [3], found.out


def test_few_rows_and_other_arguments(tmp_path):
    few = run(tmp_path, ONE.format(change="", call="x[:, :5]"), chunked("Net.mlp"))
    report = few.levers["chunked_modules"]
    assert report["applied"] == 0 and "6 rows or more" in report["note"]
    other = run(tmp_path, ONE.format(change="", call="x[0, 0]"), chunked("Net.mlp"))
    assert "is not called with one tensor of rows" in other.refusal


def test_beside_checkpointing_and_micro_batches(tmp_path):
    """Inside of a checkpointed block, of parts of a batch, and with steps in the backward pass."""
    code = (
        MODEL
        + """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.randn(4, 30, C, generator=torch.Generator().manual_seed(3)), 4)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    out = [p.detach() for p in model.parameters()]
    """
    )
    import torch

    names = dict(DTYPE=torch.float32)
    plain = run(tmp_path, code, **names)
    for others in [
        [("checkpoint", {"modules": ["Net"]})],
        [("micro_batch", {"parts": 2})],
        [("step_in_backward", {})],
        [("split_forward", {"parts": 2}), ("save_on_cpu", {"in_flight": 1 << 20})],
        [("recompute", {"modules": ["Net.mlp.2"]})],
    ]:
        found = run(tmp_path, code, chunked(*NAMES[:4]), *others, **names)
        assert found.refusal is None, found.refusal
        assert found.levers["chunked_modules"]["applied"] == 4
        assert distance(found.out, plain.out) <= 1e-6
