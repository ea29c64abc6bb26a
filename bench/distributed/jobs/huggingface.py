import torch, os, torch.distributed as dist, sys, json, transformers as T

mode, name = sys.argv[1], sys.argv[2]
r = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(r)
f0, t0 = torch.cuda.mem_get_info()
dist.init_process_group("nccl")
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel as DDP

with torch.device("cuda"):
    if name == "llama8":
        m = T.LlamaForCausalLM(
            T.LlamaConfig(
                vocab_size=32000,
                hidden_size=2048,
                intermediate_size=5632,
                num_hidden_layers=8,
                num_attention_heads=32,
                num_key_value_heads=4,
                use_cache=False,
            )
        )
        V = 32000
        B, S = 2, 1024
        blocks = m.model.layers
    else:
        m = T.GPT2LMHeadModel(T.GPT2Config(use_cache=False))
        V = 50257
        B, S = 8, 1024
        blocks = m.transformer.h
if mode == "ddp":
    m = DDP(m, device_ids=[r])
elif mode == "ddp_view":
    m = DDP(m, device_ids=[r], gradient_as_bucket_view=True)
elif mode.startswith("fsdp"):
    kw = (
        dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        if mode == "fsdp_bf16"
        else {}
    )
    for l in blocks:
        fully_shard(l, **kw)
    fully_shard(m, **kw)
elif mode == "dp":
    m = torch.nn.DataParallel(m)
o = torch.optim.AdamW(m.parameters(), lr=1e-4)
for i in range(3):
    x = torch.randint(0, V, (B, S), device="cuda")
    m(input_ids=x, labels=x).loss.mean().backward()
    o.step()
    o.zero_grad()
torch.cuda.synchronize()
f1, _ = torch.cuda.mem_get_info()
print(
    json.dumps(
        dict(
            mode=mode,
            name=name,
            rank=r,
            world=dist.get_world_size(),
            max_allocated=torch.cuda.max_memory_allocated(),
            max_reserved=torch.cuda.max_memory_reserved(),
            outside=t0 - f1 - torch.cuda.memory_reserved(),
        )
    ),
    flush=True,
)
dist.barrier()
os._exit(0)
