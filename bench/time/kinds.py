"""Kinds of operators that people use, each alone: `python bench/time/kinds.py SECTION [--out FILE]`.

Each case is a step that ends with a tiny optimizer's. With --out, on a GPU, PyTorch's profiler says what its kernels take:
`{"case", "us", "kernels": [[name, grid, block, us], …]}` a line, the tiny optimizer's among them. Under `oomph run` the
record's steps are the cases in order, so `compare_kinds.py` compares both.
"""

import argparse
import json
import os
import random
import tempfile

import torch
from torch.nn import functional as F

bf16, fp16, fp32, fp64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def r(*shape, dtype=fp32, grad=False):
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(grad)


def ints(high, *shape):
    return torch.randint(0, high, shape, device="cuda")


def trained(make, *leaves):
    """Forward and backward."""

    def body():
        y = make()
        y = y[0] if isinstance(y, tuple) else y
        y.backward(torch.ones_like(y))
        for leaf in leaves:
            leaf.grad = None

    return body


def layer(module, *given, pick=None, cast=None):
    module = module.cuda()
    leaves = [*module.parameters(), *[x for x in given if x.requires_grad]]

    def make():
        with torch.autocast("cuda", dtype=cast or bf16, enabled=cast is not None):
            y = module(*given)
        y = y[0] if isinstance(y, tuple) else y
        return y.to_dense() if y.is_sparse else y

    return trained(make, *leaves)


def moving():
    x, big = r(4096, 4096), r(64, 128, 56, 56)
    rows, long = ints(4096, 65536), r(16_000_000)
    h, flow = r(16, 64, 64, 64, grad=True), torch.rand(16, 128, 128, 2, device="cuda") * 2 - 1
    v, leaf = r(65536, 128), r(4096, 4096, grad=True)
    mask = x > 1
    return {
        "sort_rows": lambda: x.sort(-1),
        "sort_long": lambda: long.sort(),
        "topk_rows": lambda: x.topk(16, -1),
        "topk_wide": lambda: r_wide.topk(50, -1),
        "cumsum_rows": lambda: x.cumsum(-1),
        "cumsum_columns": lambda: x.cumsum(0),
        "logcumsumexp": lambda: x.logcumsumexp(-1),
        "scatter_add": lambda: torch.zeros(4096, 128, device="cuda").scatter_add_(0, rows[:, None].expand(-1, 128), v),
        "index_add": lambda: torch.zeros(4096, 128, device="cuda").index_add_(0, rows, v),
        "index_put_accumulate": lambda: torch.zeros(4096, 128, device="cuda").index_put_((rows,), v, accumulate=True),
        "gather": lambda: x.gather(1, ints_wide),
        "index_select_train": trained(lambda: leaf.index_select(0, rows[:8192]), leaf),
        "advanced_index_train": trained(lambda: leaf[rows[:8192]], leaf),
        "roll": lambda: big.roll((3, 3), (2, 3)),
        "flip": lambda: big.flip(-1),
        "interpolate_bilinear": trained(lambda: F.interpolate(h, scale_factor=2, mode="bilinear"), h),
        "interpolate_bicubic": trained(lambda: F.interpolate(h, scale_factor=2, mode="bicubic"), h),
        "interpolate_nearest": trained(lambda: F.interpolate(h, scale_factor=2), h),
        "grid_sample": trained(lambda: F.grid_sample(h, flow, align_corners=False), h),
        "reflection_pad": trained(lambda: F.pad(h, (4, 4, 4, 4), mode="reflect"), h),
        "broadcast_strided": lambda: big * big.transpose(2, 3),
        "where_mask": lambda: torch.where(mask, x, x.t()),
    }  # fmt: skip


