"""Times by CUDA events, on a real GPU and on a virtual one: `python clock.py OUT.json [ops|pads|all]`.

`ops`: matrix products (aligned and not), convolutions, element-wise work, copies. `pads`: what
Inductor measured for `gpt2_b8_compiled` when it decided which products to pad, and its code.
"""

import json
import os
import statistics
import sys

import torch

out = dict(gpu=torch.cuda.get_device_name(0), torch=torch.__version__, ms={})
FLUSH = torch.empty(64 << 20, dtype=torch.int32, device="cuda")


def take(name, body, repeats=7):
    body()
    times = []
    for _ in range(repeats):
        FLUSH.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        body()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    out["ms"][name] = statistics.median(times)


DTYPES = dict(
    bf16=torch.bfloat16,
    fp16=torch.float16,
    fp32=torch.float32,
    tf32=torch.float32,
    fp64=torch.float64,
    c64=torch.complex64,
)
SHAPES = [
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (1024, 1024, 1024),
    (256, 256, 256),
    (64, 64, 64),
    (1, 4096, 4096),
    (16, 4096, 4096),
    (8192, 768, 3072),
    (128, 16384, 128),
]
ODD = [
    (4097, 4096, 4096),
    (4096, 4097, 4096),
    (4096, 4096, 4097),
    (4098, 4098, 4098),
    (4100, 4100, 4100),
    (4104, 4104, 4104),
    (1025, 1025, 1025),
]
VOCABULARY = (
    [(8192, 768, n) for n in (50256, 50257, 50258, 50260, 50264, 50304)]
    + [(8192, n, 768) for n in (50257, 50264)]
    + [(n, 8192, 768) for n in (50257, 50264)]
)


def products():
    for kind, dtype in DTYPES.items():
        torch.backends.cuda.matmul.fp32_precision = "tf32" if kind == "tf32" else "ieee"
        shapes = SHAPES + ODD + (VOCABULARY if kind in ("bf16", "fp16", "tf32") else [])
        for m, k, n in (
            shapes if kind not in ("fp64", "c64") else SHAPES[:1] + SHAPES[2:4] + ODD[:2]
        ):
            for turned in ("nn", "nt", "tn") if kind in ("bf16", "tf32") else ("nn",):
                a = (
                    torch.randn(k, m, device="cuda").to(dtype).t()
                    if turned == "tn"
                    else torch.randn(m, k, device="cuda").to(dtype)
                )
                b = (
                    torch.randn(n, k, device="cuda").to(dtype).t()
                    if turned == "nt"
                    else torch.randn(k, n, device="cuda").to(dtype)
                )
                take(f"mm {kind} {turned} {m} {k} {n}", lambda: torch.mm(a, b))
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    for kind in ("bf16", "fp32"):
        for batch, m, k, n in [
            (96, 1024, 64, 1024),
            (96, 1024, 1024, 64),
            (96, 1023, 64, 1023),
            (512, 32, 32, 32),
        ]:
            a, b = (
                torch.randn(batch, m, k, device="cuda").to(DTYPES[kind]),
                torch.randn(batch, k, n, device="cuda").to(DTYPES[kind]),
            )
            take(f"bmm {kind} {batch} {m} {k} {n}", lambda: torch.bmm(a, b))
        bias, a, b = (
            torch.randn(3072, device="cuda").to(DTYPES[kind]),
            torch.randn(8192, 768, device="cuda").to(DTYPES[kind]),
            torch.randn(3072, 768, device="cuda").to(DTYPES[kind]),
        )
        take(f"linear {kind} 8192 768 3072", lambda: torch.nn.functional.linear(a, b, bias))


