"""Theorems by a small DeepSeek-V3 (latent attention, 24 experts, one shared) under accelerate: accumulation over two batches, constant rate with warmup."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, get_constant_schedule_with_warmup

set_seed(17)
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")

config = DeepseekV3Config(
    vocab_size=16_384,
    hidden_size=768,
    intermediate_size=2048,
    moe_intermediate_size=512,
    num_hidden_layers=7,
    num_attention_heads=12,
    num_key_value_heads=12,
    n_shared_experts=1,
    n_routed_experts=24,
    num_experts_per_tok=4,
    n_group=4,
    topk_group=2,
    first_k_dense_replace=1,
    kv_lora_rank=192,
    q_lora_rank=384,
    qk_rope_head_dim=32,
    qk_nope_head_dim=64,
    v_head_dim=64,
    max_position_embeddings=1024,
    use_cache=False,
)
model = DeepseekV3ForCausalLM(config)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters")

optimizer = torch.optim.AdamW(model.parameters(), lr=4.2e-4, betas=(0.9, 0.95), weight_decay=0.1)
schedule = get_constant_schedule_with_warmup(optimizer, 10)
corpus = torch.randint(0, config.vocab_size, (40, 384))
loader = torch.utils.data.DataLoader(corpus, batch_size=4, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

model.train()
for tokens in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
accelerator.print("last loss", loss.item())
