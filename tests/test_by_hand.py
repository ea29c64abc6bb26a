"""Plans by hand: the patch of each lever is applied to a script of the usual form, which is then run."""

import json
import subprocess
import textwrap

import pytest
from lever_runs import distance, run
from test_levers_everywhere import unlike
from test_levers_run import plan

SCRIPT = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

        def forward(self, x):
            heads = x.unflatten(-1, (4, -1)).transpose(1, 2)
            x = x + nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)
            return x + self.mlp(self.norm(x))

    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.blocks = nn.ModuleList(Block(width) for _ in range(4))
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    def evaluate(model, loader):
        model.eval()
        graph = False
        for x, y in loader:
            graph |= model(x.to(DEVICE)).requires_grad
        model.train()
        return graph

    def main():
        name = "a name of the script's own"
        torch.manual_seed(1)
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
        model = Net(WIDTH).to(DEVICE)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=1e-2,
            fused=False,
        )
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
        data = TensorDataset(torch.randn(2 * BATCH, 8, WIDTH), torch.randint(0, 10, (2 * BATCH,)))
        for epoch in range(2):
            for x, y in DataLoader(data, batch_size=BATCH):
                x, y = x.to(DEVICE), y.to(DEVICE)
                optimizer.zero_grad(set_to_none=False)
                out = model(x)
                loss = criterion(out, y)
                loss.backward()
                optimizer.step()
            scheduler.step()
            graph = evaluate(model, DataLoader(data, batch_size=BATCH))
        return model.state_dict(), optimizer.state_dict(), [group["lr"] for group in optimizer.param_groups], graph
"""
BLOCKS = [f"Net.blocks.{i}" for i in range(4)]
EXACT = {
    "allocator": {"conf": "expandable_segments:True"},
    "cudnn_benchmark": {"enabled": False},
    "tf32": {"enabled": False},
    "set_to_none": {},
    "no_grad_eval": {},
    "inplace_activations": {"modules": [f"{block}.mlp.1" for block in BLOCKS]},
    "checkpoint": {"modules": BLOCKS[:2]},
    "recompute": {"modules": [f"{block}.{part}" for block in BLOCKS[2:] for part in ("norm", "mlp.1")]},
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


def script(device="cpu", width=16, batch=8):
    code = textwrap.dedent(SCRIPT).lstrip()
    for name, value in (("DEVICE", repr(device)), ("WIDTH", width), ("BATCH", batch)):
        code = code.replace(name, str(value))
    return code


def by_hand(code, *levers):
    from oomph import _oomph

    return _oomph.by_hand("train.py", code, json.dumps([{"name": n, **p} for n, p in levers]))


def patched(tmp_path, code, *levers):
    """The script with the levers' patch applied, all of which has a place in it."""
    patch = by_hand(code, *levers)
    assert patch.startswith("--- a/train.py"), patch
    (tmp_path / "train.py").write_text(code)
    (tmp_path / "oomph-plan.patch").write_text(patch)
    done = subprocess.run(["git", "apply", "oomph-plan.patch"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + patch
    changed = (tmp_path / "train.py").read_text()
    assert changed != code
    return changed


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


def test_all_levers_by_hand_together(tmp_path):
    """None undoes what another has written."""
    levers = [*EXACT.items(), *ROUNDED.items()]
    code = patched(tmp_path, script(), *levers)
    plain = left(tmp_path, script())
    changed = left(tmp_path, code.replace('autocast("cuda"', 'autocast("cpu"'))
    assert not changed[3]
    assert unlike(changed[2], plain[2]) == [] and changed[1]["param_groups"][0]["fused"] is True
    for line in ("set_to_none=True", "cudnn.benchmark = False", 'precision("highest")', "fused=True", "sdpa_kernel"):
        assert line in code


GPU = """
import runpy, sys, torch
for path in sys.argv[1:]:
    found = runpy.run_path(path)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found["main"]()
    del found
    print("peak", torch.cuda.max_memory_allocated() - before)
"""
SAVING = ["recompute", "offload_activations", "step_in_backward", "optimizer_on_cpu", "no_grad_eval"]
"""Levers whose effect is one of memory, and not tested by `oomph fit`'s own patches (test_fit)."""


def test_patches_need_what_was_planned(oomph, tmp_path):
    code = script("cuda", 256, 512)
    paths, expected = [], []
    for name, lever in [("plain", None), *((name, EXACT[name]) for name in SAVING)]:
        if lever and "modules" in lever:
            lever = {"modules": lever["modules"] + [m.replace(".2", ".1").replace(".3", ".0") for m in lever["modules"]]}
        path = tmp_path / f"{name}.py"
        path.write_text(patched(tmp_path, code, (name, lever)) if lever is not None else code)
        paths.append(str(path))
        levers = [(name, lever)] if lever is not None else []
        found = oomph(code + "\nmain()\n", "--plan", plan(tmp_path, *levers))
        assert found.status == 0, found.err
        expected.append(found.json["peak"]["allocated_bytes"])
    found = oomph(GPU, args=paths)
    assert found.status == 0, found.err
    peaks = [int(line.split()[1]) for line in found.out.splitlines() if line.startswith("peak ")]
    for name, peak, planned in zip(["plain", *SAVING], peaks, expected):
        print(name, peak / 2**20, planned / 2**20)