def reducing():
    x, leaf = r(4096, 4096), r(4096, 4096, grad=True)
    h = r(32, 128, 56, 56, grad=True)
    half = r(32, 128, 56, 56, dtype=bf16, grad=True)
    table, bags = torch.nn.EmbeddingBag(50_000, 128, mode="mean"), ints(50_000, 8192, 20)
    lengths = torch.full((4096,), 16, device="cuda", dtype=torch.int64)
    values = r(65536, 64)
    logits = r(8192, 8192, grad=True)
    a, b = r(4096, 512, grad=True), r(4096, 512, grad=True)
    volume = r(4, 32, 32, 64, 64, grad=True)
    return {
        "group_norm": layer(torch.nn.GroupNorm(16, 128), h),
        "instance_norm": layer(torch.nn.InstanceNorm2d(128, affine=True), h),
        "batch_norm_bf16": layer(torch.nn.BatchNorm2d(128), half),
        "batch_norm_1d": layer(torch.nn.BatchNorm1d(4096), leaf),
        "rms_norm": layer(torch.nn.RMSNorm(4096), leaf),
        "local_response": layer(torch.nn.LocalResponseNorm(5), h),
        "max_pool": layer(torch.nn.MaxPool2d(3, 2, 1), h),
        "max_pool_3d": layer(torch.nn.MaxPool3d(2), volume),
        "avg_pool": layer(torch.nn.AvgPool2d(3, 2, 1), h),
        "adaptive_pool": layer(torch.nn.AdaptiveAvgPool2d(7), h),
        "embedding_bag": layer(table, bags),
        "embedding": layer(torch.nn.Embedding(50_000, 512), bags),
        "segment_reduce": lambda: torch.segment_reduce(values, "sum", lengths=lengths),
        "cross_entropy": trained(lambda: F.cross_entropy(logits, bags[:, 0] % 8192), logits),
        "kl_div": trained(lambda: F.kl_div(logits.log_softmax(-1), x.repeat(2, 2).softmax(-1), reduction="batchmean"), logits),
        "cosine": trained(lambda: F.cosine_similarity(a, b), a, b),
        "cdist": trained(lambda: torch.cdist(a[:1024], b[:1024]), a, b),
        "std": trained(lambda: leaf.std(-1), leaf),
        "sum_columns": lambda: x.sum(0),
        "argmax": lambda: x.argmax(0),
        "logsumexp": trained(lambda: leaf.logsumexp(-1), leaf),
        "norm_all": lambda: x.norm(),
    }  # fmt: skip


def layers():
    nn = torch.nn
    seq, long = r(32, 256, 256, grad=True), r(16, 64, 4096, grad=True)
    h, volume = r(32, 128, 28, 28, grad=True), r(2, 32, 32, 64, 64, grad=True)
    last = (
        r(32, 128, 28, 28, grad=True)
        .detach()
        .contiguous(memory_format=torch.channels_last)
        .requires_grad_()
    )
    q = [r(8, 12, 512, 64, dtype=bf16, grad=True) for _ in range(3)]
    q32 = [r(8, 12, 512, 64, grad=True) for _ in range(3)]
    bias = r(1, 12, 512, 512, dtype=bf16)
    log, target = r(200, 32, 64, grad=True), ints(63, 32, 40) + 1
    return {
        "lstm": layer(nn.LSTM(256, 512, 2, batch_first=True), seq),
        "gru_both": layer(nn.GRU(256, 256, bidirectional=True, batch_first=True), seq),
        "lstm_bf16": layer(nn.LSTM(256, 512, 2, batch_first=True), seq, cast=bf16),
        "rnn": layer(nn.RNN(256, 512, batch_first=True), seq),
        "conv_1d": layer(nn.Conv1d(64, 128, 9, padding=4), long),
        "conv_1d_bf16": layer(nn.Conv1d(64, 128, 9, padding=4), long, cast=bf16),
        "conv_1d_depthwise": layer(nn.Conv1d(64, 64, 31, padding=15, groups=64), long),
        "conv_1d_dilated": layer(nn.Conv1d(64, 64, 3, padding=16, dilation=16), long),
        "conv_3d": layer(nn.Conv3d(32, 64, 3, padding=1), volume),
        "conv_3d_bf16": layer(nn.Conv3d(32, 64, 3, padding=1), volume, cast=bf16),
        "transposed_2d": layer(nn.ConvTranspose2d(128, 64, 4, 2, 1), h),
        "transposed_2d_bf16": layer(nn.ConvTranspose2d(128, 64, 4, 2, 1), h, cast=bf16),
        "depthwise": layer(nn.Conv2d(128, 128, 3, padding=1, groups=128), h),
        "depthwise_last_bf16": layer(nn.Conv2d(128, 128, 7, padding=3, groups=128), last, cast=bf16),
        "grouped": layer(nn.Conv2d(128, 256, 3, padding=1, groups=16), h),
        "grouped_bf16": layer(nn.Conv2d(128, 256, 3, padding=1, groups=16), h, cast=bf16),
        "attention_masked": trained(lambda: F.scaled_dot_product_attention(*q, attn_mask=bias), *q),
        "attention_causal": trained(lambda: F.scaled_dot_product_attention(*q, is_causal=True), *q),
        "attention_fp32": trained(lambda: F.scaled_dot_product_attention(*q32), *q32),
        "multihead": layer(nn.MultiheadAttention(256, 8, batch_first=True), seq, seq, seq),
        "ctc": trained(lambda: F.ctc_loss(log.log_softmax(-1), target, torch.full((32,), 200), torch.full((32,), 40)), log),
        "unfold": layer(nn.Unfold(3, padding=1), h),
    }  # fmt: skip


