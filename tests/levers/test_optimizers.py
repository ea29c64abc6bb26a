"""`step_in_backward`, `optimizer_8bit`, `optimizer_on_cpu`."""

import pytest

from tests.support.levers import distance, run, same

SETUP = """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.1), nn.GELU(), nn.Linear(128, 64))
    x = torch.randn(5, 16, 64)
"""

LOOP = """
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses = []
    for part in x:
        optimizer.zero_grad()
        loss = model(part).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    out = [losses, [p.detach() for p in model.parameters()]]
"""

OPTIMIZERS = [
    "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
    "torch.optim.AdamW(model.parameters(), lr=0.01)",
    "torch.optim.AdamW([dict(params=[p for p in model.parameters() if p.dim() > 1], weight_decay=0.3),"
    " dict(params=[p for p in model.parameters() if p.dim() == 1], lr=0.1)], lr=0.01)",
    "torch.optim.RMSprop(model.parameters())",
    "torch.optim.Adafactor(model.parameters())",
]

ANYWHERE = """
    from oomph.levers import optimizer_on_cpu as lever
    lever.AT_ONCE = 4096
"""


@pytest.mark.parametrize("lever", ["step_in_backward", "optimizer_on_cpu"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_the_same(tmp_path, optimizer, lever):
    code = SETUP + ANYWHERE + f"\n    optimizer = {optimizer}\n" + LOOP
    plain = run(tmp_path, code)
    changed = run(tmp_path, code, (lever, {}))
    assert changed.refusal is None, changed.refusal
    assert same(changed.out, plain.out)
    if lever == "step_in_backward":
        assert changed.levers[lever]["applied"] == 5 * 4


def test_gradients_are_gone_after_backward(tmp_path):
    code = (
        SETUP
        + """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x[0]).sum().backward()
    out = [p.grad for p in model.parameters()]
    optimizer.step()
    """
    )
    assert run(tmp_path, code, ("step_in_backward", {})).out == [None] * 4


REFUSED = {
    "clip": """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x[0]).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """,
    "accumulates": """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for part in x[:2]:
        model(part).sum().backward()
    optimizer.step()
    """,
    "GradScaler": """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(x[0]).sum()).backward()
    scaler.step(optimizer)
    """,
    "several optimizers": """
    a = torch.optim.SGD(model[0].parameters(), lr=0.1)
    b = torch.optim.SGD(model[3].parameters(), lr=0.1)
    """,
    "LBFGS": """
    optimizer = torch.optim.LBFGS(model.parameters())
    """,
}


@pytest.mark.parametrize("why", REFUSED)
def test_step_in_backward_refuses_by_name(tmp_path, why):
    refusal = run(tmp_path, SETUP + REFUSED[why], ("step_in_backward", {})).refusal
    assert why in refusal


def test_a_closure_is_called_once(tmp_path):
    code = (
        SETUP
        + """
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    calls = []
    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = model(x[len(calls) % 5]).pow(2).mean()
        loss.backward()
        return loss
    losses = [optimizer.step(closure).detach() for _ in range(3)]
    out = [len(calls), losses, [p.detach() for p in model.parameters()]]
    """
    )
    plain = run(tmp_path, code).out
    for lever in ("step_in_backward", "optimizer_on_cpu"):
        assert same(run(tmp_path, code, (lever, {})).out, plain)


def test_8bit_replaces_adam(tmp_path):
    pytest.importorskip("torchao")
    # The step is compiled where it is used; its plain code does the same arithmetic.
    code = (
        SETUP
        + """
    torch.compile = lambda function=None, **options: function
    from torch.optim import AdamW
    optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=False, foreach=False)
    assert isinstance(optimizer, torch.optim.AdamW)
    """
    )
    body = (
        LOOP
        + """
    out.append([type(v).__name__ for v in next(iter(optimizer.state.values())).values()])
    """
    )
    plain = run(tmp_path, code + body)
    changed = run(tmp_path, code + body, ("optimizer_8bit", {}))
    assert changed.levers["optimizer_8bit"]["applied"] == 1
    assert changed.out[2].count("OptimState8bit") == 2 and "OptimState8bit" not in plain.out[2]
    assert distance(changed.out[:2], plain.out[:2]) < 0.01
    # A learning rate that the script assigns is taken.
    zero = body.replace("optimizer.zero_grad()", "optimizer.param_groups[0]['lr'] = 0.0")
    frozen = run(tmp_path, code + zero.replace("scheduler.step()", "pass"), ("optimizer_8bit", {}))
    start = run(tmp_path, SETUP + "\n    out = [p.detach() for p in model.parameters()]\n")
    assert same(frozen.out[1], start.out)


def test_classes_derived_from_adam_stay(tmp_path):
    pytest.importorskip("torchao")
    code = (
        SETUP
        + """
    class Mine(torch.optim.AdamW):
        pass
    optimizer = Mine(model.parameters())
    out = [isinstance(optimizer, torch.optim.AdamW), type(optimizer).__name__]
    """
    )
    result = run(tmp_path, code, ("optimizer_8bit", {}))
    assert result.out == [True, "Mine"]
    assert "made no" in result.levers["optimizer_8bit"]["note"]
