"""What single operations take the host: `python bench/gpu/host_time.py` prints microseconds.

The tensors are so small that the GPU never is the slower one, and it is waited for between runs, so that no queue
fills up. The same on tensors of the host, as a machine without a GPU can do it, is `cpu_…`.
"""

import json
import statistics
import time

CALLS, ROUNDS = 150, 7


def measured():
    """Microseconds of each operation: `us`."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    found = {}

    def take(name, body, calls=CALLS, rounds=ROUNDS, before=None, each=1):
        times = []
        for _ in range(rounds + 1):
            if before:
                before()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(calls):
                body()
            times.append((time.perf_counter() - began) / calls / each * 1e6)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found[name] = [round(statistics.median(times[1:]), 3), round(min(times[1:]), 3)]

    def python():
        total = 0
        for i in range(100):
            total += i * i

    class Empty(nn.Module):
        def forward(self, x):
            return x

    take("python_100_turns", python)
    for place in ("cpu", "cuda"):
        at = "cpu_" if place == "cpu" else ""
        x = torch.ones(16, 16, device=place)
        w = torch.ones(16, 16, device=place, requires_grad=True)
        row = torch.ones(16, device=place, requires_grad=True)
        image = torch.ones(2, 16, 8, 8, device=place)
        filters = torch.ones(16, 16, 3, 3, device=place, requires_grad=True)
        half = x.bfloat16()
        empty, linear = Empty(), nn.Linear(16, 16).to(place)
        norm = nn.BatchNorm2d(16).to(place)
        take(at + "module", lambda: empty(x))
        take(at + "empty", lambda: torch.empty(16, 16, device=place))
        take(at + "view", lambda: x.view(256))
        take(at + "transpose", lambda: x.transpose(0, 1))
        take(at + "add", lambda: x + x)
        take(at + "add_", lambda: x.add_(0.0))
        take(at + "relu", lambda: F.relu(x))
        take(at + "mm", lambda: x @ x)
        take(at + "bmm", lambda: torch.bmm(x[None], x[None]))
        take(at + "linear", lambda: F.linear(x, w.detach(), row.detach()))
        take(at + "conv2d", lambda: F.conv2d(image, filters.detach(), padding=1))
        take(at + "to_bf16", lambda: x.bfloat16())
        take(at + "sum", lambda: x.sum())
        take(at + "softmax", lambda: F.softmax(x, -1))
        take(at + "layer_norm", lambda: F.layer_norm(x, (16,)))
        take(at + "cat", lambda: torch.cat([x, x]))
        take(at + "embedding", lambda: F.embedding(torch.zeros_like(x, dtype=torch.long), x), 60)
        take(at + "dropout", lambda: F.dropout(x, 0.1))
        take(at + "copy_contiguous", lambda: x.t().contiguous())
        take(at + "randn", lambda: torch.randn(16, 16, device=place))
        q = torch.ones(1, 2, 16, 16, device=place, dtype=torch.bfloat16)
        take(at + "attention", lambda: F.scaled_dot_product_attention(q, q, q))
        take(at + "add_grad", lambda: w + x)
        take(at + "linear_grad", lambda: F.linear(x, w, row))
        take(at + "conv2d_grad", lambda: F.conv2d(image, filters, padding=1))
        take(at + "batch_norm_grad", lambda: norm(image))
        take(at + "module_linear_grad", lambda: linear(x))

        def cast():
            with torch.autocast(place, dtype=torch.bfloat16):
                F.linear(x, w.detach(), None)

        take(at + "linear_autocast", cast)
        del half

        def chain(make, count=100):
            y = w
            for _ in range(count):
                y = make(y)
            return y.sum() if y.dim() else y

        for name, make in (
            ("mul", lambda y: y * x),
            ("add", lambda y: y + x),
            ("relu", F.relu),
            ("mm", lambda y: y @ x),
            ("layer_norm", lambda y: F.layer_norm(y, (16,))),
            ("view", lambda y: y.view(16, 16)),
        ):
            times = []
            for _ in range(ROUNDS):
                y = chain(make)
                if place == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                y.backward()
                times.append((time.perf_counter() - began) / 100 * 1e6)
            found[f"{at}backward_{name}"] = [
                round(statistics.median(times[1:]), 3),
                round(min(times), 3),
            ]
        for kind in ("SGD", "AdamW"):
            for foreach in (True, False):
                weights = [torch.ones(16, 16, device=place, requires_grad=True) for _ in range(100)]
                for one in weights:
                    one.grad = torch.ones_like(one)
                extra = dict(momentum=0.9) if kind == "SGD" else {}
                opt = getattr(torch.optim, kind)(weights, lr=1e-3, foreach=foreach, **extra)
                take(f"{at}{kind}_100_tensors_foreach_{foreach}", opt.step, 2, 5)
        take(
            at + "zero_grad_100_tensors",
            opt.zero_grad,
            1,
            5,
            lambda: [setattr(one, "grad", torch.ones_like(one)) for one in weights],
        )
        take(at + "item", lambda: x[0, 0].item(), 40)
    if torch.cuda.is_available():
        take("synchronize", torch.cuda.synchronize)
        event = torch.cuda.Event(enable_timing=True)
        take("event", event.record)
        own = torch.ones(16)
        pinned = own.pin_memory()
        take("copy_pageable", lambda: own.cuda(), 40)
        take("copy_pinned", lambda: pinned.to("cuda", non_blocking=True), 40)
        take("copy_back", lambda: x.cpu(), 40)
    return dict(us=found)


if __name__ == "__main__":
    print(json.dumps(measured(), indent=1))
