"""Plans by hand: the patch of each lever is applied to a script of the usual form, which is then run."""

import textwrap

import pytest
import torch

from tests.support.by_hand import by_hand, patched, script
from tests.support.levers import distance, run, unlike
from tests.support.plans import plan

BLOCKS = [f"Net.blocks.{i}" for i in range(4)]
EXACT = {
    "allocator": {"conf": "expandable_segments:True"},
    "cudnn_benchmark": {"enabled": False},
    "tf32": {"enabled": False},
    "set_to_none": {},
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
        assert patch.startswith("# by hand: train.py:") and "@@" not in patch
        line = int(patch.split(":")[2])
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
    much = script("cuda", 256, 4096).replace("nn.ReLU()", "nn.GELU()")
    wide = script("cuda", 1024, 16)
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
