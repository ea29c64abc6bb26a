"""`oomph run --plan`: levers on the virtual GPU, what is reported, what is refused."""

import hashlib
import json
from importlib.util import find_spec

import pytest

from tests.support.plans import plan

TRAIN = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), NORM, nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(20000, 512), torch.randint(0, 10, (20000,)))
    for x, y in DataLoader(data, batch_size=8192):
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""".replace("NORM", "nn.Identity()")


def in_step(run):
    """The most that was allocated while the optimizer stepped."""
    return max(s["bytes"] for s in run.json["phases"] if s["name"] == "optimizer step")


def peak(run):
    return run.json["peak"]["allocated_bytes"]


@pytest.fixture
def plain(oomph):
    return oomph(TRAIN)


def test_the_peak_falls(oomph, plain, tmp_path):
    assert plain.status == 0 and plain.json["levers"] == [] and plain.json["plan"] is None
    activations = plain.json["by_category"]["activations"]
    split = oomph(TRAIN, "--plan", plan(tmp_path, ("micro_batch", {"parts": 4})))
    assert split.status == 0, split.err
    assert split.json["levers"] == [{"name": "micro_batch", "applied": 3, "note": None}]
    assert split.json["step_count"] == 3  # updates, not parts
    assert peak(split) < peak(plain) - 0.6 * activations
    low = oomph(TRAIN, "--plan", plan(tmp_path, ("mixed_precision", {"dtype": "bf16"})))
    assert peak(low) < peak(plain) - 0.3 * activations
    # In whichever order the plan has them.
    levers = [("mixed_precision", {"dtype": "fp16"}), ("micro_batch", {"parts": 4})]
    both = oomph(TRAIN, "--plan", plan(tmp_path, *levers))
    assert both.status == 0 and peak(both) < peak(split)
    assert [lever["applied"] for lever in both.json["levers"]] == [12, 3]


def test_the_optimizer_step_and_the_allocator(oomph, plain, tmp_path):
    levers = [
        ("optimizer_step", {"kind": "fused"}),
        ("allocator", {"conf": "expandable_segments:True"}),
        ("cudnn_benchmark", {"enabled": False}),
        ("tf32", {"enabled": True}),
    ]
    run = oomph(TRAIN, "--plan", plan(tmp_path, *levers))
    assert run.status == 0, run.err
    assert [lever["applied"] for lever in run.json["levers"]] == [1, 1, 0, 1]
    assert "cudnn_benchmark was inert" in run.out
    # PyTorch's default step has temporaries as large as the parameters.
    assert in_step(plain) - in_step(run) > 0.5 * plain.json["by_category"]["parameters"]


def test_threads_and_streams_outside_of_the_allocator(oomph, tmp_path):
    """A thread that multiplies matrices costs a handle and a workspace, PyTorch's pools of streams 70 MiB."""
    mib = 1 << 20
    plain = oomph(TRAIN, gpu="h200")

    def less(*levers):
        found = oomph(TRAIN, "--plan", plan(tmp_path, *levers), gpu="h200")
        assert found.status == 0, found.err
        assert all(lever["applied"] for lever in found.json["levers"])
        before, now = plain.json["by_category"], found.json["by_category"]
        return {name: before[name] - now[name] for name in ("cuda_context", "workspace")}

    assert less(("single_threaded_backward", {})) == dict(cuda_context=64 * mib, workspace=32 * mib)
    copies = less(("save_on_cpu", {"in_flight": 16 * mib}), ("optimizer_on_cpu", {}))
    assert -4 * mib < copies["cuda_context"] < 0
    # What is computed again in the backward pass is part of its model still, in the same thread as well.
    both = ("checkpoint", {"modules": ["Sequential.0"]}), ("single_threaded_backward", {})
    assert less(*both)["cuda_context"] == 64 * mib


def test_attention_and_evaluation(oomph, tmp_path):
    code = """
        import torch
        from torch import nn
        model = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 64, device="cuda")).sum().backward(); optimizer.step()
        model.eval()
        x = torch.randn(4, 8, 2048, 64, device="cuda")
        for _ in range(2):
            y = torch.relu(model(torch.randn(1 << 18, 64, device="cuda")))
            print("graph", y.requires_grad)
        nn.functional.scaled_dot_product_attention(x, x, x)
    """
    levers = [("attention", {"backend": "flash"}), ("no_grad_eval", {})]
    run = oomph(code, "--plan", plan(tmp_path, *levers))
    assert run.status == 0, run.err
    attention, evaluation = run.json["levers"]
    assert attention["applied"] == 0 and "could not use flash" in attention["note"]  # it is fp32
    assert evaluation["applied"] == 2 and "graph False" in run.out


def test_a_lever_that_cannot_be_applied_stops_the_run(oomph, tmp_path):
    code = TRAIN.replace("nn.Identity()", "nn.BatchNorm1d(2048)")
    run = oomph(code, "--plan", plan(tmp_path, ("micro_batch", {"parts": 4})))
    assert run.status == 2
    assert "micro_batch cannot be applied" in run.err and "batch normalization" in run.err
    assert "Traceback" not in run.err
    assert run.json["verdict"] == "refused" and "batch normalization" in run.json["failure"]