def algebra():
    square, batch = r(1024, 1024), r(64, 128, 128)
    positive = square @ square.t() + 1024 * torch.eye(1024, device="cuda")
    many = batch @ batch.mT + 128 * torch.eye(128, device="cuda")
    signal, picture = r(64, 16384), r(16, 3, 512, 512)
    c = torch.complex(r(2048, 2048), r(2048, 2048))
    small, a, b = r(4096, 32, 32, dtype=bf16), r(64, 128, 64), r(64, 64, 256)
    parameters = [r(256, 256, grad=True) for _ in range(60)]
    plain = [p.detach() for p in parameters]
    first, second, third = ([torch.ones_like(p) for p in plain] for _ in range(3))

    def adam():
        for p, g, m, v in zip(plain, third, first, second):
            m.lerp_(g, 0.1)
            v.mul_(0.99).addcmul_(g, g, value=0.01)
            p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-4)

    sparse = torch.sparse_coo_tensor(ints(8192, 2, 200_000), r(200_000), (8192, 8192)).coalesce()
    csr, dense = sparse.to_sparse_csr(), r(8192, 128)
    i8 = torch.randint(-128, 127, (2048, 2048), device="cuda", dtype=torch.int8)
    tall = r(8192, 64)
    return {
        "cholesky": lambda: torch.linalg.cholesky(positive),
        "cholesky_batch": lambda: torch.linalg.cholesky(many),
        "solve": lambda: torch.linalg.solve(positive, square[:, :16]),
        "solve_batch": lambda: torch.linalg.solve(many, batch),
        "triangular": lambda: torch.linalg.solve_triangular(square, square, upper=True),
        "inverse": lambda: torch.linalg.inv(positive),
        "determinant_batch": lambda: torch.linalg.slogdet(many),
        "qr": lambda: torch.linalg.qr(tall),
        "qr_square": lambda: torch.linalg.qr(square),
        "eigh": lambda: torch.linalg.eigh(positive[:512, :512].contiguous()),
        "svd": lambda: torch.linalg.svd(square[:256, :256].contiguous()),
        "matrix_exp": lambda: torch.linalg.matrix_exp(many / 1000),
        "fft": lambda: torch.fft.fft(signal),
        "rfft_back": lambda: torch.fft.irfft(torch.fft.rfft(signal)),
        "fft_2d": lambda: torch.fft.fft2(picture),
        "stft": lambda: torch.stft(signal, 1024, 256, window=torch.hann_window(1024, device="cuda"), return_complex=True),
        "complex_product": lambda: (c @ c) * c.conj(),
        "small_products": lambda: small @ small,
        "einsum": lambda: torch.einsum("bij,bjk,bik->bi", a, b, (a @ b)),
        "adam_for_loop": adam,
        "sparse_product": lambda: csr @ dense,
        "int8_product": lambda: torch._int_mm(i8, i8),
    }  # fmt: skip


def attention():
    """Batch, heads, heads of keys, length, width of a head."""
    cases = {}
    shapes = [
        (64, 12, 12, 64, 64), (32, 12, 12, 128, 64), (16, 12, 12, 256, 64), (16, 12, 12, 512, 64), (8, 16, 16, 1024, 64),
        (4, 16, 16, 2048, 64), (2, 16, 16, 4096, 64), (1, 32, 32, 512, 128), (4, 32, 8, 1024, 128), (1, 32, 8, 4096, 128),
        (1, 32, 8, 8192, 128), (1, 8, 8, 16384, 128), (128, 4, 4, 49, 32), (8, 8, 8, 1024, 80), (1, 4, 4, 128, 128),
    ]  # fmt: skip
    for dtype, name in ((bf16, "bf16"), (fp32, "fp32")):
        for b, heads, keys, length, width in shapes:
            if dtype is fp32 and length > 2048:
                continue
            q = r(b, heads, length, width, dtype=dtype, grad=True)
            k, v = (r(b, keys, length, width, dtype=dtype, grad=True) for _ in range(2))
            gqa = heads != keys
            for causal in (False, True):

                def make(q=q, k=k, v=v, causal=causal, gqa=gqa):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa)

                def alone(make=make):
                    with torch.no_grad():
                        make()

                case = f"{name}_{b}x{heads}_{keys}x{length}x{width}{'_causal' * causal}"
                cases[case] = alone
                if length <= 4096:
                    cases[f"{case}_trained"] = trained(make, q, k, v)
    return cases


