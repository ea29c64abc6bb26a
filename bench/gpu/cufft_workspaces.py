"""The workspace that cuFFT asks for, by transform: `python cufft_workspaces.py OUT.jsonl [SECONDS [SEED]]`.

Plans are made as torch makes them (`cufftXtMakePlanMany` of packed tensors, no automatic allocation), for sizes of one to
three dimensions, batches, types and directions. Structured sizes first, then random ones (a fixed seed) until
SECONDS have passed (default: 120). With a SEED only random ones, a third of them with large prime factors. `bytes` is what cuFFT asks for; `status` is not 0 where it refuses.
"""

import ctypes
import glob
import json
import os
import random
import sys
import time

import torch

HALF, SINGLE, DOUBLE = (2, 6), (0, 4), (1, 5)
"""cudaDataType of real and complex values: R_16F and C_16F, and so on."""
LAYOUTS = ("c2c", "r2c", "c2r")


def library():
    folder = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia")
    found = glob.glob(os.path.join(folder, "**", "libcufft.so.*"), recursive=True)
    return ctypes.CDLL(found[0] if found else "libcufft.so.12")


def workspace(fft, sizes, batch, types, layout):
    """Status and bytes of a plan for `batch` transforms of `sizes`."""
    plan, size = ctypes.c_int(), ctypes.c_size_t()
    if fft.cufftCreate(ctypes.byref(plan)):
        return -1, 0
    fft.cufftSetAutoAllocation(plan, 0)
    real, whole = types
    given = real if layout == "r2c" else whole
    made = real if layout == "c2r" else whole
    n = (ctypes.c_longlong * len(sizes))(*sizes)
    one = ctypes.c_longlong(1)
    status = fft.cufftXtMakePlanMany(
        plan, len(sizes), n, None, one, one, given, None, one, one, made,
        ctypes.c_longlong(batch), ctypes.byref(size), whole,
    )  # fmt: skip
    fft.cufftDestroy(plan)
    return status, size.value


