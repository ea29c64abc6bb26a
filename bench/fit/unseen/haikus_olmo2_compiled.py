"""Haikus by a four-layer OLMo 2 over 100,278 words: the whole model under torch.compile, bf16 autocast, z-loss on the logits, fused AdamW, warm-up."""

import torch
import torch.nn.functional as F
from transformers import Olmo2Config, Olmo2ForCausalLM

torch.set_float32_matmul_precision("high")
STEPS, BATCH, LENGTH = 5, 4, 512

config = Olmo2Config(
    vocab_size=100278,
    hidden_size=640,
    intermediate_size=1728,
    num_hidden_layers=4,
    num_attention_heads=10,
    max_position_embeddings=LENGTH,
    use_cache=False,
)
with torch.device("cuda"):
    net = Olmo2ForCausalLM(config)
model = torch.compile(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-4, betas=(0.9, 0.95), fused=True)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 100))


def haikus():
    """Poems of 17 to 40 tokens, packed until the row is full, 100257 between them."""
    rows = torch.randint(0, 100257, (BATCH, LENGTH + 1))
    rows[:, ::29] = 100257
    return rows.to("cuda", non_blocking=True)


for step in range(STEPS):
    tokens = haikus()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(input_ids=tokens[:, :-1]).logits
    logits = logits.float().flatten(0, 1)
    ce = F.cross_entropy(logits, tokens[:, 1:].flatten())
    z = 1e-4 * torch.logsumexp(logits, -1).square().mean()
    (ce + z).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    warmup.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step} ce {ce.item():.3f} z {z.item():.3f}")
