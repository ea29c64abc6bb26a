"""`recompute`: bitwise the plain run, with less saved, whatever the modules are."""

import pytest

from tests.support.levers import run, same

STEPS = """
    import contextlib
    losses, gradients = [], []
    for step in range(3):
        x = torch.randn(*SHAPE)
        with torch.autocast("cpu", torch.bfloat16) if AUTOCAST else contextlib.nullcontext():
            loss = model(x).float().pow(2).mean()
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= 0.1 * p.grad
        model.zero_grad()
        losses.append(loss.detach())
    out = [losses, gradients, list(model.state_dict().values()), torch.rand(3)]
"""

MODELS = {
    "layer_norm_gelu": (
        (2, 5, 8),
        """
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.wide, self.act, self.out = nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)
        def forward(self, x):
            return x + self.out(self.act(self.wide(self.norm(x))))
    model = nn.Sequential(nn.Linear(8, 8), Mlp(), Mlp())
    """,
        ["norm", "wide", "act"],
        6,
    ),
    "conv_batch_norm_relu_in_place": (
        (3, 4, 8, 8),
        """
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 8, 1)
            self.down = nn.Conv2d(8, 4, 1)
            self.norm_a, self.norm_b, self.norm_c = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.BatchNorm2d(8)
            self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 1, 1)
        def forward(self, x):
            h = self.relu(self.norm_a(self.a(x)))
            h = self.relu(self.norm_b(self.b(self.pool(h))))
            h = self.norm_c(self.c(h))
            return self.relu(self.down(h) + x)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), Mlp(), Mlp())
    """,
        ["norm_a", "norm_b", "relu", "c"],
        8,
    ),
    "gated_rms_norm": (
        (2, 5, 8),
        """
    class RmsNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))
        def forward(self, x):
            wide = x.float()
            return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.act = RmsNorm(), nn.SiLU()
            self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((8, 16), (8, 16), (16, 8)))
        def forward(self, x):
            h = self.norm(x)
            return x + self.down(self.act(self.gate(h)) * self.up(h))
    model = nn.Sequential(nn.Linear(8, 8), Mlp(), Mlp())
    """,
        ["norm", "act", "gate", "up"],
        8,
    ),
    "composite_activation_and_attention": (
        (2, 5, 8),
        """
    class NewGelu(nn.Module):
        def forward(self, x):
            return 0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3.0))))
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
            self.wide, self.act, self.out = nn.Linear(8, 32), NewGelu(), nn.Linear(32, 8)
            self.drop = nn.Dropout(0.2)
        def forward(self, x):
            h = self.norm(x)
            x = x + self.drop(self.attention(h, h, h, need_weights=False)[0])
            return x + self.drop(self.out(self.act(self.wide(self.norm(x)))))  # one norm, called twice
    model = nn.Sequential(nn.Linear(8, 8), Mlp(), Mlp())
    """,
        ["norm", "wide", "act"],
        6,
    ),
    "random_composite": (
        (2, 5, 8),
        """
    class Noisy(nn.Module):
        def forward(self, x):
            return torch.tanh(x) * torch.sigmoid(x) * torch.rand_like(x)
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act, self.b = nn.Linear(8, 8), Noisy(), nn.Linear(8, 8)
        def forward(self, x):
            return self.b(self.act(self.a(x)))
    model = nn.Sequential(nn.Linear(8, 8), Mlp(), Mlp())
    """,
        ["act"],
        2,
    ),
}


def names(parts):
    return [f"Sequential.{block}.{part}" for block in (1, 2) for part in parts]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_bitwise(tmp_path, model, autocast):
    shape, code, parts, applied = MODELS[model]
    code = code + STEPS
    parameters = dict(SHAPE=shape, AUTOCAST=autocast)
    plain = run(tmp_path, code, **parameters)
    changed = run(tmp_path, code, ("recompute", {"modules": names(parts)}), **parameters)
    assert same(changed.out, plain.out)
    assert changed.levers["recompute"]["applied"] == applied, changed.levers


