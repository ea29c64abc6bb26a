"""Scripts that use CuPy and not torch, and libraries that have the CUDA runtime linked in."""

import subprocess

import pytest

GIB = 1 << 30

with_cupy = pytest.mark.usefixtures("frameworks")

# A runtime of which nothing works, as NVIDIA's without its driver.
LINKED = """
#include <stddef.h>
#define LOCAL __attribute__((visibility("hidden")))
LOCAL int cudaRuntimeGetVersion(int *version) { *version = 1; return 999; }
LOCAL int cudaMalloc(void **address, size_t size) { *address = 0; return size ? 999 : 998; }
LOCAL int cudaNobodyKnowsThis(int *version) { *version = 1; return 997; }
"""

CALLER = """
#include <stddef.h>
int cudaMalloc(void **, size_t), cudaNobodyKnowsThis(int *);
int takes(size_t size) { void *address; return cudaMalloc(&address, size); }
int asks(void) { int version; return cudaNobodyKnowsThis(&version); }
"""

CALLS = """
import ctypes, torch
free = torch.cuda.mem_get_info()[0]
library = ctypes.CDLL("./linked.so")
print("takes", library.takes(ctypes.c_size_t(1 << 30)), free - torch.cuda.mem_get_info()[0], "asks", library.asks())
"""


