"""The small levers, on the CPU: what they change, when they are inert, what they refuse."""

import importlib
from pathlib import Path

import pytest
import torch
from oomph import _oomph, levers

from tests.support.levers import distance, run

TRAIN = """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5))
    x, y = torch.randn(12, 8), torch.randint(0, 5, (12,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    def step(loss):
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
END = "\n    out = [p.detach() for p in model.parameters()]\n"


@pytest.mark.parametrize("kind", ["fused", "single_tensor"])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adagrad"])
def test_optimizer_step_changes_the_implementation_only(tmp_path, kind, optimizer):
    code = TRAIN.replace("AdamW", optimizer) + (
        "    for _ in range(3): step(F.cross_entropy(model(x), y))\n"
        "    kinds = (optimizer.param_groups[0]['fused'], optimizer.param_groups[0]['foreach'])\n"
    )
    plain = run(tmp_path, code + END)
    other = run(tmp_path, code + END, ("optimizer_step", {"kind": kind}))
    assert other.levers["optimizer_step"]["applied"] == 1
    assert distance(other.out, plain.out) < 1e-6
    kinds = run(tmp_path, code + "    out = kinds\n", ("optimizer_step", {"kind": kind})).out
    assert kinds == ((True, False) if kind == "fused" else (False, False))


@pytest.mark.parametrize("kind", ["fused", "single_tensor"])
def test_optimizer_step_stays_out_of_what_is_saved_and_outlives_what_is_loaded(tmp_path, kind):
    code = TRAIN + (
        "    for _ in range(2): step(F.cross_entropy(model(x), y))\n"
        "    import copy; saved = copy.deepcopy(optimizer.state_dict())\n"
        "    if given is not None: optimizer.load_state_dict(given)\n"
        "    step(F.cross_entropy(model(x), y))\n"
        "    group = optimizer.param_groups[0]\n"
        "    out = [saved, optimizer.state_dict(), (group['fused'], group['foreach'])]\n"
    )
    lever = ("optimizer_step", {"kind": kind})
    plain = run(tmp_path, code, given=None).out
    for given in (None, plain[0]):
        *states, implementation = run(tmp_path, code, lever, given=given).out
        assert implementation == (kind == "fused", False)
        for state, expected in zip(states, plain, strict=False):
            assert state["param_groups"] == expected["param_groups"]
            assert distance(state["state"], expected["state"]) < 1e-6


def test_optimizer_step_is_inert_where_there_is_none(tmp_path):
    code = TRAIN.replace("AdamW", "RMSprop") + "    step(model(x).sum())\n"
    report = run(tmp_path, code, ("optimizer_step", {"kind": "fused"})).levers["optimizer_step"]
    assert report["applied"] == 0 and "RMSprop has no fused step" in report["note"]
    assert "fused or single_tensor" in run(tmp_path, "", ("optimizer_step", {"kind": "x"})).refusal


def test_set_to_none(tmp_path):
    code = TRAIN + (
        "    step(F.cross_entropy(model(x), y))\n"
        "    optimizer.zero_grad(set_to_none=False)\n"
        "    freed = all(p.grad is None for p in model.parameters())\n    out = freed\n"
    )
    assert run(tmp_path, code).out is False
    other = run(tmp_path, code, ("set_to_none", {}))
    assert other.out is True and other.levers["set_to_none"]["applied"] == 1
    inert = run(tmp_path, TRAIN + "    optimizer.zero_grad()\n", ("set_to_none", {}))
    assert inert.levers["set_to_none"]["applied"] == 0 and inert.levers["set_to_none"]["note"]


COMPILED = """
    torch.manual_seed(1)
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 32)
        def forward(self, x):
            return x + self.b((-self.a(x)).exp().sin().tanh())
    model = torch.compile(nn.Sequential(*[Block() for _ in range(4)]), backend="aot_eager")
    y = model(torch.randn(256, 32))
    weights = {p.data_ptr() for p in model.parameters()}
    saved = {t.data_ptr(): t.nbytes for t in y.grad_fn.saved_tensors if t.data_ptr() not in weights}
    y.pow(2).mean().backward()
    out = [y.detach(), [p.grad for p in model.parameters()], sum(saved.values())]
