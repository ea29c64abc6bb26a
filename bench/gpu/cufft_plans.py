"""What cuFFT's plans take of the device beside their workspaces: `python cufft_plans.py OUT.jsonl`.

Each row is one plan, made by CuPy in a process that keeps all plans: bytes used outside of CuPy's pool before, with the plan, and when it has
run. Each order of lengths is a process of its own.
"""

import json
import subprocess
import sys
import time

PRIMES = (4099, 5003, 8191, 10007, 20011, 50021, 100_003, 200_003, 500_009, 1_000_003)
EVEN = tuple(2 * n for n in PRIMES[:9])
SMOOTH = (
    256,
    1000,
    1024,
    3000,
    4096,
    10_000,
    16_384,
    32_768,
    65_536,
    100_000,
    1 << 18,
    1 << 20,
    1_000_000,
)
ORDERS = {
    "primes, complex": [(n, 4, "C2C") for n in PRIMES],
    "primes, falling": [(n, 4, "C2C") for n in PRIMES[::-1]],
    "primes, double": [(n, 2, "Z2Z") for n in PRIMES],
    "primes, real": [(n, 4, "R2C") for n in PRIMES],
    "primes, to real": [(n, 4, "C2R") for n in PRIMES],
    "even, real": [(n, 4, "R2C") for n in EVEN],
    "even, to real": [(n, 4, "C2R") for n in EVEN],
    "job": [(100_003, 200, "R2C"), (100_002, 200, "C2R")],
    "again": [(100_003, b, "C2C") for b in (1, 2, 3, 8, 64, 1)],
    "smooth, complex": [(n, 4, "C2C") for n in SMOOTH],
    "smooth, real": [(n, 4, "R2C") for n in SMOOTH],
    "smooth, double": [(n, 4, "Z2Z") for n in SMOOTH],
}


def one(order):
    import cupy as cp
    from cupy.cuda import cufft

    pool = cp.get_default_memory_pool()

    def used():
        cp.cuda.Device().synchronize()
        free, total = cp.cuda.runtime.memGetInfo()
        return total - free - pool.total_bytes()

    kept = []
    cp.zeros(4, dtype=cp.complex64)
    print(json.dumps(dict(order=order, start=used())))
    for n, batch, kind in ORDERS[order]:
        before = used()
        plan = cufft.Plan1d(n, getattr(cufft, f"CUFFT_{kind}"), batch)
        made = used()
        whole = cp.complex128 if kind == "Z2Z" else cp.complex64
        given = cp.zeros(
            (batch, n // 2 + 1 if kind == "C2R" else n),
            dtype=cp.float32 if kind == "R2C" else whole,
        )
        out = cp.zeros(
            (batch, n // 2 + 1 if kind == "R2C" else n),
            dtype=cp.float32 if kind == "C2R" else whole,
        )
        plan.fft(given, out, cufft.CUFFT_INVERSE if kind == "C2R" else cufft.CUFFT_FORWARD)
        row = dict(
            order=order,
            n=n,
            batch=batch,
            kind=kind,
            before=before,
            made=made - before,
            ran=used() - made,
        )
        print(json.dumps(row), flush=True)
        kept += [plan, given, out]


def main(out):
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()  # fmt: skip
    with open(out, "w", buffering=1) as file:
        file.write(
            json.dumps(dict(gpu=gpu, date=time.strftime("%Y-%m-%d"), command=" ".join(sys.argv)))
            + "\n"
        )
        for order in ORDERS:
            done = subprocess.run(
                [sys.executable, __file__, "--order", order],
                capture_output=True,
                text=True,
                timeout=60,
            )
            file.write(
                done.stdout
                if done.stdout
                else json.dumps(dict(order=order, ended=done.stderr[-300:])) + "\n"
            )


if __name__ == "__main__":
    one(sys.argv[2]) if sys.argv[1] == "--order" else main(sys.argv[1])