@pytest.mark.parametrize(
    ("strip", "said"),
    [([], f"takes 0 {GIB} asks 997"), (["-s"], "takes 999 0 asks 997")],
    ids=["with symbols", "stripped"],
)
def test_a_runtime_that_is_linked_in_is_replaced_by_its_symbols(oomph, tmp_path, strip, said):
    (tmp_path / "linked.c").write_text(LINKED)
    (tmp_path / "caller.c").write_text(CALLER)
    command = ["cc", "-O0", "-fPIC", "-shared", *strip, "-o", "linked.so", "linked.c", "caller.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    run = oomph(CALLS)
    assert said in run.out, run.err


SCRIPT = """
import cupy as cp

def work(n):
    x = cp.ones((n, 1024), dtype=cp.float32)
    y = x @ x.T
    return cp.sin(y) + 1

kept = [work(8192) for _ in range(3)]
print("pool", cp.get_default_memory_pool().total_bytes(), "used", cp.get_default_memory_pool().used_bytes())
del kept
cp.get_default_memory_pool().free_all_blocks()
"""


@with_cupy
def test_the_pool_of_cupy_is_recorded_with_its_history(oomph):
    run = oomph(SCRIPT, gpu="h200")
    assert run.status == 0, run.err
    peak = run.json["peak"]
    assert (run.json["framework"]["name"], run.json["basis"]) == ("cupy", "whole_script")
    assert f"pool {peak['reserved_bytes']} used {3 * (GIB >> 2)}" in run.out
    # Three results, and in the third pass x, the product and its sine.
    assert peak["allocated_bytes"] == 5 * (GIB >> 2) + (32 << 20)
    # One context and the library's handle for products.
    assert 0.5 * GIB < peak["used_bytes"] - peak["reserved_bytes"] < 0.7 * GIB
    assert "in a pool of" in run.out and "through time" in run.out


@with_cupy
@pytest.mark.parametrize(
    ("begin", "end"), [("", ""), ("try:\n    ", "\nexcept cp.cuda.memory.OutOfMemoryError: pass")]
)
def test_out_of_memory_in_cupy_has_its_line_and_says_how_much_is_needed(oomph, begin, end):
    script = SCRIPT.replace("kept = [", f"{begin}kept = [").replace("]\nprint", f"]{end}\nprint", 1)
    if end:
        script = script.split("print")[0]
    run = oomph(script, "--memory", "1GiB", gpu="h200")
    assert run.status == 3, run.err
    assert run.json["verdict"] == "out_of_memory"
    assert run.json["oom"]["location"].endswith(("script.py:6", "script.py:7"))
    assert run.json["peak"]["allocated_bytes"] == 5 * (GIB >> 2) + (32 << 20)
    assert end or "CuPy could not get 256.0 MiB" in run.out


@with_cupy
def test_sparse_matrices_come_from_dense_ones_and_change_their_form(oomph):
    run = oomph("""
        import cupy as cp, cupyx.scipy.sparse as sp
        m = sp.csr_matrix(cp.eye(64))
        print(m.toarray().shape, m.tocsc().shape, m.tocoo().shape)
    """)  # fmt: skip
    assert run.status == 0, run.err
    assert "(64, 64) (64, 64) (64, 64)" in run.out


@with_cupy
def test_a_plan_is_not_for_cupy(oomph, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('format = "oomph.plan/1"\n[[lever]]\nname = "optimizer_step"\nkind = "fused"\n')
    run = oomph("import cupy", "--plan", str(plan))
    assert run.status == 2 and "this one uses CuPy" in run.err


CHECKS = """
import cupy as cp
x = cp.random.standard_normal(1 << 20, dtype=cp.float32)
counts, edges = cp.histogram(x, bins=200)
other, _ = cp.histogram(x, bins=cp.linspace(0, 1, 11))
assert cp.isfinite(x).all() and cp.all(x > 0) and cp.allclose(x, x + 1) and cp.array_equal(x, x)
assert cp.isfinite(x[0]) and not cp.isnan(x).any() and x.reshape(4, -1).all(axis=1, keepdims=True).shape == (4, 1)
norm = cp.fuse(lambda a: cp.where(cp.isfinite(a), a, 0))
print(counts.shape, other.shape, edges.dtype, norm(x).shape, cp.isfinite.nin)
"""


@with_cupy
def test_what_asks_whether_values_are_fine_is_told_so(oomph):
    run = oomph(CHECKS)
    assert run.status == 0, run.err
    assert run.out.startswith("(200,) (10,) float32 (1048576,) 1\n")
    assert any("array_equal as true" in one["what"] for one in run.json["assumptions"])


@with_cupy
@pytest.mark.parametrize(
    "lacks",
    [
        "libcublas.so.12: cannot open shared object file: No such file or directory",
        'Failure finding "libcublas.so": No such file: libcublas.so.12, No such file: libcublas.so.12 or libcublas.so.11',
        'Failure finding "libcublas.so": No such file: libcublas.so.14 or libcublas.so.13 or libcublas.so.12',
    ],
)
def test_a_library_of_another_cuda_is_named_with_the_package_that_has_it(oomph, lacks):
    run = oomph(f"import cupy\nraise ImportError({lacks!r})")
    assert run.status == 1
    # Of several, the one of CuPy's own CUDA.
    version = 13 if "so.13" in lacks else 12
    assert (
        f"needs libcublas.so.{version}" in run.err and 'pip install "cupy-cuda13x[ctk]"' in run.err
    )


SIZES = """
import cupy as cp
import numpy as np
x = cp.arange(1 << 20)
before = cp.get_default_memory_pool().used_bytes()
first = cp.unique(x)
assert cp.get_default_memory_pool().used_bytes() - before == first.nbytes
chosen = x[x > 5]
x[x > 5] = chosen
print(first.size, chosen.size, cp.nonzero(x)[0].size, cp.argwhere(x).shape[0], cp.compress(x > 3, x).size, cp.extract(x > 3, x).size)
print(x.reshape(1024, 1024)[:, cp.arange(1024) > 3].shape, x[np.arange(1 << 20) % 8 == 0].size)
if not x.max() > 5:
    print(cp.bincount(x).size)
"""


@with_cupy
@pytest.mark.parametrize(("rule", "count"), [("half", 1 << 19), ("all", 1 << 20), ("none", 0)])
def test_a_size_that_depends_on_values_follows_the_rule_and_is_said_with_its_line(
    oomph, rule, count
):
    """Each was empty before, `unique` but for one element, and no line was named."""
    run = oomph(SIZES, "--unknown", rule)
    assert run.status == 0, run.err
    sizes, others, counts = run.out.splitlines()[:3]
    assert sizes == " ".join([str(count)] * 6)
    # A mask of the host's is known.
    assert others == f"(1024, {count >> 10}) {1 << 17}" and counts == "1"
    said = [(a["kind"], a["what"], a["location"]) for a in run.json["assumptions"]]
    lines = {
        where.rpartition(":")[2] for kind, what, where in said if kind == "shape" and rule in what
    }
    assert lines == {"6", "8", "9", "10", "11"}, said
    assert any("bincount" in what and where.endswith(":13") for _, what, where in said), said
    # The script's own look at a value, and none of those within CuPy.
    assert [where[-3:] for kind, _, where in said if kind == "value"] == [":12"], said


DRAWS = """
import cupy as cp, cupyx.scipy.sparse as sp
n = 1 << 20
x = cp.random.randint(0, n, n)
u = cp.random.uniform(-1, 1, (n, 2), dtype=cp.float32)
z = cp.random.default_rng(0).standard_normal(n)
print(cp.unique(x).size, cp.unique(cp.random.permutation(n)).size, cp.bincount(x).size, int((x.reshape(4, -1) >= n // 4).sum()))
near = (u * u).sum(axis=1) < 1
print(u[near].shape[0], cp.nonzero(cp.linalg.norm(u, axis=1) < 1)[0].size, u.compress(near, axis=0).shape[0], cp.argwhere(u[:, 0] < u[:, 1]).shape[0])
tail = z[z > 1]
order = cp.argsort(-z)
z[z > 1] = 0
print(tail.size, tail[tail > 2].size, order[z[order] > 0.5].size, cp.count_nonzero(abs(z) <= 0.5))
print(sp.coo_matrix((z, (x % 1024, cp.random.choice(1024, n))), shape=(1024, 1024)).tocsr().nnz)
x[:] = cp.arange(n)
cp.RawKernel('extern "C" __global__ void k(double* z) {}', "k")((1,), (1,), (z,))
print(x[x > 0].size, z[z > 5].size, cp.random.rand(n)[cp.zeros(n) > 1].size)
"""


@with_cupy
def test_sizes_that_follow_from_draws_are_the_expected_ones(oomph):
    """Each followed the rule before, whatever the draws."""
    run = oomph(DRAWS)
    assert run.status == 0, run.err
    n = 1 << 20
    lines = [[int(number) for number in line.split()] for line in run.out.splitlines()[:5]]
    differ = n * (1 - 1 / 2.718281828)
    assert lines[0] == [pytest.approx(differ, rel=1e-3), n, pytest.approx(n, rel=1e-4), n * 3 // 4]
    inside = pytest.approx(n * 0.785398, rel=5e-3)
    assert lines[1] == [inside, inside, inside, pytest.approx(n / 2, rel=1e-2)]
    tail, far = n * 0.158655, n * 0.0227501
    expected = (tail, far, n * 0.308538 - tail, n * (0.382925 + 0.158655))
    assert lines[2] == [pytest.approx(number, rel=5e-3) for number in expected]
    # Different pairs: as many cells as draws.
    assert lines[3] == [pytest.approx(differ, rel=1e-2)]
    # What was written over has no law, and follows the rule.
    assert lines[4] == [n // 2] * 3
    said = {a["location"].rpartition(":")[2] for a in run.json["assumptions"] if "by the law of its draws" in a["what"]}  # fmt: skip
    assert {"7", "9", "10", "13", "14"} <= said, said


TWICE = """
import cupy as cp, cupyx.scipy.sparse as sp
n = 1 << 20
rows, ones = cp.arange(n), cp.ones(n)
pool = cp.get_default_memory_pool()
m = sp.coo_matrix((ones, (rows, rows)), shape=(n, n))
m.sum_duplicates()
print(m.nnz, pool.total_bytes())
"""


@with_cupy
def test_entries_of_unknown_indices_may_be_there_twice(oomph):
    """CuPy adds them up in new arrays, which it does not have if all differ: the pool was too small, and nothing said so."""
    run = oomph(TWICE)
    assert run.status == 0, run.err
    count, pool = map(int, run.out.splitlines()[0].split())
    assert count == 1 << 20 and pool > 80 << 20
    assert any("entries twice" in a["what"] and a["location"].endswith(":7") for a in run.json["assumptions"])  # fmt: skip