SAVED = """
    from torch.multiprocessing.reductions import StorageWeakRef
    made = []
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.wide, self.act, self.out = nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)
        def forward(self, x):
            h = self.norm(x); made.append(StorageWeakRef(h.untyped_storage()))
            w = self.wide(h); made.append(StorageWeakRef(w.untyped_storage()))
            a = self.act(w); made.append(StorageWeakRef(a.untyped_storage()))
            return x + self.out(a)
    model = nn.Sequential(nn.Linear(8, 8), Mlp(), Mlp())
    x = torch.randn(2, 5, 8)
    loss = model(x).pow(2).mean()
    out = [not storage.expired() for storage in made]
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss.backward()
    again = [p.grad.clone() for p in model.parameters()]
    out += [all(torch.equal(a, b) for a, b in zip(first, again))]
"""  # fmt: skip


def test_results_are_gone_after_the_forward_pass_and_a_second_backward_pass_agrees(tmp_path):
    assert run(tmp_path, SAVED).out == [True] * 7
    changed = run(tmp_path, SAVED, ("recompute", {"modules": names(["norm", "wide", "act"])}))
    assert changed.out == [False] * 6 + [True]
    # Without the product before it, the activation keeps its input.
    changed = run(tmp_path, SAVED, ("recompute", {"modules": names(["norm", "act"])}))
    assert changed.out == [False, True, False] * 2 + [True]


def test_frozen_parameters_and_second_derivatives(tmp_path):
    code = """
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.wide, self.act, self.out = nn.LayerNorm(8), nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8)
            self.wide.requires_grad_(False)
        def forward(self, x):
            return x + self.out(self.act(self.wide(self.norm(x))))
    model = nn.Sequential(nn.Linear(8, 8), Mlp(), Mlp())
    x = torch.randn(2, 5, 8, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
    slope.pow(2).sum().backward()
    out = [slope.detach(), [p.grad for p in model.parameters() if p.grad is not None], x.grad]
    """
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("recompute", {"modules": names(["norm", "wide", "act"])}))
    assert same(changed.out, plain.out)


def test_inside_of_checkpointed_modules_it_leaves_things_alone(tmp_path):
    shape, code, parts, _ = MODELS["layer_norm_gelu"]
    parameters = dict(SHAPE=shape, AUTOCAST=True)
    plain = run(tmp_path, code + STEPS, **parameters)
    both = run(
        tmp_path,
        code + STEPS,
        ("recompute", {"modules": names(parts)}),
        ("checkpoint", {"modules": ["Sequential.1"]}),
        **parameters,
    )
    assert same(both.out, plain.out)
    assert both.levers["recompute"]["applied"] == 3
    assert "checkpointed" in both.levers["recompute"]["note"]
    assert both.levers["checkpoint"]["applied"] == 1


def test_inert_without_gradients_and_where_nobody_saves_the_result(tmp_path, capfd):
    code = """
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.1))
    with torch.no_grad():
        model(torch.randn(2, 8))
    """
    idle = run(tmp_path, code, ("recompute", {"modules": ["Sequential.1"]})).levers["recompute"]
    assert idle["applied"] == 0 and "never called with gradients" in idle["note"]
    code = (
        code.replace("torch.no_grad()", "torch.enable_grad()")
        + "    model(torch.randn(2, 8)).sum().backward()\n"
    )
    modules = ["Sequential.1", "Sequential.2", "Sequential.7"]
    idle = run(tmp_path, code, ("recompute", {"modules": modules})).levers["recompute"]
    assert idle["applied"] == 0
    for words in ("results are not saved", "random numbers", "not in this script"):
        assert words in idle["note"], idle
    # What is not there is said before the first backward pass, not after hours.
    said = "oomph: recompute: 1 of the plan's modules are not in this script: Sequential.7\n"
    assert said in capfd.readouterr().err


def test_what_cannot_be_recomputed_in_backward_is_an_error(tmp_path):
    code = """
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    loss = model(torch.randn(2, 8)).sum()
    with torch.no_grad():
        model[1].weight.mul_(2)
    try:
        loss.backward()
        out = "nothing"
    except RuntimeError as error:
        out = str(error)
    """
    out = run(tmp_path, code, ("recompute", {"modules": ["Sequential.1"]})).out
    assert "Sequential.1 were changed" in out or "parameters of Sequential.1" in out, out


