"""Jobs on several GPUs, the same on real and on virtual ones: `torchrun … cases.py MODE MODEL`.

Each rank prints one line of JSON. `nccl` as the mode measures instead what each first use of NCCL
takes on the GPU, outside of the allocator.
"""

import json, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn import functional as F

MODES = ("ddp", "ddp_view", "fsdp", "fsdp_bf16", "hsdp", "tp", "sp", "cp", "pp")
MODELS = ("gpt", "llama")
# Ring attention has no grouped queries.
JOBS = [(mode, model) for mode in MODES for model in MODELS if (mode, model) != ("cp", "llama")]
VOCABULARY, STEPS = 32000, 3


class Attention(nn.Module):
    def __init__(self, d, heads, kv):
        super().__init__()
        self.size, self.q = d // heads, nn.Linear(d, d, bias=False)
        self.k, self.v = (nn.Linear(d, kv * self.size, bias=False) for _ in range(2))
        self.o = nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (f(x).view(b, s, -1, self.size).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        return self.o(y.transpose(1, 2).reshape(b, s, -1))


class Gelu(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Gated(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate, self.up = (nn.Linear(d, 8 * d // 3 // 64 * 64, bias=False) for _ in range(2))
        self.down = nn.Linear(8 * d // 3 // 64 * 64, d, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, d, heads, kv, norm, mlp):
        super().__init__()
        self.one, self.two, self.attention, self.mlp = (
            norm(d),
            norm(d),
            Attention(d, heads, kv),
            mlp(d),
        )

    def forward(self, x):
        x = x + self.attention(self.one(x))
        return x + self.mlp(self.two(x))


class Model(nn.Module):
    def __init__(self, d, layers, heads, kv, norm, mlp):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, d)
        self.blocks = nn.ModuleList(Block(d, heads, kv, norm, mlp) for _ in range(layers))
        self.norm, self.head = norm(d), nn.Linear(d, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


def model_of(name):
    """The model, and its batch: samples and tokens of each."""
    if name == "gpt":
        return Model(1024, 12, 16, 16, nn.LayerNorm, Gelu), (4, 1024)
    return Model(2048, 6, 16, 4, nn.RMSNorm, Gated), (2, 2048)


def distributed(mode, m, rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel as DDP

    if mode.startswith("ddp"):
        return DDP(m, device_ids=[rank], gradient_as_bucket_view=mode == "ddp_view")
    if mode == "tp":
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        plan = {
            "attention.q": ColwiseParallel(),
            "attention.k": ColwiseParallel(),
            "attention.v": ColwiseParallel(),
            "attention.o": RowwiseParallel(),
            "mlp.gate": ColwiseParallel(),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(),
        }
        for block in m.blocks:
            parallelize_module(
                block,
                mesh,
                {k: v for k, v in plan.items() if k != "mlp.gate" or hasattr(block.mlp, "gate")},
            )
        return m
    if mode == "sp":
        return sequence_parallel(m)
    options = (
        dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        if mode == "fsdp_bf16"
        else {}
    )
    if mode == "hsdp":
        options["mesh"] = init_device_mesh(
            "cuda", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard")
        )
    for block in m.blocks:
        fully_shard(block, **options)
    return fully_shard(m, **options)


def sequence_parallel(m):
    """Tensor parallel, with what lies between the matrices split along the sequence."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    whole = lambda: PrepareModuleInput(
        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
    )  # noqa: E731
    parallelize_module(
        m,
        mesh,
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    plan = {
        "one": SequenceParallel(),
        "two": SequenceParallel(),
        "attention": whole(),
        "mlp": whole(),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in m.blocks:
        parallelize_module(
            block,
            mesh,
            {k: v for k, v in plan.items() if k != "mlp.gate" or hasattr(block.mlp, "gate")},
        )
    return m


class Stage(nn.Module):
    """One of the parts that a pipeline is cut into."""

    def __init__(self, m, index, count):
        super().__init__()
        part = len(m.blocks) // count
        self.embed = m.embed if index == 0 else nn.Identity()
        self.blocks = m.blocks[index * part : (index + 1) * part]
        self.end = nn.Sequential(m.norm, m.head) if index == count - 1 else nn.Identity()

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.end(x)


def pipeline(m, batch):
    """A stage for each rank, and the schedule of one step."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    part = Stage(m, rank, world)
    stage = PipelineStage(part, rank, world, torch.device("cuda", torch.cuda.current_device()))
    schedule = Schedule1F1B(
        stage,
        n_microbatches=batch[0],
        loss_fn=lambda y, ids: F.cross_entropy(y.flatten(0, 1), ids.flatten()),
    )
    return part, lambda x: schedule.step(
        *([x] if rank == 0 else []), **(dict(target=x) if rank == world - 1 else {})
    )


def context(m, rank):
    """Each rank computes a part of every sequence; attention goes around in a ring."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.parallel import DistributedDataParallel as DDP

    mesh, m = init_device_mesh("cuda", (dist.get_world_size(),)), DDP(m, device_ids=[rank])

    def step(x):
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1], no_restore_buffers={x}):
            m(x).backward()

    return m, step


def train(mode, name, rank, before):
    with torch.device("cuda"):
        m, batch = model_of(name)
    if mode == "pp":
        m, step = pipeline(m, batch)
    elif mode == "cp":
        m, step = context(m, rank)
    else:
        m = distributed(mode, m, rank)
        step = lambda x: m(x).backward()  # noqa: E731
    o = torch.optim.AdamW(m.parameters(), lr=1e-4, foreach=False if mode in ("tp", "sp") else None)
    for _ in range(STEPS):
        x = torch.randint(0, VOCABULARY, batch, device="cuda")
        step(x)
        o.step()
        o.zero_grad()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    return dict(
        mode=mode,
        name=name,
        rank=rank,
        world=dist.get_world_size(),
        max_allocated=torch.cuda.max_memory_allocated(),
        max_reserved=torch.cuda.max_memory_reserved(),
        outside=before - free - torch.cuda.memory_reserved(),
    )


def probe(rank):
    """Bytes outside of the allocator after each first use."""
    world, steps = dist.get_world_size(), []

    def note(what):
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        steps.append((what, total - free - torch.cuda.memory_reserved()))

    x, y = torch.ones(1 << 22, device="cuda"), torch.ones(world << 22, device="cuda")
    note("kernel")
    dist.all_reduce(x)
    note("all_reduce")
    dist.all_reduce(y)
    note("all_reduce again")
    dist.all_gather_into_tensor(y, x)
    note("all_gather")
    dist.reduce_scatter_tensor(x, y)
    note("reduce_scatter")
    dist.broadcast(x, 0)
    note("broadcast")
    dist.all_to_all_single(y, y.clone())
    note("all_to_all")
    peer = (rank + 1) % world
    ops = [
        dist.P2POp(dist.isend, x, peer),
        dist.P2POp(dist.irecv, y[: x.numel()], (rank - 1) % world),
    ]
    [w.wait() for w in dist.batch_isend_irecv(ops)]
    note("batched send and receive")
    (dist.send if rank % 2 == 0 else dist.recv)(x, rank ^ 1)
    note("send")
    for number in (2, 3):
        g = dist.new_group(list(range(world)))
        note(f"group {number}")
        dist.all_gather_into_tensor(y, x, group=g)
        note(f"group {number} all_gather")
        dist.all_reduce(x, group=g)
        note(f"group {number} all_reduce")
    ones = [dist.new_group([r]) for r in range(world)]
    dist.all_reduce(x, group=ones[rank])
    note("alone all_reduce")
    dist.barrier()
    note("barrier")
    return dict(
        mode="nccl", rank=rank, world=world, version=list(torch.cuda.nccl.version()), steps=steps
    )


if __name__ == "__main__":
    mode, name = sys.argv[1], (sys.argv[2:] or [""])[0]
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    # The context is part of what is outside: what was free before it is the other ranks' business.
    before = torch.cuda.mem_get_info()[1]
    dist.init_process_group(
        "nccl", **(dict(device_id=torch.device("cuda", rank)) if "eager" in sys.argv else {})
    )
    line = probe(rank) if mode == "nccl" else train(mode, name, rank, before)
    sys.stdout.write(json.dumps(dict(line, eager="eager" in sys.argv)) + "\n")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)