def test_planned_and_measured_are_compared(oomph, plain, tmp_path):
    used = plain.json["peak"]["used_bytes"]
    head = f"""[planned]
allocated_bytes = {used}
reserved_bytes = {used}
used_bytes = {used}
time_ratio = 1.0
same_results = "exact"
verified = true"""
    run = oomph(TRAIN, "--plan", plan(tmp_path, ("set_to_none", {}), head=head))
    assert "measured" in run.out and "(+0.0 %)" in run.out
    assert "set_to_none was inert" in run.out
    assert run.json["plan"]["planned"]["used_bytes"] == used and run.json["plan"]["warnings"] == []


def test_a_plan_for_something_else_is_noticed(oomph, tmp_path):
    head = """[job]
script = "another.py"
[gpu]
id = "t4"
memory_bytes = 99999999999
[versions]
torch = "2.8.0"
"""
    run = oomph("import torch; torch.zeros(1).cuda()", "--plan", plan(tmp_path, head=head))
    assert run.status == 0
    for words in ("another.py", "t4", "GiB; this GPU", "2.8.0"):
        assert any(words in line for line in run.err.splitlines() if line.startswith("warning:"))
    assert len(run.json["plan"]["warnings"]) == 4
    code = "import torch; torch.zeros(1).cuda()"
    script = str(tmp_path / "script.py")
    for digest, changed in ((hashlib.sha256(code.encode()).hexdigest(), False), ("0" * 64, True)):
        head = f'[job]\nscript = "{script}"\nsha256 = "{digest}"\n'
        assert ("has changed" in oomph(code, "--plan", plan(tmp_path, head=head)).err) is changed


def test_wrong_plans_say_why(oomph, tmp_path):
    for levers, words in (
        ([("magic", {})], "magic"),
        ([("micro_batch", {})], "parts"),
        ([("micro_batch", {"parts": 1})], "at least 2"),
        ([("attention", {"backend": "fast"})], "fast"),
    ):
        run = oomph("import torch", "--plan", plan(tmp_path, *levers))
        assert run.status == 2 and words in run.err and "Traceback" not in run.err, run.err
    assert "cannot read the plan" in oomph("import torch", "--plan", "absent.toml").err


def test_the_recorder_does_not_look_at_logits_that_wait(oomph, tmp_path):
    """What computes when it is first looked at stays uncomputed: the whole logits are 512 MiB."""
    script = """
        import torch
        from torch import nn
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 32768, bias=False)
            def forward(self, x):
                return self.head(self.body(x))
        model = Model().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.randn(4096, 64, device="cuda")
            y = torch.randint(0, 32768, (4096,), device="cuda")
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step(); optimizer.zero_grad()
    """
    run = oomph(script, "--plan", plan(tmp_path, ("chunked_cross_entropy", {"chunks": 8})))
    assert run.status == 0, run.err
    assert run.json["levers"] == [{"name": "chunked_cross_entropy", "applied": 2, "note": None}]
    assert peak(run) < 400 << 20


def test_a_refusal_says_which_lever_and_which_modules(oomph, tmp_path):
    """Its reason may name another lever of the plan; nobody has to read it to tell them apart."""
    counting = """
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
        def forward(self, x):
            self.calls += 1
            return torch.tanh(x) * self.calls
    model ="""
    code = TRAIN.replace("nn.Identity()", "Counting()").replace("\n    model =", counting)
    levers = [
        ("checkpoint", {"modules": ["Sequential.0"]}),
        ("recompute", {"modules": ["Sequential.2"]}),
    ]
    run = oomph(code, "--plan", plan(tmp_path, *levers))
    assert run.status == 2 and "or checkpoint it" in run.err, run.err
    outcome = json.loads((tmp_path / "run" / "record.json").read_text())["outcome"]
    blame = outcome["blame"]
    assert (blame["lever"], blame["modules"]) == ("recompute", ["Sequential.2"])
    assert (
        outcome["message"]
        == f"the lever recompute cannot be applied to this script: {blame['why']}"
    )
    assert "by hand" not in run.err


def test_a_refusal_shows_the_change_by_hand(oomph, tmp_path):
    run = oomph(TRAIN, "--plan", plan(tmp_path, ("step_in_backward", {})))
    assert run.status == 2 and "it clips gradients" in run.err
    assert "\nby hand:\n" in run.err and "p.register_post_accumulate_grad_hook" in run.err
    assert run.json["failure"].count("by hand:") == 1


@pytest.mark.skipif(find_spec("torchao") is not None, reason="the package is there")
def test_a_lever_without_its_package_ends_the_script_before_it_begins(oomph, tmp_path):
    levers = plan(tmp_path, ("optimizer_8bit", {}))
    run = oomph("import torch\nopen('began', 'w')\n", "--plan", levers)
    assert run.status == 2 and "torchao is not installed. Install it" in run.err
    assert not (tmp_path / "began").exists()
