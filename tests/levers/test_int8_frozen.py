"""Frozen weights in 8 bits while a job trains, on the CPU."""

import pytest

from tests.support.levers import distance, run

NET = """
    class Adapted(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.down, self.up = nn.Linear(256, 4, bias=False), nn.Linear(4, inner.out_features, bias=False)

        def forward(self, x):
            return self.inner(x) + self.up(self.down(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))
            self.head = nn.Linear(256, 3)

        def forward(self, x):
            for block in self.blocks:
                x = x + torch.tanh(block(x))
            return self.head(x)

    torch.manual_seed(1)
    model = Net().requires_grad_(False)
    for number in range(3):
        model.blocks[number] = Adapted(model.blocks[number])
    model.blocks[1].inner.bias.requires_grad_(True)
    if ROUNDED:
        for layer in (*(block.inner for block in model.blocks), model.head):
            w = layer.weight
            scale = w.abs().amax(1, keepdim=True) / 127
            w.copy_((w / scale).round() * scale)
    trained = [p for p in model.parameters() if p.requires_grad]
    x = torch.randn(8, 256, requires_grad=True)
"""
TRAIN = """
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count = sum(p.numel() for p in model.parameters())
    with torch.autocast("cpu", torch.bfloat16, enabled=AUTOCAST):
        y = model(x)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        model(x)
    y.float().square().mean().backward()
    after = model.state_dict()
    assert list(after) == list(before) and count == sum(p.numel() for p in model.parameters())
    held = sum(t.untyped_storage().nbytes() for t in (*model.parameters(), *model.buffers()))
    model.load_state_dict(before)
    out = y.detach(), x.grad, [p.grad for p in trained], list(after.values()), max(kept), held
"""
LEVER = ("int8_frozen", {})


@pytest.mark.parametrize(("autocast", "most"), [(False, 1e-6), (True, 0.02)])
def test_gradients_are_those_of_the_rounded_weights(tmp_path, autocast, most):
    """Of weights that 8 bits hold as they are, nothing changes but for rounding."""
    names = dict(ROUNDED=True, AUTOCAST=autocast)
    plain = run(tmp_path, NET + TRAIN, **names)
    found = run(tmp_path, NET + TRAIN, LEVER, **names)
    assert found.refusal is None, found.refusal
    report = found.levers["int8_frozen"]
    assert report["applied"] == 4, report
    for ours, theirs in zip(found.out[:4], plain.out[:4], strict=True):
        assert distance(ours, theirs) <= most
    # Nothing wide is kept for the backward pass, and the weights take a byte each.
    assert found.out[4] < 256 * 256 <= plain.out[4]
    assert found.out[5] < plain.out[5] - 3 * 256 * 256 * 2.9


def test_the_error_is_that_of_8_bits(tmp_path):
    names = dict(ROUNDED=False, AUTOCAST=False)
    plain = run(tmp_path, NET + TRAIN, **names)
    found = run(tmp_path, NET + TRAIN, LEVER, **names)
    assert 1e-4 < distance(found.out[3], plain.out[3]) < 0.01
    assert 1e-5 < distance(found.out[2], plain.out[2]) < 0.01


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("model.requires_grad_(True)", "that were frozen are trained now"),
        (
            "next(p for p in model.parameters() if not p.requires_grad and p.dim() == 2).add_(1)",
            "single memory location",
        ),
    ],
)
def test_weights_that_change_later_are_refused(tmp_path, change, why):
    code = (
        NET
        + f"""
    model(x).sum().backward()
    try:
        with torch.no_grad():
            {change}
        model(x)
        out = ""
    except RuntimeError as error:
        out = str(error)
    """
    )
    assert why in run(tmp_path, code, LEVER, ROUNDED=False).out


def test_a_model_that_is_trained_is_left_alone(tmp_path):
    code = NET + "    model.requires_grad_(True); out = model(x).sum().backward()\n"
    report = run(tmp_path, code, LEVER, ROUNDED=False).levers["int8_frozen"]
    assert report["applied"] == 0 and "no frozen linear layers" in report["note"]
