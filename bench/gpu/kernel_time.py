"""What single kernels take the GPU, by class, type and size; `step_time.py` runs it under PyTorch's profiler.

Each section issues operators with each size several times; the profile says what each launch took. The operands are
those of the last turn, so what fits into the L2 cache is there, as in a network.
"""

import torch
from torch.nn import functional as F

bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
KINDS = (bf16, fp32)


def gaps():
    """Time from one launch to the next on a full queue, microseconds: `gap_us`."""
    x = torch.ones(16, device="cuda")
    found = {}
    for name, body in (("add_", lambda: x.add_(1.0)), ("zero_", x.zero_)):
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            # Something long, so that the queue fills up behind it.
            torch.cuda._sleep(20_000_000)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(500):
                body()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 500 * 1e3)
        found[name] = sorted(times)[2]
    return dict(gap_us=found, properties=str(torch.cuda.get_device_properties(0)))


def make(*shape, dtype=fp32, grad=False):
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(grad)


def take(body, turns=3):
    for _ in range(turns):
        body()


def with_gradients(body, *leaves, turns=2):
    for _ in range(turns):
        y = body()
        y = y[0] if isinstance(y, tuple) else y
        y.backward(torch.ones_like(y))
        for leaf in leaves:
            leaf.grad = None


def elementwise():
    """Sizes from a launch to far beyond the cache."""
    for dtype in (bf16, fp16, fp32):
        for power in (10, 14, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27):
            x = make(1 << power, dtype=dtype)
            y, z = x.clone(), x.clone()
            for body in (
                lambda: x.add_(y),
                lambda: torch.mul(x, y, out=z),
                lambda: torch.relu(x),
                lambda: x.zero_(),
                lambda: F.gelu(x),
                lambda: F.silu(x),
                lambda: x.to(fp32 if dtype != fp32 else bf16),
                lambda: x.sum(),
                lambda: torch.sigmoid(x),
            ):
                take(body)
            if power >= 20:
                leaf = x.requires_grad_()
                with_gradients(lambda: F.gelu(leaf), leaf)
                with_gradients(lambda: F.dropout(leaf, 0.1), leaf)
                x = x.detach()


