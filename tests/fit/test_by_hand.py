"""Plans by hand: the patch of each lever is applied to a script of the usual form, which is then run."""

import textwrap

import pytest
import torch

from tests.support.by_hand import by_hand, patched, script
from tests.support.command import fit
from tests.support.levers import distance, run, unlike
from tests.support.plans import plan

BLOCKS = [f"Net.blocks.{i}" for i in range(4)]
EXACT = {
    "allocator": {"conf": "expandable_segments:True"},
    "cudnn_benchmark": {"enabled": False},
    "tf32": {"enabled": False},
    "activation_memory_budget": {"percent": 50},
    "set_to_none": {},
    "single_threaded_backward": {},
    "no_grad_eval": {},
    "inplace_activations": {"modules": [f"{block}.mlp.1" for block in BLOCKS]},
    "checkpoint": {"modules": BLOCKS[:2]},
    "recompute": {
        "modules": [f"{block}.{part}" for block in BLOCKS[2:] for part in ("norm", "mlp.1")]
    },
    "offload_activations": {"modules": BLOCKS[2:]},
    "step_in_backward": {},
    "optimizer_on_cpu": {},
}
"""Levers that leave the bits as they are, at least on the CPU."""
ROUNDED = {
    "optimizer_step": {"kind": "fused"},
    "attention": {"backend": "efficient"},
    "micro_batch": {"parts": 2},
    "mixed_precision": {"dtype": "bf16"},
}


def left(tmp_path, code):
    return run(tmp_path, code + "\nout = main()\n").out


@pytest.mark.parametrize("lever", EXACT)
def test_an_exact_lever_by_hand(tmp_path, lever):
    plain = left(tmp_path, script())
    changed = left(tmp_path, patched(tmp_path, script(), (lever, EXACT[lever])))
    assert plain[3] and changed[3] == (lever != "no_grad_eval")
    assert unlike(changed[:3], plain[:3]) == []


@pytest.mark.parametrize("lever", ROUNDED)
def test_a_lever_to_rounding_by_hand(tmp_path, lever):
    plain = left(tmp_path, script())
    code = patched(tmp_path, script(), (lever, ROUNDED[lever]))
    if lever == "mixed_precision":
        code = code.replace('autocast("cuda"', 'autocast("cpu"')
    changed = left(tmp_path, code)
    off = distance(changed[0], plain[0])
    assert 1e-4 < off < 0.5 if lever == "mixed_precision" else off < 1e-3
    if lever == "optimizer_step":
        assert changed[1]["param_groups"][0]["fused"] is True


@pytest.mark.parametrize("end", ["", "\n", "\nx = 1", "\nx = 1\n"])
@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_lines_end_as_they_did(tmp_path, end, line):
    code = (
        "import torch\nmodel = N()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)" + end
    )
    code = code.replace("\n", line)
    changed = patched(tmp_path, code, ("optimizer_step", {"kind": "fused"}))
    assert changed == code.replace("lr=0.1", "lr=0.1, fused=True")


EVALUATIONS = {
    "a loop with both": """
        import torch
        def main(model, optimizer, data):
            graphs = []
            for epoch in range(2):
                model.train()
                for x in data:
                    loss = model(x).pow(2).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                model.eval()
                for x in data:
                    graphs.append(model(x).requires_grad)
            return graphs
        """,
    "at the end": """
        import torch
        def train(model, optimizer, data):
            for x in data:
                loss = model(x).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        def main(model, optimizer, data):
            train(model, optimizer, data)
            model.eval()
            return [model(x).requires_grad for x in data]
        """,
    "a function": """
        import torch
        def evaluate(model, data):
            model.eval()
            return [model(x).requires_grad for x in data]
        def main(model, optimizer, data):
            for epoch in range(2):
                for x in data:
                    model.train()
                    model(x).pow(2).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                graphs = evaluate(model, data)
            return graphs
        """,
}


@pytest.mark.parametrize("form", EVALUATIONS)
def test_evaluations_without_graph_by_hand(tmp_path, form):
    setup = (
        "\ntorch.manual_seed(1)\nmodel = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "out = [main(model, optimizer, list(torch.randn(3, 2, 4))), model.weight.detach()]\n"
    )
    code = textwrap.dedent(EVALUATIONS[form]).lstrip()
    plain = run(tmp_path, code + setup).out
    changed = run(tmp_path, patched(tmp_path, code, ("no_grad_eval", {})) + setup).out
    assert all(plain[0]) and not any(changed[0])
    assert torch.equal(changed[1], plain[1])


