"""Times of matrix products whose rows are not aligned: python bench/gpu/alignment.py OUT.json

The three products of a language model's head over a vocabulary of n words: forward, the gradient of
the input, the gradient of the weights. `torch.compile` pads such products where that is faster, which
changes memory, so the virtual clock must know.
"""

import json
import sys

import torch


def milliseconds(f):
    for _ in range(3):
        f()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        f()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 10


def main():
    rows = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for n in (30520, 30521, 30522, 30524, 30528, 50257, 50264):
            for tokens, width in ((4096, 768), (2048, 2048)):
                x = torch.zeros(tokens, width, device="cuda", dtype=dtype)
                w = torch.zeros(n, width, device="cuda", dtype=dtype)
                g = torch.zeros(tokens, n, device="cuda", dtype=dtype)
                rows.append(
                    dict(dtype=str(dtype)[6:], n=n, tokens=tokens, width=width,
                         forward=milliseconds(lambda: x @ w.t()), input=milliseconds(lambda: g @ w), weight=milliseconds(lambda: g.t() @ x),
                         weight_other=milliseconds(lambda: x.t() @ g))
                )  # fmt: skip
    with open(sys.argv[1], "w") as file:
        json.dump(dict(gpu=torch.cuda.get_device_name(), rows=rows), file, indent=1)


if __name__ == "__main__":
    main()
