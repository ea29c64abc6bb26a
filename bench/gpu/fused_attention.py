"""Time, memory and gradients of attention that is written out, without the lever `fused_attention`, with it, and without it again.

python bench/gpu/fused_attention.py bench/gpu/results/GPU_fused_attention.jsonl
"""

import gc
import json
import math
import sys
import time

import torch
import transformers
from torch import nn
from torch.nn import functional as F

from oomph.levers._shared.forward import around_forward
from oomph.levers.fused_attention import FusedAttention

torch.backends.cuda.matmul.allow_tf32 = False
out = open(sys.argv[1], "w")


class Manual(nn.Module):
    def __init__(self, d, h, t, style):
        super().__init__()
        self.qkv, self.o, self.h, self.style = nn.Linear(d, 3 * d), nn.Linear(d, d), h, style
        self.register_buffer("tril", torch.tril(torch.ones(t, t))[None, None])

    def forward(self, x):
        B, T, C = x.shape
        H, D = self.h, C // self.h
        q, k, v = self.qkv(x).split(C, -1)
        if self.style == "manual":
            q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in (q, k, v))
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(D))
            att = att.masked_fill(self.tril[:, :, :T, :T] == 0, float("-inf"))
            y = (F.softmax(att, -1) @ v).transpose(1, 2).contiguous().view(B, T, C)
        elif self.style == "einsum":
            q, k, v = (y.view(B, T, H, D) for y in (q, k, v))
            att = torch.einsum("bihd,bjhd->bhij", q, k) * D**-0.5
            y = torch.einsum("bhij,bjhd->bihd", att.softmax(-1), v).reshape(B, T, C)
        else:
            q, k, v = (y.view(B, T, H, D).transpose(1, 2).reshape(B * H, T, D) for y in (q, k, v))
            att = torch.bmm(q * D**-0.5, k.transpose(1, 2))
            y = (
                torch.bmm(F.softmax(att.float(), -1).type_as(v), v)
                .view(B, H, T, D)
                .transpose(1, 2)
                .reshape(B, T, C)
            )
        return self.o(y)


class Net(nn.Module):
    def __init__(self, d, h, t, style, depth=6):
        super().__init__()
        self.a = nn.ModuleList(Manual(d, h, t, style) for _ in range(depth))
        self.n = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.m = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(depth)
        )

    def forward(self, x):
        for a, n, m in zip(self.a, self.n, self.m):
            x = x + a(n(x))
            x = x + m(n(x))
        return x


def measure(model, call, modules, lever, bf16):
    handles = []
    if lever:
        one = FusedAttention([n for n, _ in modules])
        handles = [around_forward(m, one._around(n), 80) for n, m in modules]
    opt = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)

    def step():
        opt.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = call(model)
        loss.backward()
        opt.step()
        return loss

    for _ in range(3):
        loss = step()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(8):
        t = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - t)
    grads = [
        p.grad.detach().double().flatten().cpu() for p in model.parameters() if p.grad is not None
    ]
    row = dict(
        ms=round(1e3 * sorted(times)[4], 2),
        peak=torch.cuda.max_memory_allocated(),
        loss=float(loss.detach()),
    )
    if lever:
        one.finish()
        row |= dict(applied=one.applied, note=one.note)
        for h in handles:
            h.remove()
    return row, torch.cat(grads)


def compare(name, model, call, modules):
    for bf16 in (False, True):
        try:
            plain, g0 = measure(model, call, modules, False, bf16)
            fused, g1 = measure(model, call, modules, True, bf16)
            again, g2 = measure(model, call, modules, False, bf16)
            row = dict(
                job=name,
                bf16=bf16,
                plain=plain,
                fused=fused,
                distance=float((g1 - g0).norm() / g0.norm()),
                plain_again=float((g2 - g0).norm() / g0.norm()),
            )
        except Exception as e:
            row = dict(job=name, bf16=bf16, error=repr(e)[:300])
        print(json.dumps(row), file=out, flush=True)
        print(row)


print(json.dumps(dict(gpu=torch.cuda.get_device_name(), torch=torch.__version__)), file=out)
for style in ("manual", "einsum", "bmm"):
    torch.manual_seed(0)
    m = Net(384, 6, 1024, style).cuda()
    x = torch.randn(12, 1024, 384, device="cuda")
    compare(
        style, m, lambda m: m(x).float().square().mean(), [(f"a{i}", a) for i, a in enumerate(m.a)]
    )
    del m
    torch.cuda.empty_cache()
torch.manual_seed(0)
c = transformers.LlamaConfig(
    vocab_size=8000,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    attn_implementation="eager",
)
m = transformers.LlamaForCausalLM(c).cuda()
ids = torch.randint(1, 8000, (8, 1400), device="cuda")
mask = torch.ones_like(ids)
mask[1, 1300:] = 0
labels = ids.masked_fill(mask == 0, -100)
compare(
    "llama_eager",
    m,
    lambda m: m(input_ids=ids, attention_mask=mask, labels=labels).loss,
    [(f"l{i}", l.self_attn) for i, l in enumerate(m.model.layers)],
)
