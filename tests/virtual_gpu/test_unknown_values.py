"""What programs get that compare, count or choose by values which nobody computes, and what is said of it."""

import pytest


def check(oomph, code, *options):
    code = f"""
import torch
cuda = torch.device("cuda")
large = torch.randn(1024, 1024, device=cuda)
unknown = (large @ large).sum()
{code}
print("checked")
"""
    run = oomph(code, *options)
    assert run.status == 0 and "checked" in run.out, run.err
    return [a["what"] for a in run.json["assumptions"] if a["kind"] in ("value", "shape")]


@pytest.mark.parametrize("search, steps", [("None", 5), ("'strong_wolfe'", 5)])
def test_lbfgs_keeps_its_history(oomph, search, steps):
    """Its curvature was read as zero: no direction was kept, and each step ended after one iteration."""
    said = check(
        oomph,
        f"""
model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 1)).cuda()
x = torch.ones(64, 2048, device=cuda)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=6, history_size=20, line_search_fn={search})
def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
kept = []
for _ in range({steps}):
    before = torch.cuda.memory_allocated()
    optimizer.step(closure)
    state = optimizer.state[optimizer._params[0]]
    kept.append(len(state["old_dirs"]))
    assert len(state["old_stps"]) == kept[-1] and state["n_iter"] == 6 * len(kept)
assert kept == [5, 11, 17, 20, 20], kept
assert torch.cuda.memory_allocated() > 2 * 20 * sum(p.numel() * 4 for p in model.parameters())
""",
    )
    assert said == ["L-BFGS is assumed to find positive curvature and a falling loss: it keeps its history"]  # fmt: skip


def test_an_unknown_number_is_not_as_near_to_zero_as_what_it_is_compared_with(oomph):
    said = check(oomph, """
assert unknown > 1e-10 and unknown >= 1e-6 and not unknown < 1e-8 and not unknown <= 1e-8
assert not unknown > -1e-9 and unknown < -1e-9
assert not unknown > 0 and not unknown > 0.5 and not unknown < 0.5
assert bool(unknown < float("inf")) and not unknown > float("inf") and not unknown.isnan() and bool(unknown.isfinite())
assert bool((large > float("-inf")).all())
""")  # fmt: skip
    before = "the script read a GPU value, which oomph does not compute: "
    for what in ("above 1e-10", "above 1e-06", "above 1e-08", "below -1e-09"):
        assert f"{before}it was taken as {what}" in said
    assert f"{before}the comparison was taken as false" in said


def test_loops_that_wait_for_convergence_end(oomph):
    check(oomph, """
for _ in range(2):
    turns = 0
    while unknown > 1e-6:
        turns += 1
    assert turns == 100
""")  # fmt: skip


def test_the_users_rule_comes_first(oomph):
    check(oomph, "assert not unknown > 1e-10 and not unknown < 1e-10", "--unknown", "none")
    check(oomph, "assert unknown > 1e-10 and unknown < 1e-10", "--unknown", "all")


@pytest.mark.parametrize(
    "choose, rows",
    [
        ("logits.topk(2)[1]", 1024),
        ("logits.softmax(-1).topk(2, dim=-1)[1]", 1024),
        ("logits.sort(descending=True)[1][:, :2]", 1024),
        ("logits.argsort(-1)[:, :2]", 1024),
        ("logits.softmax(-1).multinomial(2)", 1024),
        ("logits.argmax(-1, keepdim=True)", 512),
        ("logits.t().topk(2, dim=0)[1].t()", 1024),
        ("logits.kthvalue(3, keepdim=True)[1]", 512),
    ],
)
def test_choices_are_even_and_said(oomph, choose, rows):
    """Each of 8 experts gets an eighth of what is chosen, not half of it by the rule for comparisons."""
    said = check(
        oomph,
        f"""
logits = large.repeat(4, 1) @ torch.randn(1024, 8, device=cuda)
chosen = {choose}
for expert in range(8):
    token, rank = torch.where(chosen == expert)
    assert token.numel() == {rows}, token.numel()
assert (chosen == 3).sum().item() == {rows}
assert torch.bincount(chosen.reshape(-1), minlength=8).tolist() == [{rows}] * 8
if chosen.shape[1] == 2:
    assert bool((chosen[:, 0] != chosen[:, 1]).all())
""",
    )
    assert "a size depends on unknown values: each of 8 choices is taken equally often" in said
    assert not any("half" in what for what in said), said