def elements():
    for kind in ("fp32", "bf16"):
        for log in range(10, 29, 3):
            x, y = (
                torch.randn(1 << log, device="cuda").to(DTYPES[kind]),
                torch.randn(1 << log, device="cuda").to(DTYPES[kind]),
            )
            for name, body in dict(
                add=lambda: x + y,
                add_=lambda: x.add_(y),
                zero_=lambda: x.zero_(),
                copy_=lambda: x.copy_(y),
                cast=lambda: x.double(),
                sum=lambda: x.sum(),
                gelu=lambda: torch.nn.functional.gelu(x),
                strided=lambda: x.view(-1, 32).t().contiguous(),
            ).items():
                take(f"{name} {kind} {1 << log}", body)
        for rows, columns in [(8192, 768), (8192, 50257), (64, 64)]:
            x, w = (
                torch.randn(rows, columns, device="cuda").to(DTYPES[kind]),
                torch.randn(columns, device="cuda").to(DTYPES[kind]),
            )
            take(f"softmax {kind} {rows} {columns}", lambda: x.softmax(-1))
            take(
                f"layer_norm {kind} {rows} {columns}",
                lambda: torch.nn.functional.layer_norm(x, (columns,), w, w),
            )
            take(f"cat {kind} {rows} {columns}", lambda: torch.cat([x, x[:, :7]], 1))
        q = torch.randn(8, 12, 1024, 64, device="cuda").to(DTYPES[kind])
        take(
            f"attention {kind} 8 12 1024 64",
            lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True),
        )
    for log in range(10, 29, 6):
        device, pinned, host = (
            torch.empty(1 << log, dtype=torch.uint8, device="cuda"),
            torch.empty(1 << log, dtype=torch.uint8).pin_memory(),
            torch.empty(1 << log, dtype=torch.uint8),
        )
        take(f"h2d pinned {1 << log}", lambda: device.copy_(pinned, non_blocking=True))
        take(f"h2d pageable {1 << log}", lambda: device.copy_(host))
        take(f"d2h pinned {1 << log}", lambda: pinned.copy_(device, non_blocking=True))
    take("nothing", lambda: None)


def convolutions():
    for kind in ("fp32", "bf16"):
        for n, c, hw, k, r, s in [
            (32, 3, 224, 64, 7, 2),
            (32, 64, 56, 64, 3, 1),
            (32, 256, 14, 256, 3, 1),
            (32, 256, 56, 64, 1, 1),
            (64, 512, 28, 512, 3, 1),
        ]:
            x = torch.randn(n, c, hw, hw, device="cuda").to(DTYPES[kind])
            w = torch.randn(k, c, r, r, device="cuda").to(DTYPES[kind])
            for channels_last in (False, True):
                if channels_last:
                    x, w = (
                        x.contiguous(memory_format=torch.channels_last),
                        w.contiguous(memory_format=torch.channels_last),
                    )
                take(
                    f"conv {kind} {n} {c} {hw} {k} {r} {s} {'nhwc' if channels_last else 'nchw'}",
                    lambda: torch.nn.functional.conv2d(x, w, None, s, r // 2),
                )
                y = torch.nn.functional.conv2d(x, w, None, s, r // 2)
                take(
                    f"conv-back {kind} {n} {c} {hw} {k} {r} {s} {'nhwc' if channels_last else 'nchw'}",
                    lambda: torch.ops.aten.convolution_backward(
                        y,
                        x,
                        w,
                        None,
                        [s, s],
                        [r // 2] * 2,
                        [1, 1],
                        False,
                        [0, 0],
                        1,
                        [True, True, False],
                    ),
                )


def pads(where):
    import torch._inductor.fx_passes.pad_mm as pad_mm

    real, out["pads"] = pad_mm.is_padded_faster, []

    def listen(key, plain, padded):
        answer = real(key, plain, padded)
        out["pads"].append((key, plain, padded, answer))
        return answer

    pad_mm.is_padded_faster = listen
    sys.path.insert(
        0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "accuracy", "jobs")
    )
    import torch_compile
    import training

    out["job"] = training.run("gpt2_b8_compiled", torch_compile.JOBS)
    cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    os.system(f"cd {cache} && grep -rl 'def call' --include=*.py . | tar czf {where}.code.tgz -T -")


if __name__ == "__main__":
    what = sys.argv[2] if len(sys.argv) > 2 else "all"
    if what in ("ops", "all"):
        products()
        elements()
        convolutions()
    if what in ("pads", "all"):
        pads(sys.argv[1])
    json.dump(out, open(sys.argv[1], "w"), indent=0)
    sys.stdout.flush()
    os._exit(0)