"""


def test_activation_memory_budget_keeps_less_and_computes_the_same(tmp_path):
    prelude = "import torch._dynamo, torch._functorch.partitioners"
    plain = run(tmp_path, COMPILED, prelude=prelude)
    kept = []
    for percent in (100, 50, 0):
        lever = ("activation_memory_budget", {"percent": percent})
        other = run(tmp_path, COMPILED, lever, prelude=prelude)
        assert other.levers["activation_memory_budget"] == dict(
            name="activation_memory_budget", applied=1, note=None
        )
        assert distance(other.out[:2], plain.out[:2]) < 1e-6
        kept.append(other.out[2] / plain.out[2])
    assert kept[0] == 1 and kept[1] <= 0.6 and kept[2] < kept[1]


def test_activation_memory_budget_holds_against_the_script(tmp_path):
    code = "    import torch._functorch.config as c; c.activation_memory_budget = 0.9" + COMPILED
    prelude = "import torch._dynamo, torch._functorch.partitioners"
    lever = ("activation_memory_budget", {"percent": 0})
    own, other = run(tmp_path, code, prelude=prelude), run(tmp_path, code, lever, prelude=prelude)
    assert "own setting" in other.levers["activation_memory_budget"]["note"]
    assert other.out[2] < own.out[2]


def test_activation_memory_budget_is_inert_without_a_backward_pass(tmp_path):
    lever = ("activation_memory_budget", {"percent": 50})
    code = """
    model = torch.compile(nn.Linear(4, 4), backend="aot_eager")
    with torch.no_grad():
        model(torch.randn(2, 4))
    """
    for script in (code, TRAIN + "    step(model(x).sum())\n"):
        report = run(tmp_path, script, lever).levers["activation_memory_budget"]
        assert report["applied"] == 0 and "compiled with gradients" in report["note"]
    assert "from 0 to 100" in run(tmp_path, "", (lever[0], {"percent": 101})).refusal


def test_uncompiled_compiles_nothing_and_other_levers_step_in(tmp_path):
    """What is compiled as a whole, a block that is compiled in place, and a script that sets a stance itself."""
    code = """
    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward
    compiled = []
    torch.manual_seed(1)
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 32)
        def forward(self, x):
            return x + self.b((-self.a(x)).exp().sin().tanh())
    torch.compiler.set_stance("default")
    blocks = nn.Sequential(*[Block() for _ in range(4)])
    if in_place:
        for block in blocks:
            block.compile(backend=backend)
        model = blocks
    else:
        model = torch.compile(blocks, backend=backend)
    y = model(torch.randn(256, 32))
    y.pow(2).mean().backward()
    out = [y.detach(), [p.grad for p in model.parameters()], len(compiled), list(model.state_dict())[0]]
"""
    for in_place, name in ((True, "Sequential.1"), (False, "OptimizedModule._orig_mod.1")):
        script = f"    in_place = {in_place}" + code
        plain = run(tmp_path, script)
        checkpoint = ("checkpoint", {"modules": [name]})
        other = run(tmp_path, script, ("uncompiled", {}), checkpoint)
        assert plain.out[2] > 0 and other.out[2] == 0
        assert other.levers["uncompiled"]["applied"] > 0
        assert other.levers["checkpoint"]["applied"] == 1
        assert other.out[3] == plain.out[3]
        assert distance(other.out[:2], plain.out[:2]) < 1e-6


def test_uncompiled_is_inert_where_nothing_is_compiled(tmp_path):
    report = run(tmp_path, TRAIN + "    step(model(x).sum())\n", ("uncompiled", {})).levers[
        "uncompiled"
    ]
    assert report["applied"] == 0 and "torch.compile" in report["note"]


def test_activation_memory_budget_needs_a_torch_that_has_it(tmp_path):
    """Torch before 2.4."""
    prelude = """
import torch._functorch
class Config:
    __name__ = "torch._functorch.config"
