"""torchao beside the levers: its 8-bit state on the virtual GPU, its int8 weights against the lever's.

Needs `pip install torchao`."""

import textwrap

import pytest

from tests.support import frameworks
from tests.support.by_hand import patched, script
from tests.support.levers import distance, run

pytest.importorskip("torchao")

TRAIN = """
    import torch
    from torch import nn
    # torchao compiles its step, some seconds; the plain code does the same.
    torch.compile = lambda function=None, **options: function
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        model(torch.randn(32, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PARAMETERS = 4 * 1024 * 1024 * 4
"""Bytes."""


def test_8bit_state_is_a_quarter_and_is_called_state(oomph, tmp_path):
    (tmp_path / "plan.toml").write_text(
        'format = "oomph.plan/1"\n[[lever]]\nname = "optimizer_8bit"\n'
    )
    found = oomph(TRAIN, "--plan", str(tmp_path / "plan.toml"), gpu="rtx-4090")
    assert found.status == 0, found.err
    assert found.json["levers"][0]["applied"] == 1
    # A byte for each moment of each parameter, and 4 bytes for every 256.
    state = 2 * PARAMETERS / 4 * (1 + 4 / 256)
    assert found.json["by_category"]["optimizer_state"] == pytest.approx(state, rel=0.02)


@pytest.mark.parametrize("framework", ["plain", "trainer", "lightning"])
def test_8bit_state_under_frameworks(tmp_path, monkeypatch, framework):
    """Trained, saved and resumed; what is saved of the model is as ever."""
    code = frameworks.FRAMEWORKS[framework].replace("n_embd=16", "n_embd=64")
    if framework == "lightning":
        # Its `map_location` is a function, with which PyTorch reads no tensors of classes of their own.
        code = code.replace("out.append(train(1))", "out.append(None)")
    code = "    torch.compile = lambda function=None, **options: function\n" + code
    monkeypatch.setitem(frameworks.FRAMEWORKS, framework, code)
    plain = frameworks.job(tmp_path, framework)
    other = frameworks.job(tmp_path, framework, ("optimizer_8bit", {}))
    assert other.levers["optimizer_8bit"]["applied"] == (1 if framework == "lightning" else 2)
    for mine, theirs in zip(weights(framework, other), weights(framework, plain), strict=True):
        assert mine.keys() == theirs.keys()
        # Steps of Adam are as large where gradients are near zero; without training it is 0.9 and more.
        assert 0 < distance(mine, theirs) < 0.3


@pytest.mark.parametrize(
    "schedule", ["scheduler.step()", 'for g in optimizer.param_groups: g["lr"] = 0.5']
)
def test_8bit_state_by_hand_is_what_the_lever_makes(tmp_path, schedule):
    code = script(width=64).replace("scheduler.step()", schedule)
    code = code.replace(": g[", ":\n            g[").replace("fused=False", "foreach=True")
    changed = patched(tmp_path, code, ("optimizer_8bit", {}))
    assert "optimizer = AdamW8bit(" in changed and "foreach" not in changed
    plainly = "torch.compile = lambda function=None, **options: function\n"
    end = "\nout = main()[0]\n"
    lever = run(tmp_path, plainly + code + end, ("optimizer_8bit", {}))
    assert lever.levers["optimizer_8bit"]["applied"] == 1
    by_hand = run(tmp_path, plainly + changed + end)
    assert distance(by_hand.out, lever.out) == 0.0


def weights(framework, found):
    """After the training and after the resumed one."""
    if framework == "plain":
        return [found.out[0], found.out[2]]
    return [found.out[0][0], found.out[3][0]] if framework == "trainer" else [found.out[0][0]]


NET = """
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).eval()
    x = torch.randn(64, 512)
"""
CALL = "    with torch.no_grad(): out = model(x)\n"


@pytest.mark.parametrize("kind", ["weight_only", "dynamic"])
def test_int8_by_hand_is_as_close_as_the_lever(tmp_path, kind):
    config = {"weight_only": "Int8WeightOnly", "dynamic": "Int8DynamicActivationInt8Weight"}[kind]
    lines = f"from torchao.quantization import quantize_, {config}Config\nquantize_(model, {config}Config())\n"
    patch = textwrap.indent(lines, "    ")
    plain = run(tmp_path, NET + CALL).out
    lever = distance(run(tmp_path, NET + CALL, ("int8_linear", {"kind": kind})).out, plain)
    by_hand = distance(run(tmp_path, NET + patch + CALL).out, plain)
    assert 0 < lever < 1.2 * by_hand < 0.03


def test_int8_by_hand_on_the_virtual_gpu_takes_what_the_lever_takes(oomph, tmp_path):
    code = """
        import sys, torch
        from torch import nn
        model = nn.Sequential(*(l for _ in range(4) for l in (nn.Linear(2048, 2048), nn.ReLU()))).eval().bfloat16()
        if "by hand" in sys.argv:
            from torchao.quantization import quantize_, Int8WeightOnlyConfig
            quantize_(model, Int8WeightOnlyConfig())
        model = model.cuda()
        with torch.no_grad():
            for _ in range(3):
                model(torch.randn(256, 2048, device="cuda").bfloat16())
    """
    lines = ['format = "oomph.plan/1"', "[[lever]]", 'name = "int8_linear"', 'kind = "weight_only"']
    (tmp_path / "plan.toml").write_text("\n".join(lines))
    lever = oomph(code, "--plan", str(tmp_path / "plan.toml"))
    assert lever.status == 0, lever.err
    by_hand = oomph(code, args=["by hand"])
    assert by_hand.status == 0, by_hand.err
    a, b = (found.json["peak"]["allocated_bytes"] for found in (lever, by_hand))
    assert a == pytest.approx(b, rel=0.05)
