"""What the sparse products of torch allocate besides their results: `python cusparse_workspaces.py OUT.jsonl`.

For each operation, layout, size, number of entries, index and value type: the blocks that torch's allocator hands out and
takes back while the operation runs, in order (bytes as asked for). The second call is recorded, since the first one
makes handles; what the first one took outside the allocator is recorded too.
"""

import itertools
import json
import sys
import time

import torch
from cusolver_workspaces import driver_used, traced

SIZES = [
    (100, 100, 500), (1000, 1000, 5_000), (1000, 1000, 100_000), (4096, 4096, 40_960), (2708, 2708, 13_264),
    (10_000, 10_000, 50_000), (10_000, 10_000, 1_000_000), (100_000, 100_000, 500_000), (262_144, 262_144, 1_308_672),
    (169_343, 169_343, 2_332_486), (1_000_000, 1_000_000, 5_000_000), (5000, 20_000, 200_000), (20_000, 5000, 200_000),
    (64, 4096, 26_214), (4096, 64, 26_214), (1, 1000, 100), (33, 77, 0),
]  # fmt: skip
COLUMNS = (1, 3, 16, 64, 100, 256)


def matrix(rows, columns, entries, layout, values, index):
    """A sparse matrix of about that many entries; cuSPARSE does not care where they are, but for long rows."""
    draw = torch.Generator(device="cuda").manual_seed(entries)
    at = torch.randint(0, rows * columns, (entries,), device="cuda", generator=draw).unique()
    coo = torch.sparse_coo_tensor(
        torch.stack((at // columns, at % columns)), torch.ones(at.numel(), device="cuda", dtype=values), (rows, columns)
    ).coalesce()  # fmt: skip
    if layout == "coo":
        return coo
    csr = coo.to_sparse_csr()
    if index == torch.int32:
        csr = torch.sparse_csr_tensor(
            csr.crow_indices().int(), csr.col_indices().int(), csr.values(), csr.shape
        )
    return csr


def operations(a, values):
    rows, columns = a.shape
    vector = torch.ones(columns, device="cuda", dtype=values)
    yield "mv", None, lambda: a @ vector
    for n in COLUMNS:
        if rows * n < 1 << 28:
            dense = torch.ones(columns, n, device="cuda", dtype=values)
            yield "mm", n, lambda dense=dense: a @ dense
    dense = torch.ones(16, columns, device="cuda", dtype=values).t()
    yield "mm_transposed", 16, lambda: a @ dense
    if a.layout == torch.sparse_csr:
        out = torch.ones(rows, 16, device="cuda", dtype=values)
        yield (
            "addmm",
            16,
            lambda: torch.addmm(out, a, torch.ones(columns, 16, device="cuda", dtype=values)),
        )
    if rows == columns and a._nnz() <= 100_000:
        yield "spgemm", None, lambda: a @ a
        yield "add", None, lambda: a + a
    if a.layout == torch.sparse_coo:
        needs = a.detach().requires_grad_()
        wide = torch.ones(columns, 16, device="cuda", dtype=values, requires_grad=True)
        yield "mm_backward", 16, lambda: torch.autograd.grad(torch.sparse.mm(a, wide).sum(), wide)
        if rows * columns < 1 << 26:
            yield (
                "mm_backward_both",
                16,
                lambda: torch.autograd.grad(torch.sparse.mm(needs, wide).sum(), (needs, wide)),
            )


def main():
    with open(sys.argv[1], "w") as file:
        head = dict(
            device=torch.cuda.get_device_name(), torch=torch.__version__, date=time.strftime("%Y-%m-%d"),
            command=" ".join(sys.argv),
        )  # fmt: skip
        file.write(json.dumps(head) + "\n")
        kinds = itertools.product(
            ("csr", "coo"),
            (torch.float32, torch.float64, torch.bfloat16),
            (torch.int64, torch.int32),
        )
        for layout, values, index in kinds:
            if layout == "coo" and index == torch.int32:
                continue
            for rows, columns, entries in SIZES:
                if values == torch.bfloat16 and entries > 1_000_000:
                    continue
                try:
                    a = matrix(rows, columns, entries, layout, values, index)
                    found = list(operations(a, values))
                except Exception as error:
                    found, why = [], str(error).splitlines()[0]
                    file.write(
                        json.dumps(dict(layout=layout, sizes=(rows, columns, entries), error=why))
                        + "\n"
                    )
                for name, n, call in found:
                    row = dict(
                        operation=name, layout=layout, values=str(values)[6:], index=str(index)[6:],
                        rows=rows, columns=columns, entries=a._nnz(), n=n,
                    )  # fmt: skip
                    before = driver_used()
                    try:
                        call()
                        torch.cuda.synchronize()
                        row.update(outside=driver_used() - before, **traced(call))
                    except Exception as error:
                        row.update(error=str(error).splitlines()[0][:200])
                    file.write(json.dumps(row) + "\n")


main()
