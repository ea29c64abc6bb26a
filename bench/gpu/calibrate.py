"""What only a GPU can show of memory outside PyTorch's allocator and of cuDNN's sizes: `python calibrate.py OUT.json`.

- context: used bytes (total - free - reserved) after each first use of something, in fresh processes;
- addresses: what cudaMalloc returns for sequences of requests, with frees between;
- rnn, batch_norm, ctc: the sizes that cuDNN reports.
"""

import ctypes as C
import itertools
import json
import random
import subprocess
import sys

CONTEXT = {
    # name: statements, each measured after it ran
    "matmul": [
        "torch.cuda.init(); torch.cuda.mem_get_info()",
        "x = torch.zeros(64, device='cuda')",
        "x + 1",
        "a = torch.randn(512, 512, device='cuda', requires_grad=True)",
        "torch.randint(0, 9, (8,), device='cuda')",
        "b = a @ a",
        "b.sum().backward()",
        "h = a.detach().bfloat16(); h @ h",
        "h.half() @ h.half()",
        "torch.bmm(h[None], h[None])",
        "torch.nn.functional.linear(h, h, h[0])",
    ],
    "matmul_bf16_first": [
        "torch.cuda.mem_get_info()",
        "h = torch.randn(512, 512, device='cuda', dtype=torch.bfloat16, requires_grad=True)",
        "y = h @ h",
        "y.sum().backward()",
        "y = torch.nn.functional.linear(h, h, h[0])",
        "y.sum().backward()",
    ],
    "inference": [
        "torch.cuda.mem_get_info()",
        "torch.set_grad_enabled(False); h = torch.randn(512, 512, device='cuda')",
        "h @ h",
        "h.half() @ h.half()",
        "h.bfloat16() @ h.bfloat16()",
    ],
    "conv": [
        "torch.cuda.mem_get_info()",
        "m = torch.nn.Conv2d(64, 64, 3, padding=1, device='cuda'); x = torch.randn(8, 64, 56, 56, device='cuda', requires_grad=True)",
        "y = m(x)",
        "y.sum().backward()",
        "m.bfloat16(); z = m(x.bfloat16())",
        "z.sum().backward()",
        "torch.nn.BatchNorm2d(64, device='cuda')(x).sum().backward()",
        "torch.nn.functional.max_pool2d(y, 2).sum().backward()",
    ],
    "conv_then_matmul": [
        "torch.cuda.mem_get_info()",
        "m = torch.nn.Conv2d(64, 64, 3, padding=1, device='cuda'); x = torch.randn(8, 64, 56, 56, device='cuda', requires_grad=True)",
        "y = m(x)",
        "y.sum().backward()",
        "l = torch.nn.Linear(512, 512, device='cuda'); w = l(torch.randn(32, 512, device='cuda'))",
        "w.sum().backward()",
    ],
    "rnn": [
        "torch.cuda.mem_get_info()",
        "m = torch.nn.LSTM(256, 256, 2, batch_first=True, device='cuda')",
        "y = m(torch.randn(32, 64, 256, device='cuda'))[0]",
        "y.sum().backward()",
    ],
    "sdpa": [
        "torch.cuda.mem_get_info()",
        "q = torch.randn(2, 8, 512, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True)",
        "y = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)",
        "y.sum().backward()",
        "q2 = q.detach().float().requires_grad_(); y = torch.nn.functional.scaled_dot_product_attention(q2, q2, q2)",
        "y.sum().backward()",
    ],
    "flash": [
        "torch.cuda.mem_get_info()",
        "q = torch.randn(2, 8, 512, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True)",
        "from torch.nn.attention import sdpa_kernel, SDPBackend as B; ctx = sdpa_kernel(B.FLASH_ATTENTION); ctx.__enter__()",
        "y = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)",
        "y.sum().backward()",
    ],
    "optimizers": [
        "torch.cuda.mem_get_info()",
        "p = [torch.nn.Parameter(torch.randn(1000, 1000, device='cuda')) for _ in range(8)]\nfor q in p: q.grad = torch.ones_like(q)",
        "torch.optim.SGD(p, lr=.1, momentum=.9).step()",
        "torch.optim.AdamW(p, lr=.1).step()",
        "torch.optim.AdamW(p, lr=.1, fused=True).step()",
    ],
    "kernels": [
        "torch.cuda.mem_get_info()",
        "x = torch.randn(1 << 20, device='cuda', requires_grad=True)",
        "x.sort()",
        "x.detach().unique()",
        "torch.nn.functional.softmax(x.view(1024, -1), 1).sum().backward()",
        "torch.nn.functional.layer_norm(x.view(1024, -1), (1024,)).sum().backward()",
        "torch.nn.Embedding(1000, 64, device='cuda')(torch.arange(64, device='cuda')).sum().backward()",
        "torch.nn.functional.cross_entropy(x.view(1024, -1), torch.arange(1024, device='cuda')).backward()",
        "torch.nn.functional.dropout(x, .1).sum().backward()",
        "torch.fft.rfft(x.detach())",
        "torch.linalg.inv(x.detach()[:10000].view(100, 100))",
        "torch.linalg.svd(x.detach()[:10000].view(100, 100))",
        "x.detach().view(1024, -1).to_sparse() @ x.detach().view(1024, -1)",
    ],
    "streams": [
        "torch.cuda.mem_get_info()",
        "x = torch.zeros(8, device='cuda') + 1",
        "s = [torch.cuda.Stream() for _ in range(4)]\nfor t in s:\n  with torch.cuda.stream(t): x + 1",
        "g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g): x + 1",
        "g.replay()",
        "torch.empty(1 << 28, pin_memory=True)",
    ],
}