def test_what_has_no_place_names_a_line():
    code = script()
    for lever, words in (
        (("chunked_cross_entropy", {"chunks": 4}), "criterion"),
        (("fused_modules", {"modules": ["Net.blocks.0.mlp.1"]}), "optimizer = "),
        (("mixed_precision", {"dtype": "fp16"}), "out = model(x)"),
        (("optimizer_8bit", {}), ""),
    ):
        patch = by_hand(code.replace("lr=1e-2,", "lr=1e-2, maximize=True,"), lever)
        assert f"#   in words only: {lever[0]}" in patch and "@@" not in patch
        line = int(patch.partition("# by hand: train.py:")[2].partition(":")[0])
        assert words in code.splitlines()[line - 1], patch
    # Of a mapping it is not told what its entries are; autocast does not mind.
    loop = (
        "for x, y in DataLoader(data, batch_size=8):\n            x, y = x.to('cpu'), y.to('cpu')"
    )
    assert loop in code
    code = code.replace(
        loop,
        "for batch in DataLoader(data, batch_size=8):\n            x, y = batch['x'], batch['y']",
    )
    both = by_hand(code, ("mixed_precision", {"dtype": "bf16"}), ("micro_batch", {"parts": 2}))
    assert (
        "+            with torch.autocast" in both
        and "in 2 parts" in both
        and ".split(" not in both
    )
    assert "#   in the diff: mixed_precision" in both and "#   in words only: micro_batch" in both


GAN = """
import torch, torch.nn as nn
torch.manual_seed(1)
def block(i, o): return nn.Sequential(nn.Linear(i, o), nn.ReLU())
G = nn.Sequential(block(4, 8), block(8, 8), nn.Linear(8, 4))
D = nn.Sequential(block(4, 8), nn.Linear(8, 1))
og = torch.optim.Adam(G.parameters(), 2e-4); od = torch.optim.Adam(D.parameters(), 2e-4)
bce = nn.BCEWithLogitsLoss()
ds = torch.utils.data.TensorDataset(torch.randn(16, 4))
for it, (real,) in enumerate(torch.utils.data.DataLoader(ds, batch_size=8)):
    fake = G(torch.randn(real.size(0), 4))
    pr = D(real); pf = D(fake.detach())
    ld = bce(pr, torch.ones_like(pr)) + bce(pf, torch.zeros_like(pf))
    od.zero_grad(); ld.backward(); od.step()
    pf = D(fake); lg = bce(pf, torch.ones_like(pf)); og.zero_grad(); lg.backward(); og.step()
out = [p.detach() for m in (G, D) for p in m.parameters()]
"""


def test_two_models_of_one_class_are_not_mixed(tmp_path):
    """Plans name the modules of both `Sequential`s alike; what has a place is still in the diff."""
    both = ("recompute", {"modules": ["Sequential.0.1", "Sequential.1.1", "Sequential.2"]})
    settings = ("cudnn_benchmark", {"enabled": False})
    patch = by_hand(GAN, both, settings)
    assert "#   in words only: recompute" in patch and "get_submodule" not in patch
    plain = run(tmp_path, GAN).out
    changed = run(tmp_path, patched(tmp_path, GAN, settings)).out
    assert unlike(changed, plain) == []


TEACHER = """
import torch
from torch import nn
class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    def forward(self, x):
        return self.net(x)
class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
def main():
    torch.manual_seed(1)
    teacher = Teacher().eval()
    student = Student()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    for images in torch.randn(3, 8, 4):
        target = teacher(images)
        loss = nn.functional.mse_loss(student(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.detach() for p in student.parameters()]
"""


def test_a_teacher_is_evaluated_where_it_is_called(tmp_path):
    patch = by_hand(TEACHER, ("no_grad_eval", {}))
    line = int(patch.partition("# by hand: train.py:")[2].partition(":")[0])
    assert TEACHER.splitlines()[line - 1] == "        target = teacher(images)"
    of_student = ("checkpoint", {"modules": ["Student.blocks.0", "Student.blocks.1"]})
    changed = left(tmp_path, patched(tmp_path, TEACHER, of_student))
    assert unlike(changed, left(tmp_path, TEACHER)) == []
    # Modules of the other model are not looked for in this one.
    patch = by_hand(TEACHER, ("checkpoint", {"modules": ["Teacher.net"]}))
    assert "#   in words only: checkpoint" in patch and "@@" not in patch


SEVERAL = """
import torch
def data():
    return [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]
def pretrain():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data():
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
def finetune():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data():
        loss = (model(x) - y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.weight.detach()
def main():
    torch.manual_seed(1)
    return finetune()
"""


