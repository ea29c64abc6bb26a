"""One training step of Llama 3 70B's configuration under FSDP2: `llama70b.py [meta|cpu] [fp32|bf16] [LAYERS]`.

For `oomph run --gpu h100-80gb --world-size 1024 --ranks 0,511,1023 bench/distributed/jobs/llama70b.py`; see
`rehearsal.py`, which also takes the times.
"""

import os, sys
import torch, torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

given = sys.argv[1:]
built, kind, layers = given + ["meta", "bf16", "80"][len(given) :]
layers = int(layers)
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
config = LlamaConfig(
    vocab_size=128256,
    hidden_size=8192,
    intermediate_size=28672,
    num_hidden_layers=layers,
    num_attention_heads=64,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    use_cache=False,
)
with torch.device(built):
    model = LlamaForCausalLM(config)
print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
policy = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16 if kind == "bf16" else torch.float32, reduce_dtype=torch.float32
)
for layer in model.model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
if built == "meta":
    model.to_empty(device="cuda")
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq = torch.ones(64, device="cuda")
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(1):
    x = torch.randint(0, 128256, (1, 4096), device="cuda")
    model(input_ids=x, labels=x).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print(
    "rank",
    dist.get_rank(),
    "of",
    dist.get_world_size(),
    torch.cuda.max_memory_allocated(),
    flush=True,
)