CHILD = """
import json, sys, torch
out = []
for code in json.load(sys.stdin):
    exec(code)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    out.append([code[:90], total - free - torch.cuda.memory_reserved(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
print(json.dumps(out))
"""


def context():
    result = {}
    for name, steps in CONTEXT.items():
        r = subprocess.run(
            [sys.executable, "-c", CHILD], input=json.dumps(steps), capture_output=True, text=True
        )
        result[name] = (
            json.loads(r.stdout.splitlines()[-1]) if r.returncode == 0 else r.stderr[-1500:]
        )
    return result


def addresses():
    """Sequences of [request or -index to free, address]."""
    import torch

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    cudart = C.CDLL("libcudart.so.13")
    M, result = 1 << 20, {}
    rng = random.Random(0)
    sequences = {
        "small": [2 * M] * 40 + [20 * M] * 10 + [2 * M] * 10,
        "mixed": [rng.choice([2, 2, 2, 20, 20, 26, 98, 50, 14, 300, 1000]) * M for _ in range(80)],
        "tiny": [1 << 18, 1 << 10, 1 << 19, 10**6, 10**6, M, M + 1, 3 * M + 5] * 3,
        "churn": [],
    }
    live = 0
    for i in range(200):
        if live and rng.random() < 0.4:
            sequences["churn"].append(("free", rng.random()))
            live -= 1
        else:
            sequences["churn"].append(rng.choice([2, 2, 20, 24, 64, 130, 500]) * M)
            live += 1
    for name, sequence in sequences.items():
        held, log = [], []
        for request in sequence:
            if isinstance(request, tuple):
                at = held.pop(int(request[1] * len(held)))
                cudart.cudaFree(C.c_void_p(at))
                log.append(["free", at])
            else:
                p = C.c_void_p()
                status = cudart.cudaMalloc(C.byref(p), C.c_size_t(request))
                held.append(p.value)
                log.append([request, p.value, status])
        for at in held:
            cudart.cudaFree(C.c_void_p(at))
        result[name] = log
    return result


