"""Memory of recurrent layers, which cuDNN takes in work and reserve spaces: python bench/gpu/recurrent.py OUT.jsonl [COUNT]

Layers of random shapes from a fixed seed, one line each: the peak of the forward pass, what it
leaves, and the peak of the backward pass, in bytes. The same script runs on a real and on the virtual
GPU (`oomph run --gpu h200 --quiet bench/gpu/recurrent.py OUT.jsonl`); `compare` holds two outputs
side by side.
"""

import json
import random
import sys


def configurations(count=500):
    draw = random.Random(7)
    for _ in range(count):
        yield dict(
            kind=draw.choice(["LSTM", "LSTM", "GRU", "RNN"]),
            input=draw.choice([1, 10, 28, 64, 80, 100, 128, 200, 256, 300, 512]),
            hidden=draw.choice(
                [8, 16, 32, 50, 64, 64, 100, 128, 128, 200, 256, 256, 300, 384, 512, 650, 1024]
            ),
            batch=draw.choice([1, 4, 8, 16, 20, 32, 50, 64, 96, 128, 256]),
            steps=draw.choice([1, 5, 10, 20, 28, 35, 50, 64, 100, 200, 300]),
            layers=draw.choice([1, 1, 2, 2, 3]),
            bidirectional=draw.random() < 0.3,
            dropout=draw.choice([0.0, 0.0, 0.2]),
            dtype=draw.choice(["float32", "float32", "float32", "float16", "bfloat16"]),
            packed=draw.random() < 0.3,
            train=draw.random() < 0.85,
        )


def measure(torch, c):
    torch.cuda.empty_cache()
    dropout = c["dropout"] if c["layers"] > 1 else 0.0
    m = getattr(torch.nn, c["kind"])(
        c["input"],
        c["hidden"],
        c["layers"],
        batch_first=True,
        bidirectional=c["bidirectional"],
        dropout=dropout,
    )
    m = m.to("cuda", getattr(torch, c["dtype"]))
    m.train(c["train"])
    x = torch.zeros(
        c["batch"], c["steps"], c["input"], device="cuda", dtype=getattr(torch, c["dtype"])
    )
    if c["packed"]:
        lengths = [max(1, c["steps"] - i) for i in range(c["batch"])]
        x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    # What was asked for: what was given depends on the blocks that earlier layers left.
    now = lambda what: torch.cuda.memory_stats()[f"requested_bytes.all.{what}"]
    start = now("current")
    torch.cuda.reset_peak_memory_stats()
    with torch.set_grad_enabled(c["train"]):
        y, h = m(x)
    y = y.data if c["packed"] else y
    forward, kept = now("peak") - start, now("current") - start
    torch.cuda.reset_peak_memory_stats()
    if c["train"]:
        y.sum().backward()
    return dict(c, forward=forward, kept=kept, backward=now("peak") - start)


def compare(first, second):
    keys = ("forward", "kept", "backward")
    exact = total = 0
    with open(first) as a, open(second) as b:
        for x, y in zip(map(json.loads, a), map(json.loads, b)):
            total += 1
            off = {k: (x[k], y[k], y[k] - x[k]) for k in keys if x[k] != y[k]}
            exact += not off
            if off:
                print({k: v for k, v in x.items() if k not in keys}, off)
    print(f"{exact} of {total} alike to the byte")


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        compare(*sys.argv[2:])
        sys.exit()
    import torch

    torch.zeros(8, device="cuda")
    with open(sys.argv[1], "w") as out:
        for c in configurations(*map(int, sys.argv[2:3])):
            out.write(json.dumps(measure(torch, c)) + "\n")