@pytest.mark.parametrize("autocast", [False, True])
def test_a_result_changed_in_place_is_kept(tmp_path, autocast):
    """Under autocast only a copy of it in another type is saved, and it is gone when that is looked at."""
    code = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 8)
        def forward(self, x):
            h = self.norm(x)
            with torch.no_grad():
                h.mul_(2)
            return self.out(h)
    model = Net()
    with torch.autocast("cpu", torch.bfloat16, enabled=AUTOCAST):
        loss = model(torch.randn(2, 8)).sum()
    loss.backward()
    out = [p.grad for p in model.parameters()]
    """
    plain = run(tmp_path, code, AUTOCAST=autocast)
    changed = run(tmp_path, code, ("recompute", {"modules": ["Net.norm"]}), AUTOCAST=autocast)
    assert same(changed.out, plain.out)


def test_refusals(tmp_path):
    code = """
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
        def forward(self, x):
            self.calls += 1
            return torch.tanh(x) * self.calls
    class Overwriting(nn.Module):
        def forward(self, x):
            return x.mul_(2).tanh()
    model = nn.Sequential(nn.Linear(8, 8), KIND(), nn.Linear(8, 8))
    model(torch.randn(2, 8)).sum().backward()
    """
    for kind, words in (("Counting", "changes its buffers"), ("Overwriting", "in place")):
        stopped = run(
            tmp_path, code.replace("KIND", kind), ("recompute", {"modules": ["Sequential.1"]})
        )
        assert words in stopped.refusal
    compiled = """
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.GELU()))
    model(torch.randn(2, 8)).sum().backward()
    """
    stopped = run(tmp_path, compiled, ("recompute", {"modules": ["OptimizedModule._orig_mod.1"]}))
    assert "torch.compile" in stopped.refusal


def test_products_keep_what_they_multiply_and_not_what_it_was_cast_from(tmp_path):
    """Under autocast the norm's wide result would otherwise stay for the product alone."""
    code = SAVED.replace(
        "    loss = model(x)",
        "    with torch.autocast('cpu', torch.bfloat16):\n        y = model(x)\n    loss = y",
    )
    code = code.replace("self.norm(x)", "self.norm(x.float())").replace(
        ".pow(2)", ".float().pow(2)"
    )
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("recompute", {"modules": names(["wide", "act"])}))
    assert plain.out == [False, True, True] * 2 + [True]
    assert changed.out == [False] * 6 + [True]


def test_scripts_that_do_something_else_each_time(tmp_path):
    """Where nodes lie in the graph is remembered from the pass before, and no longer true here."""
    code = """
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.wide, self.act, self.out = nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)
            self.step = 0
        def forward(self, x):
            self.step += 1
            h = self.act(self.wide(self.norm(x)))
            if self.step % 2:
                h = h * 2
            if self.step % 3 == 0:
                h = (h + torch.tanh(h)).relu() * self.norm(x).mean()
            made.append(StorageWeakRef(h.untyped_storage()))
            return x + self.out(h if self.step % 5 else h.double().float())
    from torch.multiprocessing.reductions import StorageWeakRef
    out = []
    model = nn.Sequential(nn.Linear(8, 8), Mlp(), Mlp())
    for step in range(12):
        made = []
        loss = model(torch.randn(2, 5, 8)).pow(2).mean()
        kept = [not storage.expired() for storage in made]
        loss.backward()
        out.append([kept, loss.detach(), [p.grad.clone() for p in model.parameters()]])
        model.zero_grad()
    """  # fmt: skip
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, ("recompute", {"modules": names(["norm", "wide", "act"])}))
    assert same([row[1:] for row in changed.out], [row[1:] for row in plain.out])
    # The activation's result as it is, or cast: other ways came before.
    assert [changed.out[step][0] for step in (1, 3, 7, 9)] == [[False, False]] * 4
    assert changed.out[0][0] == plain.out[1][0] == [True, True]


def test_batch_normalization_takes_the_statistics_that_it_has(oomph):
    """On a GPU, where the first time shows that this gives the same bits."""
    run = oomph("""
        import torch
        from torch import nn
        from oomph.levers import Levers
        calls = []
        original = torch.batch_norm_elemt
        torch.batch_norm_elemt = lambda *args: calls.append(args[0].shape) or original(*args)
        levers = Levers([dict(name="recompute", modules=["Sequential.1", "Sequential.2"])])
        levers.install()
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(16, 3, 64, 64, device="cuda")).mean().backward()
            optimizer.step()
        assert len(calls) == 2, calls
        assert levers.report()[0]["applied"] == 2, levers.report()
    """)  # fmt: skip
    assert run.status == 0, run.err
    assert "equal" not in str(run.json["assumptions"])
