"""What cuSOLVER's `bufferSize` functions answer: `python cusolver_sizes.py OUT.jsonl [SEED]`.

No routine runs, so a thousand sizes take seconds. Each row has the routine, the type (S, D, C, Z), its sizes and what was
answered: elements of that type for the older functions, `[device, host]` bytes for the newer ones (X…). Structured sizes come first,
then sizes drawn with SEED (default 1).
"""

import ctypes
import glob
import json
import os
import random
import sys
import time

import torch

P, I, L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
TYPES = {"S": 0, "D": 1, "C": 4, "Z": 5}
"""cudaDataType of each letter."""


def library(name):
    folder = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia")
    found = glob.glob(os.path.join(folder, "**", f"lib{name}.so.*"), recursive=True)
    return ctypes.CDLL(found[0])


class Solver:
    def __init__(self):
        self.so = library("cusolver")
        self.handle, self.params, self.jacobi, self.svdj = P(), P(), P(), P()
        self.check(self.so.cusolverDnCreate(ctypes.byref(self.handle)))
        self.check(self.so.cusolverDnCreateParams(ctypes.byref(self.params)))
        self.check(self.so.cusolverDnCreateSyevjInfo(ctypes.byref(self.jacobi)))
        self.check(self.so.cusolverDnCreateGesvdjInfo(ctypes.byref(self.svdj)))
        self.memory = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        self.a = P(self.memory.data_ptr())
        # A routine that ends the process is named there, and left out by the next try.
        self.left_out = set(os.environ.get("LEFT_OUT", "").split())
        self.attempt = os.open(os.environ.get("ATTEMPT", os.devnull), os.O_RDWR | os.O_CREAT)

    @staticmethod
    def check(status):
        if status:
            raise SystemExit(f"cuSOLVER: status {status}")

    def function(self, name):
        if name[1:] in self.left_out or name in self.left_out:
            return None
        os.pwrite(self.attempt, name.ljust(40).encode(), 0)
        return getattr(self.so, f"cusolverDn{name}_bufferSize", None)

    def old(self, name, *before, after=()):
        """Elements that an older function answers, or its status as text."""
        size = I(-1)
        function = self.function(name)
        if function is None:
            return "absent"
        status = function(self.handle, *before, ctypes.byref(size), *after)
        return size.value if status == 0 else f"status {status}"

    def new(self, name, *before, after=()):
        device, host = ctypes.c_size_t(0), ctypes.c_size_t(0)
        function = self.function(name)
        if function is None:
            return "absent"
        status = function(
            self.handle, self.params, *before, ctypes.byref(device), ctypes.byref(host), *after
        )
        return [device.value, host.value] if status == 0 else f"status {status}"

    def rows(self, letter, m, n, k, batch):
        """Every routine for a matrix of `m` rows and `n` columns."""
        a, real, of = self.a, letter in "SD", I(TYPES[letter])
        of_real = I(TYPES[{"C": "S", "Z": "D"}.get(letter, letter)])
        lda, ldn, m_, n_, k_ = I(m), I(n), I(m), I(n), I(k)
        sy, org, orm = ("sy", "org", "orm") if real else ("he", "ung", "unm")
        old, new = self.old, self.new
        low = I(0)
        yield "gesvd", old(f"{letter}gesvd", m_, n_)
        yield "geqrf", old(f"{letter}geqrf", m_, n_, a, lda)
        yield "getrf", old(f"{letter}getrf", m_, n_, a, lda)
        yield "gebrd", old(f"{letter}gebrd", m_, n_)
        if k <= n <= m:
            yield "orgqr", old(f"{letter}{org}qr", m_, n_, k_, a, lda, a)
        yield "ormqr", old(f"{letter}{orm}qr", I(0), I(1 if real else 2), m_, n_, k_, a, lda, a, a, lda)  # fmt: skip
        for job, econ in ((0, 0), (1, 0), (1, 1)):
            yield f"gesvdj{job}{econ}", old(
                f"{letter}gesvdj", I(job), I(econ), m_, n_, a, lda, a, a, lda, a, ldn,
                after=(self.svdj,),
            )  # fmt: skip
        if max(m, n) <= 32:
            yield "gesvdjBatched", old(
                f"{letter}gesvdjBatched", I(1), m_, n_, a, lda, a, a, lda, a, ldn,
                after=(self.svdj, I(batch)),
            )  # fmt: skip
        if m >= n:
            size = L(m * n)
            yield "gesvdaStridedBatched", old(
                f"{letter}gesvdaStridedBatched", I(1), n_, m_, n_, a, lda, size, a, L(n), a, lda, size, a, ldn, L(n * n),
                after=(I(batch),),
            )  # fmt: skip
            for job in (b"N", b"S"):
                yield f"Xgesvd{job.decode()}", new(
                    "Xgesvd", ctypes.c_char(job), ctypes.c_char(job), L(m), L(n), of, a, L(m), of_real, a, of, a, L(m),
                    of, a, L(n), of,
                )  # fmt: skip
            yield "Xgesvdp", new(
                "Xgesvdp", I(1), I(1), L(m), L(n), of, a, L(m), of_real, a, of, a, L(m), of, a, L(n), of
            )  # fmt: skip
        yield "Xgeqrf", new("Xgeqrf", L(m), L(n), of, a, L(m), of, a, of)
        yield "Xgetrf", new("Xgetrf", L(m), L(n), of, a, L(m), of)
        if m != n:
            return
        yield "potrf", old(f"{letter}potrf", low, n_, a, lda)
        yield "potri", old(f"{letter}potri", low, n_, a, lda)
        yield "sytrf", old(f"{letter}sytrf", n_, a, lda)
        yield "sytrd", old(f"{letter}{sy}trd", low, n_, a, lda, a, a, a)
        for job in (0, 1):
            yield f"syevd{job}", old(f"{letter}{sy}evd", I(job), low, n_, a, lda, a)
            yield (
                f"syevj{job}",
                old(f"{letter}{sy}evj", I(job), low, n_, a, lda, a, after=(self.jacobi,)),
            )
            yield f"sygvd{job}", old(f"{letter}{sy}gvd", I(1), I(job), low, n_, a, lda, a, lda, a)
            yield f"Xsyevd{job}", new("Xsyevd", I(job), low, L(n), of, a, L(n), of_real, a, of)
            if n <= 1024:
                yield f"XsyevBatched{job}", new(
                    "XsyevBatched", I(job), low, L(n), of, a, L(n), of_real, a, of, after=(L(batch),)
                )  # fmt: skip
        yield (
            "syevjBatched",
            old(f"{letter}{sy}evjBatched", I(1), low, n_, a, lda, a, after=(self.jacobi, I(batch))),
        )
        yield "Xpotrf", new("Xpotrf", low, L(n), of, a, L(n), of)
        to = I(TYPES[letter.translate(str.maketrans("SD", "CZ"))])
        for job in (0, 1):
            yield (
                f"Xgeev{job}",
                new("Xgeev", I(0), I(job), L(n), of, a, L(n), to, a, of, a, L(n), of, a, L(n), of),
            )


