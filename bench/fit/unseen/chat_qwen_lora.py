"""LoRA by hand on every projection of a Qwen2: the base frozen in bf16, adapters in fp32, prompt tokens masked out."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Qwen2Config

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoraLinear(nn.Module):
    def __init__(self, base, r=16, alpha=32, dropout=0.05):
        super().__init__()
        self.base = base
        self.scale = alpha / r
        self.drop = nn.Dropout(dropout)
        self.A = nn.Parameter(torch.empty(r, base.in_features, device=base.weight.device))
        self.B = nn.Parameter(torch.zeros(base.out_features, r, device=base.weight.device))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, x):
        low = F.linear(F.linear(self.drop(x.to(self.A.dtype)), self.A), self.B)
        return self.base(x) + (low * self.scale).to(x.dtype)


def inject(model):
    for p in model.parameters():
        p.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in TARGETS and isinstance(child, nn.Linear):
                setattr(module, name, LoraLinear(child))
    return [p for p in model.parameters() if p.requires_grad]


torch.manual_seed(7)
config = Qwen2Config(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=10,
    num_attention_heads=16,
    num_key_value_heads=4,
    use_cache=False,
)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
trainable = inject(model)
total = sum(p.numel() for p in model.parameters())
print(f"trainable {sum(p.numel() for p in trainable):,} of {total:,}")

optimizer = torch.optim.AdamW(trainable, lr=2e-4, weight_decay=0.0)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 4)

model.train()
for step in range(6):
    ids = torch.randint(0, config.vocab_size, (5, 768))
    labels = ids.clone()
    labels[:, :200] = -100
    ids, labels = ids.cuda(), labels.cuda()
    out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels)
    out.loss.backward()
    grad = nn.utils.clip_grad_norm_(trainable, 0.3)
    optimizer.step()
    warmup.step()
    optimizer.zero_grad(set_to_none=True)
    print(step, out.loss.item(), grad.item())