import sys
torch._functorch.config = sys.modules["torch._functorch.config"] = Config()
"""
    lever = ("activation_memory_budget", {"percent": 50})
    refusal = run(tmp_path, "", lever, prelude=prelude).refusal
    assert "has no torch._functorch.config.activation_memory_budget" in refusal


@pytest.mark.parametrize(("enabled", "script"), [(True, False), (False, True)])
def test_cudnn_benchmark_holds_against_the_script(tmp_path, enabled, script):
    code = f"torch.backends.cudnn.benchmark = {script}\nout = torch.backends.cudnn.benchmark\n"
    result = run(tmp_path, code, ("cudnn_benchmark", {"enabled": enabled}))
    assert result.out is enabled and result.levers["cudnn_benchmark"]["applied"] == 1


def test_settings_that_stood_already_are_inert(tmp_path):
    result = run(tmp_path, "out = 1", ("cudnn_benchmark", {"enabled": False}))
    assert result.levers["cudnn_benchmark"]["applied"] == 0
    assert "off already" in result.levers["cudnn_benchmark"]["note"]


@pytest.mark.parametrize("enabled", [True, False])
def test_tf32_holds_against_the_script(tmp_path, enabled):
    code = f"""
    torch.backends.cuda.matmul.allow_tf32 = {not enabled}
    torch.backends.cudnn.allow_tf32 = {not enabled}
    torch.set_float32_matmul_precision("{"highest" if enabled else "high"}")
    out = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    """
    assert run(tmp_path, code, ("tf32", {"enabled": enabled})).out == (enabled, enabled)


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="PyTorch 2.9 and later have it"
)
@pytest.mark.parametrize("place", ["", ".cuda.matmul", ".cudnn", ".cudnn.conv"])
@pytest.mark.parametrize("enabled", [True, False])
def test_tf32_holds_against_the_newer_setting(tmp_path, enabled, place):
    code = f"""
    torch.backends{place}.fp32_precision = {("ieee" if enabled else "tf32")!r}
    out = [owner.fp32_precision for owner in (torch.backends.cuda.matmul, torch.backends.cudnn.conv)]
    """
    found = run(tmp_path, code, ("tf32", {"enabled": enabled}))
    assert [precision == "tf32" for precision in found.out] == [enabled] * 2
    assert found.levers["tf32"]["applied"] == 1


def test_no_graph_in_evaluation(tmp_path):
    code = (
        TRAIN
        + """
    for epoch in range(2):
        model.train(); step(F.cross_entropy(model(x), y))
        model.eval(); graph = model(x).requires_grad
    kept = graph
    """
    )
    plain, other = run(tmp_path, code + END), run(tmp_path, code + END, ("no_grad_eval", {}))
    assert distance(other.out, plain.out) == 0.0
    assert other.levers["no_grad_eval"]["applied"] == 2
    assert run(tmp_path, code + "out = kept\n", ("no_grad_eval", {})).out is False


def test_gradients_through_a_model_in_evaluation_mode_are_respected(tmp_path):
    training = (
        TRAIN + "    model.eval()\n    for _ in range(2): step(F.cross_entropy(model(x), y))\n"
    )
    plain = run(tmp_path, training + END)
    other = run(tmp_path, training + END, ("no_grad_eval", {}))
    assert distance(other.out, plain.out) == 0.0 and other.levers["no_grad_eval"]["applied"] == 0
    attack = TRAIN + (
        "    model.train(); step(F.cross_entropy(model(x), y)); model.eval()\n"
        "    x.requires_grad_(); F.cross_entropy(model(x), y).backward(); out = x.grad\n"
    )
    assert run(tmp_path, attack, ("no_grad_eval", {})).out.abs().sum() > 0


def test_a_script_that_needs_what_was_left_out_is_stopped(tmp_path):
    code = (
        TRAIN
        + """
    head = nn.Linear(5, 2); optimizer.add_param_group({"params": head.parameters()})
    model.train(); step(F.cross_entropy(head(model(x)), y % 2))
    model.eval(); step(F.cross_entropy(head(model(x)), y % 2))
    """
    )
    assert "evaluation mode" in run(tmp_path, code, ("no_grad_eval", {})).refusal


ATTEND = """
    q = torch.randn(2, 4, 16, 8)
    out = F.scaled_dot_product_attention(q, q, q, attn_mask={mask})
