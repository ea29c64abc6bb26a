"""What the linear algebra of torch allocates besides its results: `python cusolver_workspaces.py OUT.jsonl`.

For each operation, size, batch, type and library (cuSOLVER, MAGMA, torch's choice): the sizes of the blocks that
torch's allocator hands out while the operation runs, in order (bytes as asked for); the peak above the inputs; what
the results hold; what the driver takes outside the allocator. The second call is recorded, since the first one
makes handles; what the first one took outside is recorded too.
"""

import json
import sys
import time

import torch

L = torch.linalg
LIMIT = 50.0


def operations(a, spd, b):
    yield "svd", lambda: L.svd(a)
    yield "svd_reduced", lambda: L.svd(a, full_matrices=False)
    for driver in ("gesvd", "gesvdj", "gesvda"):
        yield f"svd_{driver}", lambda driver=driver: L.svd(a, full_matrices=False, driver=driver)
    yield "svdvals", lambda: L.svdvals(a)
    yield "eigh", lambda: L.eigh(spd)
    yield "eigvalsh", lambda: L.eigvalsh(spd)
    yield "cholesky", lambda: L.cholesky(spd)
    yield "cholesky_inverse", lambda: torch.cholesky_inverse(spd)
    yield "cholesky_solve", lambda: torch.cholesky_solve(b, spd)
    yield "lu_factor", lambda: L.lu_factor(a)
    yield "lu", lambda: L.lu(a)
    yield "qr", lambda: L.qr(a)
    yield "qr_complete", lambda: L.qr(a, mode="complete")
    yield "solve", lambda: L.solve(a, b)
    yield "lstsq", lambda: L.lstsq(a, b).solution
    yield "inv", lambda: L.inv(a)
    yield "pinv", lambda: L.pinv(a)
    yield "slogdet", lambda: L.slogdet(a)
    yield "eigvals", lambda: L.eigvals(a)
    yield "eig", lambda: L.eig(a)


# rows, columns, batch
SHAPES = [
    (16, 16, 0), (32, 32, 0), (64, 64, 0), (128, 128, 0), (256, 256, 0), (512, 512, 0),
    (1024, 1024, 0), (2048, 2048, 0), (100, 100, 0), (1000, 1000, 0), (768, 768, 0),
    (512, 128, 0), (128, 512, 0), (2048, 256, 0), (768, 3072, 0), (3072, 768, 0),
    (4, 4, 256), (16, 16, 64), (32, 32, 512), (64, 64, 16), (128, 128, 8), (256, 256, 4), (512, 512, 3),
    (64, 32, 32), (1024, 64, 8), (512, 512, 1), (32, 32, 1),
]  # fmt: skip
SQUARE = {
    "eigh", "eigvalsh", "cholesky", "cholesky_inverse", "cholesky_solve", "lu_factor", "lu", "solve", "inv",
    "slogdet", "eigvals", "eig",
}  # fmt: skip
SLOW = {"eigvals", "eig", "svd_gesvd", "svd", "svd_reduced", "svdvals", "svd_gesvdj", "pinv"}


def driver_used():
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def traced(call):
    """Runs `call`; the blocks it allocated and freed in order, its peak above before, what its results hold."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.memory._record_memory_history(
        "all", context=None, stacks="python", max_entries=4000, clear_history=True
    )
    result = call()
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    peak, held = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    del result
    names = {"alloc": "+", "free_requested": "-"}
    order = [f"{names[e['action']]}{e['size']}" for e in events if e["action"] in names]
    return dict(blocks=order[:200], n_blocks=len(order), peak=peak, held=held)


def case(library, dtype, rows, columns, batch):
    torch.manual_seed(0)
    shape = (batch,) if batch else ()
    a = torch.randn(*shape, rows, columns, device="cuda", dtype=dtype)
    b = torch.randn(*shape, rows, 3, device="cuda", dtype=dtype)
    spd = None
    if rows == columns:
        spd = a @ a.mH + rows * torch.eye(rows, device="cuda", dtype=dtype)
    for name, call in operations(a, spd, b):
        if rows != columns and name in SQUARE:
            continue
        if name in SLOW and max(rows, columns) > (1024 if library == "default" else 512):
            continue
        row = dict(
            op=name, library=library, dtype=str(dtype)[6:], rows=rows, columns=columns, batch=batch
        )
        try:
            outside = driver_used()
            call()
            torch.cuda.synchronize()
            row["outside_first"] = driver_used() - outside
            began, outside = time.perf_counter(), driver_used()
            row.update(traced(call))
            row["outside_second"] = driver_used() - outside
            row["seconds"] = round(time.perf_counter() - began, 4)
        except Exception as error:
            torch.cuda.memory._record_memory_history(None)
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        yield row


def main():
    end = time.monotonic() + LIMIT
    torch.zeros(1, device="cuda")
    with open(sys.argv[1], "w") as file:
        note = lambda row: file.write(json.dumps(row) + "\n")
        note(
            dict(
                torch=torch.__version__,
                gpu=torch.cuda.get_device_name(0),
                magma=torch.cuda.has_magma,
            )
        )
        plan = [("default", t, s) for t in (torch.float32, torch.float64) for s in SHAPES]
        plan += [("cusolver", torch.float32, s) for s in SHAPES]
        plan += [("magma", torch.float32, s) for s in SHAPES[::3]]
        plan += [("default", torch.complex64, s) for s in SHAPES[::3]]
        for library, dtype, shape in plan:
            if time.monotonic() > end:
                note(dict(left_out=[library, str(dtype)[6:], *shape]))
                continue
            try:
                torch.backends.cuda.preferred_linalg_library(library)
                for row in case(library, dtype, *shape):
                    note(row)
                    file.flush()
                    if time.monotonic() > end:
                        break
            except Exception as error:
                note(dict(library=library, shape=shape, error=str(error)[:300]))


if __name__ == "__main__":
    main()
