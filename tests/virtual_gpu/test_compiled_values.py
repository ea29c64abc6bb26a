"""`oomph run --compute`: what `torch.compile`d code computes, and what its kernels draw."""

COMPILED = """
import copy
import torch, triton, triton.language as tl
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.BatchNorm1d(64), nn.Linear(64, 8)).cuda()
twin = copy.deepcopy(model)
compiled = torch.compile(twin)
x = torch.randn(16, 32, device="cuda")
for net, of in ((model, model), (compiled, twin)):
    optimizer = torch.optim.SGD(of.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad(); net(x).square().mean().backward(); optimizer.step()
for (name, p), q in zip(model.state_dict().items(), twin.state_dict().values()):  # running statistics too
    torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-5, msg=name)
print("trained")

@torch.compile
def noisy(counter, big):
    counter.add_(1)
    return torch.rand_like(counter) < 0.5, counter * 2, big.sum()

@triton.jit
def draw(o_ptr, seed, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(o_ptr + at, tl.rand(seed, at))

counter, known, unknown = torch.zeros(256, device="cuda"), torch.ones(4, device="cuda"), torch.randn(1 << 25, device="cuda")
torch.cuda.manual_seed(7)
drawn, twice, _ = noisy(counter, known)
assert counter.tolist() == [1] * 256 and twice.tolist() == [2] * 256
# The seed is the generator's; of it Inductor's kernels draw as Triton's `rand`.
torch.cuda.manual_seed(7)
limits = torch.iinfo(torch.int64)
seed = torch.randint(limits.min, limits.max, [1], device="cuda")
numbers = torch.empty(256, device="cuda")
draw[(1,)](numbers, seed.item(), BLOCK=256)
assert torch.equal(numbers < 0.5, drawn) and 90 < drawn.sum() < 170
print("drawn", torch.cuda.default_generators[0].get_offset())
noisy(counter, unknown)
print("counter", counter.sum().item())  # what changed in place is unknown, too
"""


def test_compiled_code_computes_what_its_graph_says(oomph):
    run = oomph(COMPILED, "--compute", "64MiB")
    assert run.status == 0 and "trained" in run.out and "drawn 4" in run.out, run.err + run.out
    reads = [a for a in run.json["assumptions"] if "which oomph does not compute" in a["what"]]
    line = next(
        n for n, text in enumerate(COMPILED.splitlines(), 1) if "in place is unknown" in text
    )
    assert [a["location"].split(":")[-1] for a in reads] == [str(line)], reads
    assert not any("compiled code cannot be computed" in a["what"] for a in run.json["assumptions"])


CAPTURED = """
import torch, triton, triton.language as tl

@triton.jit
def double(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(o_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)

@torch.compile
def through(x):
    out = torch.empty_like(x)
    double[(1,)](x, out, x.numel(), BLOCK=128)
    return out.sin()

x, out = torch.randn(100, device="cuda"), torch.zeros(100, device="cuda")
through(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    double[(1,)](x, out, 100, BLOCK=128)
    more, compiled = out + 1, through(x)
assert out.tolist() == [0] * 100  # captured, not run
for _ in range(2):
    x.normal_()
    graph.replay()
    torch.testing.assert_close(more, 2 * x + 1)
    torch.testing.assert_close(compiled, (2 * x).sin())
print("replayed", more.sum().item() != 0)
"""


def test_triton_kernels_and_compiled_code_run_in_replays(oomph):
    run = oomph(CAPTURED, "--compute", "64MiB")
    assert run.status == 0 and "replayed True" in run.out, run.err + run.out


def test_compiled_code_holds_the_same_with_and_without_values(oomph):
    code = """
        import torch
        from torch import nn
        net = torch.compile(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(), nn.Linear(1024, 256)).cuda())
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(2):
            net(torch.randn(512, 256, device="cuda")).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
    """
    with_values, without = (oomph(code, *options) for options in (["--compute", "1GiB"], []))
    assert with_values.json["peak"] == without.json["peak"]
