"""The blocks that torch's allocator hands out in Fourier transforms: `python fft_blocks.py OUT.jsonl`.

With `oomph run --gpu h200` the same lists should come from the virtual GPU; `cufft_workspaces.py` asks cuFFT alone, for
packed tensors only.
"""

import json
import sys
import time

import torch
from cusolver_workspaces import traced

F = torch.fft
LINES = (
    100,
    256,
    400,
    441,
    512,
    960,
    1000,
    1024,
    2048,
    4000,
    4096,
    8192,
    16_000,
    16_384,
    32_768,
    44_100,
    65_536,
    262_144,
)
PLANES = (
    (64, 64),
    (100, 100),
    (128, 128),
    (240, 121),
    (256, 256),
    (320, 320),
    (384, 640),
    (512, 512),
    (720, 1440),
)
PLANES += ((1000, 1000), (1024, 1024), (2048, 2048), (64, 85), (421, 421))
CUBES = (
    (16, 16, 16),
    (32, 32, 32),
    (48, 48, 48),
    (64, 64, 64),
    (64, 64, 20),
    (100, 100, 100),
    (128, 128, 128),
    (256, 256, 256),
)


def cases():
    for real, whole in ((torch.float32, torch.complex64), (torch.float64, torch.complex128)):
        for sizes in (*((n,) for n in LINES), *PLANES, *CUBES):
            for batch in (1, 8, 64):
                values = batch
                for n in sizes:
                    values *= n
                if values > 1 << 25:
                    continue
                rank = len(sizes)
                dims = tuple(range(-rank, 0))
                x = torch.randn(batch, *sizes, dtype=real, device="cuda")
                c = torch.randn(batch, *sizes, dtype=whole, device="cuda")
                h = torch.randn(batch, *sizes[:-1], sizes[-1] // 2 + 1, dtype=whole, device="cuda")
                words = dict(sizes=sizes, batch=batch, type=str(real)[6:])
                yield words | dict(operation="fftn"), lambda: F.fftn(c, dim=dims)
                yield words | dict(operation="rfftn"), lambda: F.rfftn(x, dim=dims)
                yield words | dict(operation="irfftn"), lambda: F.irfftn(h, s=sizes, dim=dims)
                if rank > 1:
                    yield words | dict(operation="fft along the first"), lambda: F.fft(c, dim=1)
                    yield words | dict(operation="rfft along the first"), lambda: F.rfft(x, dim=1)
                if rank == 1 and sizes[0] <= 4096:
                    wave = torch.randn(batch, 65_536, dtype=real, device="cuda")
                    window = torch.hann_window(sizes[0], dtype=real, device="cuda")
                    stft = lambda: torch.stft(wave, sizes[0], window=window, return_complex=True)
                    yield words | dict(operation="stft"), stft


def main():
    with open(sys.argv[1], "w") as file:
        head = dict(
            device=torch.cuda.get_device_name(),
            torch=torch.__version__,
            date=time.strftime("%Y-%m-%d"),
        )
        file.write(json.dumps(head) + "\n")
        for row, call in cases():
            call()
            file.write(json.dumps(row | traced(call)) + "\n")


main()
