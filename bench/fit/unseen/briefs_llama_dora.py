"""Legal briefs with DoRA: a Llama frozen in bf16, every linear layer of its blocks with a learned magnitude and a low-rank direction in fp32, own loop."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class DoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int = 16, alpha: int = 32, dropout: float = 0.05):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scaling = alpha / r
        self.dropout = nn.Dropout(dropout)
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.magnitude = nn.Parameter(base.weight.float().norm(dim=1))

    def forward(self, x):
        delta = self.scaling * (self.lora_B @ self.lora_A)
        # The norm counts as a constant for the gradient (section 4.3 of the paper).
        norm = (self.base.weight.float() + delta).detach().norm(dim=1)
        scale = (self.magnitude / norm).to(x.dtype)
        low = F.linear(F.linear(self.dropout(x), self.lora_A.to(x.dtype)), self.lora_B.to(x.dtype))
        return scale * (self.base(x) + self.scaling * low)


def add_dora(model, r):
    model.requires_grad_(False)
    for block in model.model.layers:
        for parent in (block.self_attn, block.mlp):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, DoRALinear(child, r=r))


def batches(n, batch_size, length, vocab):
    g = torch.Generator().manual_seed(8)
    for _ in range(n):
        yield torch.randint(3, vocab, (batch_size, length), generator=g)


torch.manual_seed(8)
config = LlamaConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=4,
    attn_implementation="sdpa",
    use_cache=False,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
add_dora(model, r=16)
model.cuda()
trainable = [p for p in model.parameters() if p.requires_grad]
print(f"{sum(p.numel() for p in trainable) / 1e6:.1f} M of parameters are trained")

optimizer = torch.optim.AdamW(trainable, lr=2e-4, weight_decay=0.0)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 3))

model.train()
for step, ids in enumerate(batches(5, 4, 768, config.vocab_size)):
    ids = ids.cuda()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    nn.utils.clip_grad_norm_(trainable, 0.3)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"{step}: {loss.item():.4f}")
