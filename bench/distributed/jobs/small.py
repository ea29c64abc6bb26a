"""A small GPT (30 million parameters) trained by many ranks: `torchrun … small.py [ddp|fsdp]`. Used by `many.py`.

Each rank prints a line of JSON: its loss is a sum over all ranks, so that it shows that they met.
"""

import json, os, sys
import torch, torch.distributed as dist
from torch import nn
from cases import Gelu, Model, VOCABULARY, distributed

mode = (sys.argv[1:] or ["ddp"])[0]
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
with torch.device("cuda"):
    model = Model(384, 6, 6, 6, nn.LayerNorm, Gelu)
model = distributed(mode, model, local)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    x = torch.randint(0, VOCABULARY, (2, 256), device="cuda")
    model(x).backward()
    optimizer.step()
    optimizer.zero_grad()
met = torch.tensor([rank + 1], device="cuda")
dist.all_reduce(met)
torch.cuda.synchronize()
memory = {}
for line in open("/proc/self/smaps_rollup"):
    name, *words = line.split()
    if words[-1:] == ["kB"]:
        memory[name.rstrip(":")] = int(words[0]) << 10
sys.stdout.write(
    json.dumps(
        dict(
            rank=rank,
            met=met.item(),
            expected=world * (world + 1) // 2,
            private=memory["Private_Clean"] + memory["Private_Dirty"],
            resident=memory["Rss"],
            allocated=torch.cuda.max_memory_allocated(),
        )
    )
    + "\n"
)
sys.stdout.flush()
dist.destroy_process_group()
