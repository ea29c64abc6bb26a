"""The library on the virtual GPU: sizes, retries, growth, what is freed; and Faults by the driver."""

import os
import subprocess

from tests.support.command import OOMPH, ROOT
from tests.support.library import check

SWEEP = os.path.join(ROOT, "bench", "library", "fault_sweep.py")
OVERHEAD = os.path.join(ROOT, "bench", "gpu", "library_overhead.py")


def test_the_largest_batch_is_found_and_nothing_changes(oomph):
    check(oomph, """
before = {k: v.cpu() for k, v in model.state_dict().items()}
state = torch.get_rng_state()
found = oomph.find_batch_size(step, make, model=model, optimizer=optimizer, tolerance=0)
assert not optimizer.state and all(p.grad is None for p in model.parameters())
assert all(torch.equal(v.cpu(), before[k]) for k, v in model.state_dict().items())
assert torch.equal(state, torch.get_rng_state())
assert found.recommended < found.largest and len(found.probes) < 25
def fits(n):
    try:
        for _ in range(2): step(make(n))
    except torch.OutOfMemoryError: return False
    return True
del before; optimizer.state.clear(); oomph.free()
assert fits(found.largest)
model.zero_grad(); optimizer.state.clear(); oomph.free()
assert not fits(found.largest + 1)
""")  # fmt: skip


def test_a_step_over_more_than_fits(oomph):
    check(oomph, """
train = oomph.TrainStep(model, optimizer, lambda model, x: model(x).pow(2).mean())
reports = [train(make(100_000)) for _ in range(4)]
assert reports[-1].attempts == 1 and 3 <= reports[-1].micro_batches <= 6, reports
assert sum(r.attempts for r in reports) <= 6
state = train.state_dict()
fresh = oomph.TrainStep(model, optimizer, lambda model, x: model(x).pow(2).mean())
fresh.load_state_dict(state)
assert fresh(make(100_000)).attempts == 1
""")  # fmt: skip


def test_an_optimizer_that_needs_all_the_rest_steps_in_groups(oomph):
    run = check(oomph, """
del model, optimizer
model = nn.ModuleList(nn.Linear(2048, 2048, bias=False) for _ in range(28)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
def loss(model, x):
    for layer in model: x = layer(x)
    return x.pow(2).mean()
train = oomph.TrainStep(model, optimizer, loss)
for _ in range(3): train(torch.empty(4, 2048))
assert train._guard._chunks > 1
try:
    for _ in range(2): loss(model, torch.empty(4, 2048).cuda()).backward(); optimizer.step()
except torch.OutOfMemoryError: print("plain does not fit")
""")  # fmt: skip
    assert "plain does not fit" in run.out


def test_growth_is_found_with_its_stack_and_oom_explained(oomph, tmp_path):
    run = check(oomph, """
kept = []
with oomph.watch(model, optimizer, every=5, jsonl="memory.jsonl") as memory:
    for _ in range(20):
        step(make(64))
        kept.append(torch.empty(1 << 20, device="cuda"))
assert "4.0 MiB per step" in memory.growing and "script.py" in memory.growing, memory.growing
assert set(memory.phases) == {"forward", "backward", "optimizer"}
import json
lines = [json.loads(l) for l in open("memory.jsonl")]
assert [l["step"] for l in lines][:4] == [5, 10, 15, 20] and lines[0]["category/parameters"] == 4 * (2 * 1024 * 4096 + 5120)
print(memory.line()); print(oomph.memory_line())
kept.clear()
with oomph.watch() as quiet:
    for _ in range(20): step(make(64))
assert not quiet.growing
try:
    with oomph.watch(snapshot="oom.pickle"):
        torch.empty(1 << 40, device="cuda")
except torch.OutOfMemoryError: pass
import os; assert os.path.getsize("oom.pickle") > 1000
""")  # fmt: skip
    assert "oom.pickle" in run.err


def test_free_lets_go_of_tracebacks(oomph):
    check(oomph, """
def fail():
    large = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    raise ValueError("x")
try: fail()
except ValueError as error: sys.last_value = error; sys.last_traceback = error.__traceback__
assert torch.cuda.memory_allocated() > 256 << 20
freed = oomph.free()
assert freed.tensors >= 256 << 20 and torch.cuda.memory_reserved() < 256 << 20, freed
""")  # fmt: skip


SESSION = """import torch, oomph
def train():
    layers = []
    for _ in range(100): layers.append(torch.empty(128 << 20, dtype=torch.uint8, device="cuda"))

train()
held = torch.cuda.memory_allocated()
freed = oomph.free()
left = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
again = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").numel()
"""


def test_free_in_an_interactive_session_after_an_error(oomph):
    """The prompt keeps the last error, whose frames keep everything that they made."""
    check(oomph, f"""
import code, contextlib, io
del model, optimizer
session = code.InteractiveConsole()
with contextlib.redirect_stderr(io.StringIO()) as shown:
    for line in {SESSION!r}.splitlines(): session.push(line)
names = session.locals
assert "OutOfMemoryError" in shown.getvalue(), shown.getvalue()
assert names["held"] >= 1 << 30, names["held"]
assert names["left"] == (0, 0) and names["freed"].tensors == names["held"], names["freed"]
assert names["again"] == 1 << 30
""")  # fmt: skip


def test_costs_for_the_sampler_are_measured(oomph):
    check(oomph, """
cost, budget = oomph.measure_sample_cost(
    lambda b: step(b.view(-1, 1024)), lambda n, length: torch.empty(n, length, 1024), longest=1000,
    model=model, optimizer=optimizer)
# The input, two hidden activations and their gradients: at least 4 bytes for 1024 + 2 x 4096.
assert 4 * 9216 < cost.linear + 1000 * cost.quadratic < 8 * 14336, cost
sampler = oomph.MemoryBatchSampler([100 + i % 900 for i in range(2000)], budget, cost=cost, largest_first=True)
batch = next(iter(sampler))
longest = max(100 + i % 900 for i in batch)
step(torch.empty(len(batch) * longest, 1024)); step(torch.empty(len(batch) * longest, 1024))
assert len(batch) > 10
""")  # fmt: skip


def sweep(tmp_path, *options, **env):
    return subprocess.run(
        [OOMPH, "run", "--gpu", "h200", "-q", "--no-measure", "--out", str(tmp_path / "run"),
         SWEEP, "--device", "cuda", "--models", "mlp", *options],
        capture_output=True, text=True, timeout=280, cwd=tmp_path, env={**os.environ, **env},
    )  # fmt: skip


def test_faults_by_the_driver_leave_the_same_bits(tmp_path):
    run = sweep(tmp_path, "--every", "25", PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert "differing or failed: 0" in run.stdout and "'equal'" in run.stdout, (
        run.stdout + run.stderr
    )
    assert "stopped" not in run.stdout


def test_the_overhead_script_runs(tmp_path):
    run = subprocess.run(
        [OOMPH, "run", "--gpu", "h200", "-q", "--no-measure", "--out", str(tmp_path / "run"),
         OVERHEAD, "--small", "--steps", "2", "--rounds", "2", "--out", str(tmp_path / "o.json")],
        capture_output=True, text=True, timeout=280, cwd=tmp_path,
    )  # fmt: skip
    assert (tmp_path / "o.json").exists(), run.stdout + run.stderr