def cudnn():
    import torch

    torch.zeros(1, device="cuda")
    lib = C.CDLL("libcudnn.so.9")

    def new(kind):
        d = C.c_void_p()
        s = getattr(lib, "cudnnCreate" + kind)(C.byref(d))
        assert s == 0, (kind, s)
        return d

    handle = new("")
    size = C.c_size_t()
    lib.cudnnDropoutGetStatesSize(handle, C.byref(size))
    out = dict(dropout_states=size.value, rnn=[], batch_norm=[], ctc=[])
    states = torch.empty(size.value, dtype=torch.uint8, device="cuda")
    rng = random.Random(1)
    grid = []
    for mode, training in itertools.product((0, 1, 2, 3), (0, 1)):
        for dtype in (0, 2, 9):
            for bi, layers, hidden, inp, batch, seq in (
                (0, 1, 256, 256, 32, 64),
                (0, 2, 650, 650, 64, 128),
                (1, 2, 384, 256, 96, 200),
                (1, 1, 128, 64, 16, 50),
                (0, 3, 384, 256, 96, 200),
                (0, 1, 384, 256, 96, 200),
            ):
                grid.append((mode, training, dtype, bi, layers, hidden, inp, batch, seq, 0.0, 0))
    for _ in range(260):
        grid.append(
            (
                rng.choice((0, 1, 2, 3)),
                1,
                rng.choice((0, 2)),
                rng.choice((0, 1)),
                rng.choice((1, 2, 3)),
                rng.choice((64, 100, 128, 512, 650)),
                rng.choice((64, 100, 512)),
                rng.choice((1, 8, 20, 64)),
                rng.choice((1, 10, 33, 100)),
                rng.choice((0.0, 0.3)),
                0,
            )
        )
    for c in grid:
        mode, training, dtype, bi, layers, hidden, inp, batch, seq, p, proj = c
        dd = new("DropoutDescriptor")
        lib.cudnnSetDropoutDescriptor(
            dd,
            handle,
            C.c_float(p),
            C.c_void_p(states.data_ptr()),
            C.c_size_t(size.value),
            C.c_ulonglong(1),
        )
        r = new("RNNDescriptor")
        # as PyTorch sets it: fp16 uses tensor ops and fp32 math; fp32 allows TF32
        s1 = lib.cudnnSetRNNDescriptor_v8(
            r,
            0,
            mode,
            2,
            bi,
            0,
            dtype,
            0,
            0 if dtype == 0 else 1,
            inp,
            hidden,
            hidden,
            layers,
            dd,
            1,
        )
        x = new("RNNDataDescriptor")
        lengths = (C.c_int * batch)(*[seq] * batch)
        fill = C.c_double(0)
        s2 = lib.cudnnSetRNNDataDescriptor(x, dtype, 0, seq, batch, inp, lengths, C.byref(fill))
        w, q, e = C.c_size_t(), C.c_size_t(), C.c_size_t()
        s3 = lib.cudnnGetRNNTempSpaceSizes(handle, r, training, x, C.byref(w), C.byref(q))
        s4 = lib.cudnnGetRNNWeightSpaceSize(handle, r, C.byref(e))
        out["rnn"].append([c, [s1, s2, s3, s4], w.value, q.value, e.value])

    def tensor(dims, dtype, last):
        d = new("TensorDescriptor")
        st, step = [0] * len(dims), 1
        for axis in [1, *range(len(dims) - 1, 1, -1), 0] if last else range(len(dims) - 1, -1, -1):
            st[axis] = step
            step *= dims[axis]
        lib.cudnnSetTensorNdDescriptor(
            d, dtype, len(dims), (C.c_int * len(dims))(*dims), (C.c_int * len(dims))(*st)
        )
        return d

    for mode, dtype, last in itertools.product((0, 1, 2), (0, 2, 9), (0, 1)):
        for dims in (
            (32, 64, 112, 112),
            (128, 256, 56, 56),
            (8, 1024, 16, 16),
            (64, 3, 7, 7),
            (256, 2048, 7, 7),
            (8, 33, 5, 5),
            (4, 64, 8, 56, 56),
        ):
            x = tensor(dims, dtype, last)
            b = new("TensorDescriptor")
            lib.cudnnDeriveBNTensorDescriptor(b, x, mode)
            f, r, q = C.c_size_t(), C.c_size_t(), C.c_size_t()
            s = [
                lib.cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
                    handle, mode, 0, x, None, x, b, None, C.byref(f)
                ),
                lib.cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
                    handle, mode, 0, None, x, C.byref(q)
                ),
                lib.cudnnGetBatchNormalizationBackwardExWorkspaceSize(
                    handle, mode, 0, x, None, x, None, x, b, None, C.byref(r)
                ),
            ]
            out["batch_norm"].append([[mode, dtype, last, dims], s, f.value, q.value, r.value])
    return out


if __name__ == "__main__":
    result = {}
    for part in (context, addresses, cudnn):
        try:
            result[part.__name__] = part()
        except Exception as e:
            result[part.__name__] = repr(e)
    import torch

    result["machine"] = dict(
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        cudnn=torch.backends.cudnn.version(),
        total=torch.cuda.mem_get_info()[1],
    )
    json.dump(result, open(sys.argv[1], "w"))