def layouts():
    """Broadcasts, transposes, concatenation, padding, slices, reductions."""
    for dtype in KINDS:
        for n, c in ((1024, 768), (8192, 768), (8192, 3072), (32768, 1024), (65536, 64)):
            x, row, column = make(n, c, dtype=dtype), make(c, dtype=dtype), make(n, 1, dtype=dtype)
            for body in (
                lambda: x + row,
                lambda: x * column,
                lambda: x.t().contiguous(),
                lambda: torch.cat([x, x], 1),
                lambda: torch.cat([x, x], 0),
                lambda: torch.where(x > 0, x, row),
                lambda: F.pad(x, (1, 1)),
                lambda: x[:, : c // 2].contiguous(),
                lambda: x.view(n // 32, 32, c // 64, 64).transpose(1, 2).contiguous(),
                lambda: x.sum(0),
                lambda: x.sum(1),
                lambda: x.mean(),
                lambda: x.amax(1),
                lambda: x.argmax(1),
                lambda: x.float().pow(2).mean(-1, keepdim=True),
                lambda: torch.cumsum(x, 1),
            ):
                take(body)


def normalization():
    """Normalization, softmax and cross entropy, forward and backward."""
    for dtype in (bf16, fp16, fp32):
        for n, c in (
            (256, 768),
            (2048, 768),
            (8192, 768),
            (8192, 1024),
            (16384, 256),
            (4096, 4096),
            (65536, 96),
        ):
            x, w, b = (
                make(n, c, dtype=dtype, grad=True),
                make(c, dtype=dtype, grad=True),
                make(c, dtype=dtype, grad=True),
            )
            with_gradients(lambda: F.layer_norm(x, (c,), w, b), x, w, b)
            with_gradients(lambda: F.rms_norm(x, (c,), w), x, w)
            with_gradients(lambda: F.softmax(x, -1), x)
        for n, c in ((2048, 50257), (8192, 32000), (4096, 1000), (128, 1000), (1024, 151936)):
            x = make(n, c, dtype=dtype, grad=True)
            target = torch.randint(0, c, (n,), device="cuda")
            with_gradients(lambda: F.cross_entropy(x, target), x)
        for heads, n in ((96, 512), (96, 1024), (32, 2048), (384, 128)):
            x = make(heads, n, n, dtype=dtype, grad=True)
            with_gradients(lambda: F.softmax(x, -1), x)


def images():
    """Normalization and pooling of images."""
    for dtype in (bf16, fp16, fp32):
        for last in (False, True):
            for n, c, r in (
                (32, 64, 112),
                (32, 256, 56),
                (64, 512, 28),
                (32, 2048, 7),
                (128, 128, 14),
                (8, 64, 256),
            ):
                x = torch.randn(n, c, r, r, device="cuda").to(dtype)
                x = (
                    x.contiguous(memory_format=torch.channels_last) if last else x
                ).requires_grad_()
                w, b = make(c, grad=True), make(c, grad=True)
                mean, var = torch.zeros(c, device="cuda"), torch.ones(c, device="cuda")
                with_gradients(lambda: F.batch_norm(x, mean, var, w, b, True), x, w, b)
                with_gradients(lambda: F.max_pool2d(x, 3, 2, 1), x)
                with_gradients(lambda: F.avg_pool2d(x, 2), x)
                with_gradients(lambda: F.adaptive_avg_pool2d(x, 1), x)
                with_gradients(lambda: F.relu(x), x)
                if dtype != fp16:
                    with_gradients(lambda: F.group_norm(x, 8, w.to(dtype), b.to(dtype)), x)
                    with_gradients(lambda: F.interpolate(x, scale_factor=2), x)
                    with_gradients(lambda: F.interpolate(x, scale_factor=2, mode="bilinear"), x)


def indexing():
    """Embedding, gather, scatter, sorting, random numbers."""
    for dtype in KINDS:
        for rows, c, n in (
            (50257, 768, 8192),
            (32000, 2048, 8192),
            (100_000, 64, 131072),
            (1024, 768, 8192),
        ):
            table = make(rows, c, dtype=dtype, grad=True)
            ids = torch.randint(0, rows, (n,), device="cuda")
            with_gradients(lambda: F.embedding(ids, table), table)
            with_gradients(lambda: table[ids], table)
            source = make(n, c, dtype=dtype)
            out = torch.zeros(rows, c, device="cuda", dtype=dtype)
            take(lambda: out.index_add_(0, ids, source))
            wide = ids[:, None].expand(n, c)
            take(lambda: torch.gather(table.detach(), 0, wide))
            take(lambda: out.scatter_add_(0, wide, source))
    for n in (1 << 14, 1 << 20, 1 << 23):
        x = make(n)
        take(lambda: x.sort())
        take(lambda: x.topk(min(n // 4, 1000)))
        take(lambda: torch.randperm(n, device="cuda"))
        take(lambda: torch.randint(0, 10, (n,), device="cuda"))
        take(lambda: torch.randn(n, device="cuda"))
        take(lambda: x.cumsum(0))


def optimizers():
    """Steps over lists of tensors."""
    for sizes in ([768 * 768] * 48, [1000] * 300, [2048 * 5632] * 8, [38_597_376]):
        for dtype in (fp32, bf16):
            weights = [make(size, dtype=dtype, grad=True) for size in sizes]
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            for kind, extra in (
                ("SGD", dict(momentum=0.9)), ("AdamW", {}), ("AdamW", dict(fused=True)), ("RMSprop", {}),
            ):  # fmt: skip
                step = getattr(torch.optim, kind)(weights, lr=1e-4, **extra).step
                take(step, 3)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)


def products():
    """The three products of a linear layer, and batches of products."""
    shapes = [
        (m, k, n)
        for m in (64, 256, 1024, 2048, 4096, 8192, 16384)
        for k, n in ((256, 256), (512, 2048), (768, 768), (768, 3072), (3072, 768), (768, 2304), (1024, 4096), (2048, 2048), (2048, 5632), (4096, 4096))
    ] + [(m, k, n) for m in (16, 32, 128, 512, 6272, 12608) for k, n in ((768, 768), (768, 3072), (2048, 1000), (512, 10), (4096, 1000), (192, 384), (96, 384))] + [
        (8192, 768, 50257), (8192, 768, 50304), (4096, 896, 151936), (8192, 2048, 32000), (512, 768, 30522), (16384, 64, 64), (100352, 64, 256), (25088, 128, 512), (1, 4096, 4096), (8, 4096, 4096),
    ]  # fmt: skip
    for dtype in (bf16, fp16, fp32):
        for m, k, n in shapes:
            if dtype == fp16 and m in (2048, 8192):
                continue
            x, w = make(m, k, dtype=dtype), make(n, k, dtype=dtype)
            b, g = make(n, dtype=dtype), make(m, n, dtype=dtype)
            take(lambda: F.linear(x, w, b), 2)
            take(lambda: F.linear(x, w), 2)
            take(lambda: g @ w, 2)
            take(lambda: g.t() @ x, 2)
    torch.backends.cuda.matmul.allow_tf32 = True
    for m, k, n in shapes[::4]:
        x, w, g = make(m, k), make(n, k), make(m, n)
        take(lambda: F.linear(x, w), 2)
        take(lambda: g @ w, 2)
        take(lambda: g.t() @ x, 2)
    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype in (bf16, fp32):
        for b, m, k, n in (
            (96, 512, 64, 512),
            (96, 512, 512, 64),
            (96, 1024, 64, 1024),
            (384, 128, 64, 128),
            (384, 128, 128, 64),
            (32, 2048, 64, 2048),
            (1024, 49, 32, 49),
            (1024, 49, 49, 32),
            (8, 1024, 1024, 1024),
            (64, 197, 64, 197),
            (512, 32, 32, 32),
        ):
            x, y = make(b, m, k, dtype=dtype), make(b, k, n, dtype=dtype)
            z = make(b, n, k, dtype=dtype)
            take(lambda: x @ y, 2)
            take(lambda: x @ z.transpose(1, 2), 2)
            take(lambda: x.transpose(1, 2) @ x, 2)


def attention():
    """Attention, forward and backward."""
    for dtype in (bf16, fp16, fp32):
        for b, h, n, d in (
            (8, 12, 1024, 64),
            (32, 12, 512, 64),
            (64, 12, 197, 64),
            (4, 32, 2048, 64),
            (32, 4, 128, 64),
            (2, 16, 4096, 128),
            (64, 8, 64, 64),
            (16, 8, 256, 32),
            (16, 12, 196, 80),
        ):
            q, k, v = (make(b, h, n, d, dtype=dtype, grad=True) for _ in range(3))
            for causal in (False, True):
                with_gradients(
                    lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v
                )
            mask = torch.ones(b, 1, n, n, device="cuda", dtype=torch.bool)
            if b * h * n * n < 1 << 28:
                with_gradients(
                    lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), q, k, v
                )


def convolutions():
    """Convolutions, forward and backward."""
    layers = [
        (3, 64, 7, 2, 224, 1), (64, 64, 3, 1, 56, 1), (64, 256, 1, 1, 56, 1), (256, 64, 1, 1, 56, 1), (128, 128, 3, 2, 56, 1),
        (128, 128, 3, 1, 28, 1), (256, 256, 3, 1, 14, 1), (512, 512, 3, 1, 7, 1), (512, 2048, 1, 1, 7, 1), (1024, 256, 1, 1, 14, 1), (256, 512, 1, 2, 56, 1),
        (3, 64, 3, 1, 224, 1), (64, 128, 3, 1, 112, 1), (256, 256, 3, 1, 56, 1), (32, 32, 3, 1, 112, 32), (96, 96, 3, 2, 112, 96), (144, 144, 5, 1, 28, 144),
        (96, 96, 7, 1, 56, 96), (384, 384, 7, 1, 14, 384), (3, 768, 16, 16, 224, 1), (3, 96, 4, 4, 224, 1), (96, 192, 2, 2, 56, 1), (128, 128, 3, 1, 28, 32), (1024, 512, 3, 1, 32, 1), (64, 2, 1, 1, 256, 1), (960, 160, 1, 1, 7, 1), (16, 64, 1, 1, 112, 1), (24, 24, 3, 1, 56, 1),
    ]  # fmt: skip
    for dtype in (bf16, fp16, fp32):
        for last in (False, True):
            for c, f, size, stride, r, groups in layers:
                for n in (32,) if dtype == fp16 else (8, 64):
                    order = torch.channels_last if last else torch.contiguous_format
                    x = torch.randn(n, c, r, r, device="cuda").to(dtype)
                    x = x.contiguous(memory_format=order).requires_grad_()
                    w = torch.randn(f, c // groups, size, size, device="cuda").to(dtype)
                    w = w.contiguous(memory_format=order).requires_grad_()
                    with_gradients(
                        lambda: F.conv2d(
                            x, w, None, stride, size // 2 if stride < 3 else 0, 1, groups
                        ),
                        x,
                        w,
                    )
    for dtype in KINDS:
        for c, f, r in ((1024, 512, 16), (256, 128, 64), (128, 64, 128)):
            x, w = (
                make(8, c, r, r, dtype=dtype, grad=True),
                make(c, f, 2, 2, dtype=dtype, grad=True),
            )
            with_gradients(lambda: F.conv_transpose2d(x, w, stride=2), x, w)
        x, w = (
            make(16, 256, 1024, dtype=dtype, grad=True),
            make(256, 256, 3, dtype=dtype, grad=True),
        )
        with_gradients(lambda: F.conv1d(x, w, padding=1), x, w)
        x, w = (
            make(4, 32, 32, 32, 32, dtype=dtype, grad=True),
            make(64, 32, 3, 3, 3, dtype=dtype, grad=True),
        )
        with_gradients(lambda: F.conv3d(x, w, padding=1), x, w)


SECTIONS = dict(
    elementwise=elementwise,
    layouts=layouts,
    normalization=normalization,
    images=images,
    indexing=indexing,
    optimizers=optimizers,
    products=products,
    attention=attention,
    convolutions=convolutions,
)