def grouped():
    """Images, channels, side, filters, window, groups, stride."""
    cases = {}
    shapes = [
        (32, 72, 56, 72, 3, 3, 1), (32, 216, 28, 216, 3, 9, 1), (32, 576, 14, 576, 3, 24, 1), (32, 216, 56, 216, 3, 9, 2),
        (32, 1512, 7, 1512, 3, 63, 1), (16, 128, 56, 128, 3, 32, 1), (16, 256, 28, 256, 3, 32, 1), (16, 512, 14, 512, 3, 32, 1),
        (16, 256, 56, 256, 3, 32, 2), (16, 1024, 14, 1024, 3, 32, 1), (32, 116, 28, 116, 1, 2, 1), (32, 64, 56, 64, 5, 4, 1),
        (32, 96, 56, 96, 3, 96, 1), (32, 96, 56, 96, 5, 96, 2), (32, 384, 14, 384, 5, 384, 1), (32, 96, 56, 96, 7, 96, 1),
    ]  # fmt: skip
    for dtype, name in ((fp32, "fp32"), (bf16, "bf16")):
        for last in (False, True):
            for n, channels, side, filters, window, groups, stride in shapes:
                x = r(n, channels, side, side, dtype=dtype)
                w = r(filters, channels // groups, window, window, dtype=dtype)
                if last:
                    x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
                x, w = x.requires_grad_(), w.requires_grad_()

                def make(x=x, w=w, window=window, groups=groups, stride=stride):
                    return F.conv2d(x, w, None, stride, window // 2, groups=groups)

                def alone(make=make):
                    with torch.no_grad():
                        make()

                case = f"{name}_{n}x{channels}x{side}_{filters}_{window}_{groups}_{stride}{'_last' * last}"
                cases[case] = alone
                cases[f"{case}_trained"] = trained(make, x, w)
    # Each word by itself, as SqueezeBERT has it: a window of one, groups of four.
    for dtype, name in ((fp32, "fp32"), (bf16, "bf16")):
        for channels, filters in ((768, 768), (768, 3072), (3072, 768)):
            x = r(16, channels, 128, dtype=dtype, grad=True)
            w = r(filters, channels // 4, 1, dtype=dtype, grad=True)

            def make(x=x, w=w):
                return F.conv1d(x, w, groups=4)

            def alone(make=make):
                with torch.no_grad():
                    make()

            cases[f"{name}_words_{channels}_{filters}"] = alone
            cases[f"{name}_words_{channels}_{filters}_trained"] = trained(make, x, w)
    return cases


def shapes():
    """Kinds that depend on how long rows are, each in several shapes."""
    cases = {}

    def add(name, body, *leaves):
        cases[name] = trained(body, *leaves) if leaves else body

    for rows, size in ((458_752, 16), (1 << 20, 8), (65_536, 64), (16_384, 256), (2048, 2048), (64, 65_536), (16, 2048), (1, 4_000_000)):  # fmt: skip
        x, leaf = r(rows, size), r(rows, size, grad=True)
        add(f"cumsum_{rows}x{size}", lambda x=x: x.cumsum(-1))
        add(f"sort_{rows}x{size}", lambda x=x: x.sort(-1))
        add(f"sum_{rows}x{size}", lambda x=x: x.sum(-1))
        add(f"argmax_{rows}x{size}", lambda x=x: x.argmax(-1))
        add(f"amax_trained_{rows}x{size}", lambda leaf=leaf: leaf.amax(-1), leaf)
        add(f"sum_first_{rows}x{size}", lambda x=x: x.sum(0))
        if size <= 4096:
            add(f"topk_{rows}x{size}", lambda x=x, k=min(8, size // 2): x.topk(k, -1))
            add(f"softmax_trained_{rows}x{size}", lambda leaf=leaf: leaf.softmax(-1), leaf)
    for batch, length, width in ((8, 2048, 1024), (64, 128, 512), (16, 4096, 16), (2048, 24, 64)):
        x = r(batch, length, width)
        add(f"cumsum_middle_{batch}x{length}x{width}", lambda x=x: x.cumsum(1))
        add(f"sum_middle_{batch}x{length}x{width}", lambda x=x: x.sum(1))
        add(f"flip_middle_{batch}x{length}x{width}", lambda x=x: x.flip(1))
        add(f"max_middle_{batch}x{length}x{width}", lambda x=x: x.max(1))
        add(f"softmax_middle_{batch}x{length}x{width}", lambda x=x: x.softmax(1))
        add(
            f"where_rows_{batch}x{length}x{width}", lambda x=x: torch.where(x[:, :, :1] > 0, x, 0.0)
        )
    for count, width, of in ((1_000_000, 64, 50_000), (200_000, 128, 20_000), (4_000_000, 3, 100_000), (65_536, 512, 4096), (30_000, 16, 2000)):  # fmt: skip
        edges, values, nodes = ints(of, count), r(count, width), r(of, width, grad=True)
        add(
            f"index_add_{count}x{width}_{of}",
            lambda e=edges, v=values, n=nodes: torch.zeros_like(n).index_add_(0, e, v),
        )
        add(
            f"scatter_add_{count}x{width}_{of}",
            lambda e=edges, v=values, n=nodes: torch.zeros_like(n).scatter_add_(
                0, e[:, None].expand_as(v), v
            ),
        )
        add(f"take_{count}x{width}_{of}", lambda e=edges, n=nodes: n[e], nodes)
        add(f"select_{count}x{width}_{of}", lambda e=edges, n=nodes: n.index_select(0, e), nodes)
        add(f"embedding_{count}x{width}_{of}", lambda e=edges, n=nodes: F.embedding(e, n), nodes)
        add(
            f"gather_{count}x{width}",
            lambda v=values: v.gather(1, torch.zeros(len(v), 1, device="cuda", dtype=torch.int64)),
        )
        add(f"masked_{count}x{width}", lambda v=values: v[v[:, 0] > 0])
    for dtype, name in ((fp32, "fp32"), (bf16, "bf16")):
        for n, c, side, filters, window, stride in ((2, 1, 64, 32, 3, 1), (2, 32, 64, 32, 3, 1), (4, 64, 32, 64, 3, 1), (2, 64, 32, 128, 3, 2), (8, 128, 16, 128, 3, 1), (4, 256, 8, 256, 3, 1), (2, 32, 64, 64, 1, 1), (8, 3, 32, 64, 5, 2)):  # fmt: skip
            x = r(n, c, side, side, side, dtype=dtype, grad=True)
            w = r(filters, c, window, window, window, dtype=dtype, grad=True)
            case = f"conv3d_{name}_{n}x{c}x{side}_{filters}_{window}_{stride}"
            make = lambda x=x, w=w, s=stride, p=window // 2: F.conv3d(x, w, None, s, p)  # noqa: E731
            add(case, lambda make=make: make().detach())
            add(f"{case}_trained", make, x, w)
        for n, c, side in ((2, 32, 64), (8, 64, 16)):
            x = r(n, c, side, side, side, dtype=dtype, grad=True)
            cases[f"batch_norm_3d_{name}_{n}x{c}x{side}"] = layer(torch.nn.BatchNorm3d(c), x)
            add(f"max_pool_3d_{name}_{n}x{c}x{side}", lambda x=x: F.max_pool3d(x, 2), x)
            add(
                f"interpolate_3d_{name}_{n}x{c}x{side}",
                lambda x=x: F.interpolate(x, scale_factor=2, mode="trilinear"),
                x,
            )
        for kind, (b, t, d, h) in ((k, s) for k in ("LSTM", "GRU", "RNN") for s in ((64, 128, 256, 256), (16, 200, 512, 1024), (256, 32, 128, 128))):  # fmt: skip
            x = r(b, t, d, grad=True)
            module = getattr(torch.nn, kind)(d, h, batch_first=True)
            cases[f"{kind}_{name}_{b}x{t}x{d}_{h}"] = layer(
                module, x, cast=None if dtype is fp32 else bf16
            )
        for b, heads, t, d in ((8, 12, 512, 64), (32, 8, 128, 32), (2, 16, 2048, 64), (64, 4, 64, 64)):  # fmt: skip
            q, k, v = (r(b, heads, t, d, dtype=dtype, grad=True) for _ in range(3))
            mask = r(b, 1, t, t, dtype=dtype)
            make = lambda q=q, k=k, v=v, m=mask: F.scaled_dot_product_attention(
                q, k, v, attn_mask=m
            )  # noqa: E731
            add(f"attention_masked_{name}_{b}x{heads}x{t}x{d}", make, q, k, v)
            add(f"products_{name}_{b}x{heads}x{t}x{d}", lambda q=q, k=k: q @ k.mT)
            add(f"adaptive_pool_{name}_{b}x{heads}x{t}", lambda m=mask: F.adaptive_avg_pool2d(m, 4))
    return cases


def recurrent():
    """Sizes that `random.Random(27)` draws."""
    draw, cases = random.Random(27), {}
    while len(cases) < 48:
        kind = draw.choice(("LSTM", "LSTM", "GRU", "GRU", "RNN"))
        batch, steps = (
            draw.choice((1, 8, 16, 32, 64, 128, 256, 512)),
            draw.choice((8, 20, 35, 64, 100, 200, 400)),
        )
        given, hidden = (
            draw.choice((8, 40, 64, 128, 256, 512)),
            draw.choice((32, 64, 100, 128, 256, 300, 512, 1024)),
        )
        layers, both, cast = (
            draw.choice((1, 1, 2, 3)),
            draw.random() < 0.3,
            draw.choice((None, None, fp16, bf16)),
        )
        if batch * steps * max(given, hidden) * layers > 60_000_000:
            continue
        module = getattr(torch.nn, kind)(
            given, hidden, layers, bidirectional=both, batch_first=True
        )
        name = f"{kind.lower()}_{given}_{hidden}_b{batch}_t{steps}_l{layers}{'_both' * both}{'_' + str(cast)[6:] if cast else ''}"
        cases[name] = layer(module, r(batch, steps, given, grad=True), cast=cast)
    return cases


def sparse():
    """Products of a sparse matrix without gradients and a dense one with them, sizes that `random.Random(28)` draws."""
    draw, cases = random.Random(28), {}
    while len(cases) < 24:
        rows, degree = (
            draw.choice((1000, 3000, 10_000, 30_000, 100_000, 300_000)),
            draw.choice((2, 4, 8, 16, 32, 64)),
        )
        columns, form = draw.choice((1, 8, 16, 32, 64, 128, 256, 512)), draw.choice(("csr", "coo"))
        if rows * degree > 5_000_000 or rows * columns > 60_000_000:
            continue
        entries = rows * degree
        matrix = torch.sparse_coo_tensor(
            ints(rows, 2, entries), torch.rand(entries, device="cuda"), (rows, rows)
        ).coalesce()
        matrix = matrix.to_sparse_csr() if form == "csr" else matrix
        x = r(rows, columns, grad=True)
        cases[f"{form}_{rows}_{degree}_{columns}"] = trained(
            lambda a=matrix, x=x: torch.sparse.mm(a, x), x
        )
    return cases


def volumes(again):
    """Convolutions in three dimensions, sizes that `random.Random(29)` draws."""
    draw, cases = random.Random(29 + 100 * again), {}
    while len(cases) < 36:
        batch, side, size = (
            draw.choice((1, 2, 4, 8)),
            draw.choice((8, 16, 32, 48, 64, 96)),
            draw.choice((1, 2, 3, 3, 3, 5)),
        )
        given, made, stride = (
            draw.choice((1, 4, 16, 32, 64, 128)),
            draw.choice((2, 16, 32, 64, 128)),
            draw.choice((1, 1, 1, 2)),
        )
        cast, back = draw.choice((None, None, fp16, bf16)), draw.random() < 0.2
        if (
            batch * side**3 * max(given, made) > 40_000_000
            or batch * side**3 * given * made * size**3 / stride**3 > 2e11
        ):
            continue
        module = (
            torch.nn.ConvTranspose3d(given, made, 2, 2)
            if back
            else torch.nn.Conv3d(given, made, size, stride, size // 2)
        )
        name = f"{'back' if back else 'conv'}_{given}_{made}_k{size}_s{stride}_{batch}x{side}{'_' + str(cast)[6:] if cast else ''}"
        cases[name] = layer(module, r(batch, given, side, side, side, grad=True), cast=cast)
    return cases


def thin(again):
    """Convolutions that begin or end with few channels, and long ones, sizes that `random.Random(30)` draws."""
    draw, cases = random.Random(30 + 100 * again), {}
    while len(cases) < 40:
        batch, flat = draw.choice((1, 4, 16, 32, 64)), draw.random() < 0.6
        side = (
            draw.choice((28, 32, 64, 84, 128, 224, 256))
            if flat
            else draw.choice((200, 1000, 4000, 16_000))
        )
        few, many = draw.choice((1, 2, 3, 4, 6)), draw.choice((16, 32, 64, 96, 128))
        given, made = draw.choice(((few, many), (few, many), (many, few), (many, many)))
        size, stride = draw.choice((3, 3, 5, 7) if flat else (3, 7, 9, 15)), draw.choice((1, 1, 2))
        cast, pixels = draw.choice((None, None, fp16, bf16)), side**2 if flat else side
        if (
            batch * pixels * max(given, made) > 100_000_000
            or batch * pixels * given * made * size ** (1 + flat) / stride > 2e11
        ):
            continue
        module = (torch.nn.Conv2d if flat else torch.nn.Conv1d)(
            given, made, size, stride, size // 2
        )
        name = f"{1 + flat}d_{given}_{made}_k{size}_s{stride}_{batch}x{side}{'_' + str(cast)[6:] if cast else ''}"
        cases[name] = layer(module, r(batch, given, *[side] * (1 + flat), grad=True), cast=cast)
    return cases


SECTIONS = dict(
    moving=moving, reducing=reducing, layers=layers, algebra=algebra, attention=attention, grouped=grouped, shapes=shapes,
    recurrent=recurrent, sparse=sparse, volumes=volumes, thin=thin,
)  # fmt: skip


def measured(cases, step):
    """Runs each case under the profiler; what its kernels took."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as done:
        for name, body in cases.items():
            torch.cuda.synchronize()
            with record_function(f"case {name}"):
                body()
                step()
                torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done.export_chrome_trace(file.name)
        with open(file.name) as text:
            events = json.load(text)["traceEvents"]
    spans = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("case ")]  # fmt: skip
    spans = {e["name"][5:]: (e["ts"], e["ts"] + e["dur"]) for e in spans}
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    for name in cases:
        begin, end = spans.get(name, (0, 0))
        own = sorted((e for e in work if begin <= e["ts"] < end), key=lambda e: e["ts"])
        kernels = [[e["name"], e["args"].get("grid", e["args"].get("bytes", 0)), e["args"].get("block", 0), e["dur"]] for e in own]  # fmt: skip
        yield dict(case=name, us=round(sum(e["dur"] for e in own), 2), kernels=kernels)


def main():
    """Run the cases of a section."""
    global r_wide, ints_wide
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--out")
    parser.add_argument("--first", type=int, default=0, help="the first of these cases")
    parser.add_argument("--count", type=int, help="how many: a record keeps 24 steps")
    parser.add_argument("--again", type=int, default=0, help="draw other sizes of volumes and thin")
    options = parser.parse_args()
    torch.manual_seed(0)
    r_wide, ints_wide = r(256, 131_072), ints(4096, 4096, 4096)
    make = SECTIONS[options.section]
    cases = list((make(options.again) if make in (volumes, thin) else make()).items())
    cases = dict(cases[options.first :][: options.count])
    one = torch.ones(1, device="cuda", requires_grad=True)
    one.grad = torch.ones_like(one)
    optimizer = torch.optim.SGD([one], lr=0.1, foreach=False)
    failed = []
    for _ in range(2):
        for name, body in cases.items():
            if name in failed:
                continue
            try:
                body()
            except (RuntimeError, NotImplementedError) as error:
                failed.append(name)
                print(name, "failed:", str(error)[:300], flush=True)
    cases = {name: body for name, body in cases.items() if name not in failed}
    optimizer.step()
    if options.out:
        with open(options.out, "a") as file:
            for row in measured(cases, optimizer.step):
                file.write(json.dumps(dict(section=options.section, **row)) + "\n")
    else:
        for body in cases.values():
            body()
            optimizer.step()
    print("cases:", *cases, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