EDGES = [1, 2, 3, 8, 16, 31, 32, 33, 48, 64, 65, 96, 100, 127, 128, 129, 192, 200, 255, 256, 257, 300, 384, 500, 511, 512,
         513, 600, 640, 768, 896, 1000, 1023, 1024, 1025, 1280, 1500, 1536, 2000, 2048, 2049, 2500, 3000, 3072, 4000, 4096,
         5000, 6000, 8192]  # fmt: skip
SIDES = [4, 32, 50, 128, 200, 512, 1000, 1024, 2048, 3000, 5000]


def structured():
    for n in EDGES:
        yield n, n, n, 4
    for m in SIDES:
        for n in SIDES:
            if m != n:
                yield m, n, min(m, n), 16
                if min(m, n) > 4:
                    yield m, n, min(m, n) // 2, 100


def drawn(seed):
    draw = random.Random(seed)
    while True:
        m = int(2 ** draw.uniform(0, 13.3))
        n = m if draw.random() < 0.4 else int(2 ** draw.uniform(0, 13.3))
        k = min(m, n) if draw.random() < 0.5 else draw.randint(1, min(m, n))
        yield m, n, k, draw.choice((1, 2, 7, 16, 64, 500))


def main():
    out, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    limit = float(os.environ.get("SECONDS_FOR_SIZES", "40"))
    solver = Solver()
    version = I()
    solver.so.cusolverGetVersion(ctypes.byref(version))
    began = time.monotonic()
    with open(out, "w", buffering=1) as file:
        head = dict(
            device=torch.cuda.get_device_name(), torch=torch.__version__, cusolver=version.value,
            date=time.strftime("%Y-%m-%d"), command=" ".join(sys.argv),
        )  # fmt: skip
        file.write(json.dumps(head) + "\n")
        for origin, cases, share in (("s", structured(), 0.6), ("d", drawn(seed), 1)):
            for done, (m, n, k, batch) in enumerate(cases):
                for letter in TYPES:
                    answers = dict(solver.rows(letter, m, n, k, batch))
                    row = dict(o=origin, t=letter, m=m, n=n, k=k, b=batch, answers=answers)
                    file.write(json.dumps(row, separators=(",", ":")) + "\n")
                if time.monotonic() - began > limit * share or (origin == "d" and done >= 120):
                    break


main()
