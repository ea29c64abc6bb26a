"""Smoke jobs that have no measured truth. `python smoke.py NAME`"""

import json
import sys


def residual_bf16():
    """ResNet-50 in bfloat16 and channels last: strided and 1×1 convolutions, batch norm."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).cuda().train()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(3):
        x = torch.randn(32, 3, 224, 224, device="cuda").contiguous(
            memory_format=torch.channels_last
        )
        y = torch.randint(0, 1000, (32,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x, labels=y).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def compiled():
    """Two transformer blocks through `torch.compile`, forward and backward."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width=512, heads=8):
            super().__init__()
            self.heads = heads
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x):
            b, t, c = x.shape
            parts = self.qkv(self.first(x)).view(b, t, 3, self.heads, c // self.heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.mlp(self.second(x))

    model = nn.Sequential(
        nn.Embedding(32000, 512), Block(), Block(), nn.LayerNorm(512), nn.Linear(512, 32000)
    ).cuda()
    step = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        tokens = torch.randint(0, 32000, (8, 512), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = step(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def interface():
    """What PyTorch offers around memory: streams, events, graphs, pools, pinned memory, fp16 scaling."""
    import torch

    x = torch.randn(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        begin.record()
        y = x * 2
        end.record()
    end.synchronize()
    assert begin.elapsed_time(end) > 0 and stream.query()
    graph, static = torch.cuda.CUDAGraph(), torch.zeros(1 << 20, device="cuda")
    with torch.cuda.graph(graph):
        static * 2 + 1
    graph.replay()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        z = torch.empty(1 << 22, device="cuda")
    assert torch.zeros(1 << 20, pin_memory=True).is_pinned()
    # Values that programs read are real.
    mask = torch.arange(100, device="cuda") % 3 == 0
    assert mask.sum().item() == 34 and mask.nonzero().shape == (34, 1)
    assert torch.equal(
        torch.unique(torch.tensor([3, 1, 3], device="cuda")).cpu(), torch.tensor([1, 3])
    )
    model = torch.nn.Linear(512, 512).cuda()
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cuda")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(64, 512, device="cuda")).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    spectrum = torch.fft.rfft(torch.randn(64, 4096, device="cuda"))
    torch.linalg.solve(torch.eye(64, device="cuda"), torch.randn(64, 8, device="cuda"))
    del spectrum, y, z


JOBS = {job.__name__: job for job in (residual_bf16, compiled, interface)}

if __name__ == "__main__":
    import torch

    JOBS[sys.argv[1]]()
    print(json.dumps(dict(case=sys.argv[1], torch=torch.__version__)), flush=True)