def test_zeros_of_what_is_not_computed_take_one_thread(oomph):
    """PyTorch wakes all threads for so many elements: on a busy machine that takes fifty times as long."""
    run = oomph(
        """
        import os
        import torch

        torch.set_num_threads(2)
        a = torch.empty(256, 1024, device="cuda", dtype=torch.bfloat16)
        b = torch.empty(1024, 1024, device="cuda", dtype=torch.bfloat16)
        before = len(os.listdir("/proc/self/task"))
        c = a @ b
        print("threads", len(os.listdir("/proc/self/task")) - before)
        column = torch.full((4, 8), 3.0, device="cuda")
        torch.mm(a[:4].float(), b[:, :4].float(), out=column[:, ::2])
        print(column[:, ::2].abs().max().item(), column[:, 1::2].min().item())
        """
    )
    assert "threads 0" in run.out, run.err
    assert "0.0 3.0" in run.out


def test_what_a_graph_writes_follows_its_replays(oomph):
    """Not what stood in its inputs while it was captured: a script that fills them anew would read old values."""
    run = oomph(
        """
        import torch

        x = torch.ones(4, device="cuda", dtype=torch.int64)
        count = torch.zeros(1, device="cuda", dtype=torch.int64)
        large = torch.rand(1 << 20, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = x * 2
            count.add_(doubled.sum())
            above = (large > 0.5).sum()
        print("captured", count.tolist(), x.tolist())
        graph.replay()
        x.fill_(7)
        graph.replay()
        print("replayed", doubled.tolist(), count.tolist())
        above.fill_(3)
        print("written", above.item())
        graph.replay()
        print("unknown", above.item())
        """
    )
    assert "captured [0] [1, 1, 1, 1]" in run.out, run.err
    assert "replayed [14, 14, 14, 14] [64]" in run.out and "written 3" in run.out
    said = [one for one in run.json["assumptions"] if "read a GPU value" in one["what"]]
    assert len(said) == 1, run.json["assumptions"]


def test_a_large_comparison_of_unknown_values_takes_no_memory(oomph):
    """A byte was written for each of 43 million elements, half of them true."""
    check(oomph, """
import resource
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
x = torch.rand(48000, 64, 14, device=cuda)
(x > 0).any()
before, above = resident(), x > 0.5
both = (x >= torch.rand(64, 14, device=cuda)) & ~above
signs = torch.where(x < 0, 1.0, -1.0)
assert resident() - before < 8 << 20, resident() - before
assert above.sum().item() == x.numel() // 2 and above.any() and not above.all() and not both.any()
assert x[above].numel() == x.numel() // 2 and above[:100].sum(1).sum().item() == 100 * 64 * 14 // 2
assert x.isfinite().all() and not x.isnan().any() and not above[0, 0, 1].item()
""")  # fmt: skip


def test_a_product_into_what_is_unknown_is_unknown_and_reads_as_zeros(oomph):
    """As compiled code multiplies, layer after layer: that has a shorter way."""
    said = check(
        oomph,
        """
weights, out = large[:, :8], large[:8, :8] * 2
small = torch.ones(8, 1024, device=cuda)
assert torch.mm(small, weights, out=out) is out and float(out.sum()) == 0
torch.addmm(out[0], small, weights, out=out)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.mm(small, weights, out=out)
    twice = out * 2
graph.replay()
assert float(twice.sum()) == 0
known, ones = torch.zeros(8, 8, device=cuda), torch.ones(1024, 8, device=cuda)
assert float(torch.mm(small, ones, out=known).sum()) == 64 * 1024
torch.mm(small, ones, out=out)
assert float(out[0, 0]) == 1024
""",
    )
    assert said == ["the script read a GPU value, which oomph does not compute: it got zero"] * 2


def test_long_integers_that_follow_from_unknown_values_are_computed_up_to_a_limit(oomph):
    """Weights that a script quantizes by hand and unpacks in each pass: all of a run's time went into them."""
    said = check(oomph, """
order = large.repeat(4, 1).argsort(1)
for _ in range(260):
    codes = order & 15
for _ in range(3):
    mask = (order > 7) & (codes > 3)
    assert 0 < mask.sum() < mask.numel()
""")  # fmt: skip
    assert any("too many to compute" in what for what in said), said
