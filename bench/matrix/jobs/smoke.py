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
    if hasattr(torch.cuda, "use_mem_pool"):  # torch 2.6
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            torch.empty(1 << 22, device="cuda")
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
    del spectrum, y


def blocks():
    """A small language model that trains with AdamW: what plans are applied to."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width=256, heads=4):
            super().__init__()
            self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            parts = self.qkv(self.first(x)).view(b, t, 3, self.heads, c // self.heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.narrow(nn.functional.gelu(self.wide(self.second(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(8000, 256)
            self.blocks = nn.ModuleList(Block() for _ in range(4))
            self.head = nn.Linear(256, 8000)

        def forward(self, x):
            x = self.tokens(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.utils.data.TensorDataset(torch.randint(0, 8000, (48, 257)))
    for (tokens,) in torch.utils.data.DataLoader(data, batch_size=16):
        tokens = tokens.cuda()
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def snapshot():
    """Writes PyTorch's own memory snapshot, and what PyTorch counted."""
    import torch

    torch.cuda.memory._record_memory_history(max_entries=100_000)
    blocks()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    counted = dict(
        allocated_bytes=torch.cuda.max_memory_allocated(),
        reserved_bytes=torch.cuda.max_memory_reserved(),
    )
    with open("counted.json", "w") as file:
        json.dump(counted, file)


def train_step():
    """`oomph.TrainStep` splits a batch that does not fit, and steps once."""
    import oomph
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    step = oomph.TrainStep(model, optimizer, lambda model, x: model(x).pow(2).mean())
    reports = [step(torch.randn(100_000, 256)) for _ in range(3)]
    assert reports[-1].attempts == 1 and reports[-1].micro_batches > 1, reports


def ranks():
    """Two ranks: DistributedDataParallel, then full sharding where this torch has `fully_shard`."""
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("nccl")
    device = torch.device("cuda", dist.get_rank())
    torch.cuda.set_device(device)
    counts = torch.full((4,), dist.get_rank() + 1, device=device)
    dist.all_reduce(counts)
    assert counts.tolist() == [3] * 4
    plain = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(device)
    model = nn.parallel.DistributedDataParallel(plain, device_ids=[device.index])
    _steps(model, device)
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        from torch.distributed._composable.fsdp import fully_shard
    sharded = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(device)
    for layer in sharded:
        fully_shard(layer)
    _steps(fully_shard(sharded), device)
    dist.destroy_process_group()


def _steps(model, device):
    import torch

    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(256, 512, device=device)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def trainer():
    """Hugging Face's Trainer with oomph's callback, which splits batches that do not fit."""
    import tempfile

    import torch
    import transformers
    from oomph.huggingface import MemoryCallback

    config = transformers.GPT2Config(
        n_layer=2, n_embd=256, n_head=4, vocab_size=8000, n_positions=256
    )
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.arange(256) % 100
    data = [{"input_ids": ids, "labels": ids}] * 256
    with tempfile.TemporaryDirectory() as place:
        args = transformers.TrainingArguments(
            output_dir=place, per_device_train_batch_size=64, max_steps=2, report_to=[],
            save_strategy="no", disable_tqdm=True, logging_steps=1,
        )  # fmt: skip
        run = transformers.Trainer(model=model, args=args, train_dataset=data)
        callback = MemoryCallback(run)
        run.add_callback(callback)
        run.train()
    assert run.state.global_step == 2
    assert callback.errors, "nothing ran out of memory"


JOBS = {
    job.__name__: job
    for job in (
        residual_bf16, compiled, interface, blocks, snapshot, train_step, ranks, trainer,
    )
}  # fmt: skip

if __name__ == "__main__":
    import torch

    JOBS[sys.argv[1]]()
    print(json.dumps(dict(case=sys.argv[1], torch=torch.__version__)), flush=True)