def test_of_several_functions_the_one_that_ran_is_changed(tmp_path):
    levers = [("micro_batch", {"parts": 2}), ("optimizer_step", {"kind": "fused"})]
    assert "@@" not in by_hand(SEVERAL, *levers)
    ran = [n for n, line in enumerate(SEVERAL.splitlines(), 1) if ".abs()" in line]
    code = patched(tmp_path, SEVERAL, *levers, ran=ran)
    before, after = code.split("def finetune")
    assert before == SEVERAL.split("def finetune")[0]
    assert after.count("fused=True") == 1 and after.count("for x, y in zip(") == 1
    assert distance(left(tmp_path, code), left(tmp_path, SEVERAL)) < 1e-5


def test_fit_changes_the_function_that_it_saw(tmp_path):
    """The lines come from the run itself."""
    code = SEVERAL.replace("torch.nn.Linear(4, 1)", "torch.nn.Linear(4, 4096).cuda()")
    tensors = "torch.utils.data.TensorDataset(torch.randn(49152, 4), torch.randn(49152, 1))"
    loader = f"torch.utils.data.DataLoader({tensors}, batch_size=16384)"
    code = code.replace("[(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]", loader)
    code = code.replace("model(x) - y", "model(x.cuda()) - y.cuda()")
    found = fit(tmp_path, code + "main()\n", "--memory", "900MiB", "--allow", "micro_batch")
    assert found.status == 0, found.err + found.out
    patch = (tmp_path / "oomph-plan.patch").read_text()
    assert "#   in the diff: micro_batch" in patch and "abs()" in patch and "pow(2)" not in patch


def test_all_levers_by_hand_together(tmp_path):
    """None undoes what another has written."""
    # A step within the backward pass and gradients that are accumulated exclude each other.
    exact = [(name, lever) for name, lever in EXACT.items() if name != "step_in_backward"]
    levers = [*exact, *ROUNDED.items()]
    code = patched(tmp_path, script(), *levers)
    plain = left(tmp_path, script())
    changed = left(tmp_path, code.replace('autocast("cuda"', 'autocast("cpu"'))
    assert not changed[3]
    assert unlike(changed[2], plain[2]) == [] and changed[1]["param_groups"][0]["fused"] is True
    for line in (
        "set_to_none=True",
        "cudnn.benchmark = False",
        'precision("highest")',
        "fused=True",
        "sdpa_kernel",
    ):
        assert line in code


GPU = """
import gc, runpy, sys, torch
for path in sys.argv[1:]:
    found = runpy.run_path(path)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    found["main"]()
    del found
    print("peak", torch.cuda.max_memory_allocated())
"""


def test_patches_need_what_was_planned(oomph, tmp_path):
    """Where the effect is one of memory, and `oomph fit`'s own patches are not tested (test_plans)."""
    much = script("cuda", 256, 1024).replace("nn.ReLU()", "nn.GELU()")
    wide = script("cuda", 512, 16)
    both = [f"{block}.{part}" for block in BLOCKS for part in ("norm", "mlp.1")]
    cases = {
        "recompute": (much, {"modules": both}),
        "offload_activations": (much, {"modules": BLOCKS}),
        "optimizer_on_cpu": (wide, {}),
        "step_in_backward": (wide, {}),  # the last: PyTorch does not free what its hooks refer to
    }
    paths = [tmp_path / "much.py", tmp_path / "wide.py"]
    for path, code in zip(paths, (much, wide), strict=True):
        path.write_text(code)
    planned = {}
    for name, (code, parameters) in cases.items():
        path = plan(tmp_path, (name, parameters))
        found = oomph(code + "\nmain()\n", "--plan", path)
        assert found.status == 0, found.err
        planned[name] = found.json["peak"]["allocated_bytes"]
        paths.append(tmp_path / f"{name}.py")
        paths[-1].write_text(patched(tmp_path, code, (name, parameters)))
    found = oomph(GPU, args=map(str, paths))
    assert found.status == 0, found.err
    peaks = [int(line.split()[1]) for line in found.out.splitlines() if line.startswith("peak ")]
    plain = dict(zip((much, wide), peaks, strict=False))
    for (name, (code, _)), peak in zip(cases.items(), peaks[2:], strict=True):
        # The lever brings the optimizer's state in larger parts; selective checkpointing keeps a little more.
        assert 0.5 * planned[name] < peak < 1.1 * planned[name], name
        assert peak < 0.85 * plain[code], name
