"""A script for the virtual GPU: random programs of partial writes and views, with the CPU's results as the truth.

What nobody computes on the virtual GPU gets several values on the CPU, and a program runs there with each of
them. What the layer calls known must be the same with all of them, and what the layer has.
"""

import collections
import gc
import sys

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oomph._virtual_gpu.values import ValueLayer

WORLDS = 3
"""So many values an unknown number has."""
SMALL, WIDE = (4, 6), (1024, 300)
"""What is computed if it depends on anything known, and what only if all of it does."""

layer = next(found for found in gc.get_objects() if type(found) is ValueLayer)
nobody_computes_it = torch.randn(4096, 1100, device="cuda")

VIEWS = {
    "all": lambda t, a, b: t,
    "row": lambda t, a, b: t[a],
    "column": lambda t, a, b: t[:, b],
    "element": lambda t, a, b: t[a, b : b + 1],
    "rows": lambda t, a, b: t[min(a, 2) : 3],
    "columns": lambda t, a, b: t[:, b:],
    "first rows": lambda t, a, b: t[: a + 1],
    "every other": lambda t, a, b: t[a % 2 :: 2],
    "transposed": lambda t, a, b: t.t(),
    "block": lambda t, a, b: t.narrow(0, 1, 2).narrow(1, 2, 3),
    "diagonal": lambda t, a, b: t.diagonal(a - 2),
    "flat": lambda t, a, b: t.view(-1)[b : b + 5 * (a + 1)],
    "bytes before": lambda t, a, b: t.as_strided((2, 2), (t.shape[1] + 1, 1), a),
    "detached": lambda t, a, b: t.detach()[a, b:],
    "once more": lambda t, a, b: t[:3][a % 3].unsqueeze(0),
}