def structured():
    lines = [
        *range(2, 130),
        255,
        256,
        257,
        320,
        333,
        400,
        441,
        480,
        500,
        510,
        511,
        512,
        513,
        600,
        640,
        768,
        800,
        882,
    ]
    lines += [
        1000,
        1001,
        1009,
        1023,
        1024,
        1025,
        1200,
        1280,
        1536,
        1600,
        1764,
        1920,
        2000,
        2047,
        2048,
        2049,
        2187,
    ]
    lines += [
        2205,
        2400,
        3000,
        3072,
        3125,
        4000,
        4095,
        4096,
        4097,
        4099,
        4410,
        4800,
        5000,
        6000,
        6144,
        6561,
        8000,
    ]
    lines += [
        8191,
        8192,
        8193,
        9600,
        10000,
        12288,
        15625,
        16000,
        16383,
        16384,
        16385,
        16807,
        20000,
        22050,
        24000,
    ]
    lines += [
        32000,
        32767,
        32768,
        32769,
        44100,
        48000,
        65536,
        65537,
        88200,
        96000,
        100000,
        110250,
        131072,
        160000,
    ]
    lines += [
        196608,
        220500,
        262144,
        441000,
        480000,
        524288,
        1000000,
        1000003,
        1048576,
        1323000,
        2097152,
        4194304,
    ]
    for n in lines:
        for layout in LAYOUTS:
            for types in (SINGLE, DOUBLE):
                for batch in (1, 8) if n > 2048 else (1, 64):
                    yield (n,), batch, types, layout
    planes = [
        2,
        3,
        4,
        5,
        7,
        8,
        11,
        12,
        14,
        15,
        16,
        17,
        20,
        24,
        28,
        30,
        32,
        33,
        36,
        48,
        56,
        60,
        64,
        65,
        80,
        96,
        100,
    ]
    planes += [
        112,
        120,
        127,
        128,
        129,
        144,
        160,
        192,
        200,
        224,
        240,
        250,
        256,
        257,
        320,
        384,
        400,
        421,
        480,
        512,
    ]
    planes += [640, 720, 1000, 1024, 1440, 2048, 4096]
    for n in planes:
        for m in {n, 64, 85, 256, 421, n * 2, max(2, n // 2)}:
            for layout in LAYOUTS:
                yield (n, m), 1, SINGLE, layout
                yield (n, m), 16, SINGLE, layout
        yield (n, n), 4, DOUBLE, "r2c"
        yield (n, n), 4, DOUBLE, "c2r"
        yield (n, n), 4, DOUBLE, "c2c"
    for n in (
        4,
        8,
        10,
        12,
        16,
        20,
        24,
        30,
        32,
        40,
        48,
        50,
        60,
        64,
        80,
        96,
        100,
        120,
        127,
        128,
        160,
        192,
        256,
    ):
        for sizes in ((n, n, n), (n, n, 64), (32, n, n), (n, 48, 96)):
            for layout in LAYOUTS:
                for batch in (1, 4):
                    yield sizes, batch, SINGLE, layout
            yield sizes, 1, DOUBLE, "c2c"
    for power in range(1, 21):
        for layout in LAYOUTS:
            yield (2**power,), 8, HALF, layout
            if power < 12:
                yield (2**power, 2**power), 8, HALF, layout


def next_prime(n):
    while any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def drawn(seed=None):
    draw = random.Random(seed or 20261123)
    while True:
        rank = draw.choice((1, 1, 1, 2, 2, 3))
        top = (20, 11, 8)[rank - 1]
        sizes = tuple(max(2, int(2 ** draw.uniform(1, top))) for _ in range(rank))
        if draw.random() < 0.5:  # round numbers, as people choose them
            sizes = tuple(draw.choice((8, 16, 10, 12, 20, 25)) * max(1, n // 16) for n in sizes)
        if seed and draw.random() < 1 / 3:
            factor = draw.choice((1, 1, 2, 3, 4, 6, 10))
            sizes = tuple(factor * next_prime(max(2, n // factor)) for n in sizes)
        batch = draw.choice((1, 1, 2, 3, 4, 8, 16, 20, 32, 64, 100, 256, 1000))
        while batch > 1 and batch * torch.Size(sizes).numel() > 1 << 28:
            batch //= 2
        yield sizes, max(1, batch), draw.choice((SINGLE, SINGLE, DOUBLE)), draw.choice(LAYOUTS)


def main():
    out, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 120.0
    torch.zeros(1, device="cuda")
    fft = library()
    version = ctypes.c_int()
    fft.cufftGetVersion(ctypes.byref(version))
    began = time.monotonic()
    with open(out, "w") as file:
        head = dict(
            device=torch.cuda.get_device_name(), torch=torch.__version__, cufft=version.value,
            date=time.strftime("%Y-%m-%d"), command=" ".join(sys.argv),
        )  # fmt: skip
        file.write(json.dumps(head) + "\n")
        seed = int(sys.argv[3]) if len(sys.argv) > 3 else None
        plan = (
            [("drawn", drawn(seed))] if seed else [("structured", structured()), ("drawn", drawn())]
        )
        for origin, cases in plan:
            for done, (sizes, batch, types, layout) in enumerate(cases):
                status, size = workspace(fft, sizes, batch, types, layout)
                kind = {HALF: "half", SINGLE: "single", DOUBLE: "double"}[types]
                row = dict(
                    origin=origin,
                    sizes=sizes,
                    batch=batch,
                    type=kind,
                    layout=layout,
                    status=status,
                    bytes=size,
                )
                file.write(json.dumps(row) + "\n")
                late = time.monotonic() - began > (
                    seconds / 2 if origin == "structured" else seconds
                )
                if late or seed and done == 4000:
                    break


main()