"""


def test_attention_counts_what_it_could_use(tmp_path):
    result = run(tmp_path, ATTEND.format(mask=None), ("attention", {"backend": "flash"}))
    assert result.levers["attention"] == {"name": "attention", "applied": 1, "note": None}
    other = run(tmp_path, ATTEND.format(mask=None), ("attention", {"backend": "cudnn"}))
    assert other.levers["attention"]["applied"] == 0
    assert "could not use cudnn attention" in other.levers["attention"]["note"]
    never = run(tmp_path, "out = 1", ("attention", {"backend": "efficient"}))
    assert "never called" in never.levers["attention"]["note"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_mixed_precision_is_close_and_outputs_are_full(tmp_path, dtype):
    code = (
        TRAIN
        + """
    inner = []
    model[0].register_forward_hook(lambda m, a, o: inner.append(o.dtype))
    model[1].register_forward_hook(lambda m, a, o: inner.append(o.dtype))
    for _ in range(3):
        logits = model(x)
        assert logits.dtype == torch.float32
        loss = nn.CrossEntropyLoss()(logits, y)
        optimizer.zero_grad(); loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        norms = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
        optimizer.step()
    """
    )
    plain = run(tmp_path, code + END)
    lever = ("mixed_precision", {"dtype": dtype})
    other = run(tmp_path, code + END, lever)
    assert other.levers["mixed_precision"]["applied"] == 3
    assert 0 < distance(other.out, plain.out) < 2e-2
    norm = run(tmp_path, code + "\n    out = [inner, float(norms)]\n", lever).out
    assert norm[0][0] == (torch_dtype(dtype)) and norm[1] == pytest.approx(0.1, rel=1e-3)


def torch_dtype(name):
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}[name]


def test_fp16_gradients_do_not_vanish(tmp_path):
    code = (
        TRAIN
        + """
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    step(F.cross_entropy(model(x), y) * 1e-6)
    out = [(p.detach() - b) * 1e6 for p, b in zip(model.parameters(), before)]
    """
    ).replace("torch.optim.AdamW(model.parameters(), lr=1e-2)", "None")
    code = code.replace("p.detach() - b", "-p.grad").replace("optimizer.zero_grad(); ", "")
    plain = run(tmp_path, code)
    other = run(tmp_path, code, ("mixed_precision", {"dtype": "fp16"}))
    assert distance(other.out, plain.out) < 2e-2


def test_infinite_gradients_leave_a_step_out_and_lower_the_scale(tmp_path):
    code = (
        TRAIN
        + """
    before = [p.detach().clone() for p in model.parameters()]
    step(F.cross_entropy(model(x), y) * 1e30)
    unchanged = all(torch.equal(p, b) for p, b in zip(model.parameters(), before))
    step(F.cross_entropy(model(x), y))
    out = [unchanged, all(torch.isfinite(p).all().item() for p in model.parameters()),
           any(not torch.equal(p, b) for p, b in zip(model.parameters(), before))]
    """
    )
    assert run(tmp_path, code, ("mixed_precision", {"dtype": "fp16"})).out == [True, True, True]


def test_scripts_with_their_own_autocast_or_scaler(tmp_path):
    code = TRAIN + (
        "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "        step(F.cross_entropy(model(x), y))\n"
    )
    report = run(tmp_path, code, ("mixed_precision", {"dtype": "bf16"})).levers["mixed_precision"]
    assert report["applied"] == 0 and "autocast itself" in report["note"]
    scaled = TRAIN + (
        "    scaler = torch.amp.GradScaler('cpu')\n"
        "    for _ in range(2):\n"
        "        optimizer.zero_grad(); scaler.scale(F.cross_entropy(model(x), y)).backward()\n"
        "        scaler.step(optimizer); scaler.update()\n"
    )
    plain = run(tmp_path, scaled + END)
    other = run(tmp_path, scaled + END, ("mixed_precision", {"dtype": "fp16"}))
    assert "own GradScaler" in other.levers["mixed_precision"]["note"]
    assert distance(other.out, plain.out) < 2e-2
    half = TRAIN.replace("optimizer =", "model.bfloat16(); optimizer =") + (
        "    step(model(x.bfloat16()).float().sum())\n"
    )
    report = run(tmp_path, half, ("mixed_precision", {"dtype": "bf16"})).levers["mixed_precision"]
    assert report["applied"] == 0 and "already in 16 bits" in report["note"]


def test_mixed_precision_with_micro_batches(tmp_path):
    code = (
        TRAIN
        + """
    from torch.utils.data import DataLoader, TensorDataset
    y[::3] = -100
    for a, b in DataLoader(TensorDataset(x, y), batch_size=7):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    """
    )
    plain = run(tmp_path, code + END)
    for dtype in ("bf16", "fp16"):
        # In either order of the plan.
        levers = [("mixed_precision", {"dtype": dtype}), ("micro_batch", {"parts": 3})]
        other = run(tmp_path, code + END, *levers)
        assert other.refusal is None and distance(other.out, plain.out) < 2e-2
        assert all(lever["applied"] for lever in other.levers.values())


def test_the_order_of_levers_is_the_planners_alone():
    order = _oomph.lever_order()
    files = {path.stem for path in Path(levers.__file__).parent.glob("[a-z]*.py")}
    assert set(order) == files and len(order) == len(files)
    for place, name in enumerate(order):
        kind = importlib.import_module(f"oomph.levers.{name}").LEVER
        assert kind.name == name and "order" not in vars(kind)
        lever = kind.__new__(kind)
        assert lever.order == place