def like(s, v):
    """As many elements of `s` as `v` has, in its shape."""
    return s.reshape(-1).repeat(-(-max(1, v.numel()) // s.numel()))[: v.numel()].view(v.shape)


def some(v, n):
    """Indices of the first dimension, without a repetition."""
    return torch.arange(0, len(v), n % 2 + 1, device=v.device)


def guessed(s, v):
    """Indices of the first dimension, by the largest of `s`."""
    return (s.reshape(-1)[:4].argmax() % len(v)).reshape(1)


def masked(v, n):
    return (torch.arange(v.numel(), device=v.device) % (n + 2) == 0).view(v.shape)


def assign(v, key, value):
    v[key] = value


# Each changes `v` or gives a new tensor; `s` is another part of what there is, `n` a small number.
WRITES = {
    "fill": lambda v, s, n: v.fill_(n),
    "fill by a tensor": lambda v, s, n: v.fill_(s.reshape(-1)[n % s.numel()]),
    "zero": lambda v, s, n: v.zero_(),
    "copy": lambda v, s, n: v.copy_(like(s, v)),
    "copy itself": lambda v, s, n: v.copy_(v),
    "copy many": lambda v, s, n: torch._foreach_copy_([v], [like(s, v)]),
    "zero many": lambda v, s, n: torch._foreach_zero_([v]),
    "data": lambda v, s, n: v.data.copy_(like(s, v)),
    "add": lambda v, s, n: v.add_(like(s, v)),
    "multiply": lambda v, s, n: v.mul_(n),
    "clamp": lambda v, s, n: v.clamp_(0, n),
    "cumulate": lambda v, s, n: v.cumsum_(0),
    "fill diagonal": lambda v, s, n: v.fill_diagonal_(float(n)),
    "tril": lambda v, s, n: v.tril_(n - 2),
    "triu": lambda v, s, n: v.triu_(n - 2),
    "masked fill": lambda v, s, n: v.masked_fill_(masked(v, n), n),
    "masked fill by what": lambda v, s, n: v.masked_fill_(like(s, v) > 2, n),
    "masked scatter": lambda v, s, n: v.masked_scatter_(masked(v, n), like(s, v).clone()),
    "index fill": lambda v, s, n: v.index_fill_(0, some(v, n), n),
    "index fill where": lambda v, s, n: v.index_fill_(0, guessed(s, v), n),
    "index copy": lambda v, s, n: v.index_copy_(0, some(v, n), like(s, v)[some(v, n)]),
    "index add": lambda v, s, n: v.index_add_(0, some(v, n), like(s, v)[some(v, n)]),
    "assign at": lambda v, s, n: assign(v, some(v, n), n),
    "assign at, tensor": lambda v, s, n: assign(v, some(v, n), like(s, v)[some(v, n)].clone()),
    "assign where": lambda v, s, n: assign(v, guessed(s, v), n),
    "assign by mask": lambda v, s, n: assign(v, masked(v, n), n),
    "assign by mask, tensor": lambda v, s, n: assign(v, masked(v, n), like(s, v)[masked(v, n)].clone()),
    "assign by what": lambda v, s, n: assign(v, like(s, v) > 2, float(n)),
    "scatter": lambda v, s, n: v.scatter_(0, torch.zeros_like(v, dtype=torch.long) + n % len(v), like(s, v)),
    "scatter number": lambda v, s, n: v.scatter_(0, torch.zeros_like(v[:1], dtype=torch.long), n),
    "scatter add": lambda v, s, n: v.scatter_add_(0, torch.zeros_like(v[:1], dtype=torch.long), like(s, v)),
    "put": lambda v, s, n: v.put_(torch.tensor([0, n % v.numel()], device=v.device), like(s, v).reshape(-1)[[0, 0]]),
    "out": lambda v, s, n: torch.add(like(s, v), n, out=v),
    "out of itself": lambda v, s, n: torch.add(v, n, out=v),
    "out of its memory": lambda v, s, n: torch.mul(v.detach(), 2, out=v),
    "where, out": lambda v, s, n: torch.where(masked(v, n), like(s, v), torch.ones_like(v), out=v),
    "draw": lambda v, s, n: v.uniform_(),
    "draw other": lambda v, s, n: v.geometric_(0.5),
    "clone": lambda v, s, n: v.clone(),
    "sum": lambda v, s, n: v.sum(0, keepdim=True),
    "choose": lambda v, s, n: torch.where(masked(v, n), like(s, v), torch.ones_like(v)),
    "choose by what": lambda v, s, n: torch.where(like(s, v) > 2, v, torch.ones_like(v)),
    "join": lambda v, s, n: torch.cat([v.reshape(-1), s.reshape(-1)]),
    "which": lambda v, s, n: v.argmax(0).float(),
    "same memory": lambda v, s, n: torch.ops.aten._unsafe_view(v, [-1]) if v.is_contiguous() else v.clone(),
    "longer": lambda v, s, n: v.clone().resize_(v.numel() * 2 + n)[: v.numel()],
}  # fmt: skip
DRAWN = {"draw", "draw other"}

part = st.tuples(
    st.integers(0, 9), st.sampled_from(sorted(VIEWS)), st.integers(0, 3), st.integers(0, 3)
)
steps = st.lists(
    st.tuples(st.sampled_from(sorted(WRITES)), part, part, st.integers(0, 4)), min_size=1, max_size=6
)  # fmt: skip


def pick(pool, chosen):
    which, view, a, b = chosen
    t = pool[which % len(pool)]
    return VIEWS[view](t, a, b) if t.dim() == 2 and t.shape[0] > 3 and t.shape[1] > 5 else t


def compare(pool, worlds):
    for at, t in enumerate(pool):
        truth = [world[at] for world in worlds]
        parts = [lambda t: t]
        if t.dim():
            parts += [lambda t, i=i: t[i] for i in range(min(len(t), 6))]
        if t.dim() == 2:
            parts += [lambda t, i=i: t[:, i] for i in range(min(t.shape[1], 6))]
            parts += [lambda t, i=i, j=j: t[i, j] for i in range(min(len(t), 4)) for j in range(min(t.shape[1], 6))]  # fmt: skip
        for of in parts:
            unknown = layer.is_unknown(of(t))
            compared[unknown] += 1
            if unknown:
                continue
            has = of(t).cpu()
            for world in truth:
                assert torch.allclose(has, of(world), equal_nan=True), (at, has, of(world))


compared = collections.Counter()


@settings(max_examples=int(sys.argv[1]), deadline=None, derandomize=True, database=None)
@given(st.sampled_from([SMALL, SMALL, SMALL, WIDE]), steps)
def programs(shape, steps):
    rows, columns = shape
    generator = torch.Generator().manual_seed(rows)
    unknown = [torch.randn(shape, generator=generator) * 3 for _ in range(WORLDS)]
    counted = torch.arange(rows * columns).view(shape).float() / 7
    pool = [
        counted.cuda(),
        (nobody_computes_it + 1)[:rows, :columns].clone(),
        torch.ones(1, device="cuda"),
    ]
    worlds = [[counted.clone(), values, torch.ones(1)] for values in unknown]
    assert not layer.is_unknown(pool[0]) and layer.is_unknown(pool[1])
    for name, to, source, n in steps:
        write = WRITES[name]
        try:
            new = [write(pick(world, to), pick(world, source), n) for world in worlds]
        except (RuntimeError, IndexError, TypeError):
            continue  # no such step: of other shapes
        target = pick(pool, to)
        made = write(target, pick(pool, source), n)
        if name in DRAWN:
            for world in worlds:
                drawn = pick(world, to)
                drawn.copy_(
                    target.cpu() if not layer.is_unknown(target) else torch.rand(drawn.shape)
                )
        elif isinstance(made, torch.Tensor) and made is not target:
            pool.append(made)
            for world, other in zip(worlds, new, strict=True):
                world.append(other)
    compare(pool, worlds)


programs()
assert min(compared[True], compared[False]) > 5 * int(sys.argv[1]), compared
print("compared", dict(compared))
