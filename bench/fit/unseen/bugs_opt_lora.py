"""OPT in bf16 with LoRA written by hand on all projections of attention; only the adapters are trained."""

import math

import torch
from torch import nn
from transformers import OPTConfig, OPTForCausalLM

BATCH, LENGTH, STEPS, RANK = 6, 640, 6, 16


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features, dtype=torch.float32))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, dtype=torch.float32))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / rank
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        delta = self.dropout(x).to(self.lora_A.dtype) @ self.lora_A.t() @ self.lora_B.t()
        return self.base(x) + (delta * self.scaling).to(x.dtype)


def inject(model, names=("q_proj", "k_proj", "v_proj", "out_proj")):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, RANK, 32, 0.05))
    return model


def get_model():
    config = OPTConfig(
        hidden_size=1280,
        num_hidden_layers=14,
        ffn_dim=5120,
        num_attention_heads=16,
        word_embed_proj_dim=1280,
        max_position_embeddings=1024,
    )
    model = OPTForCausalLM(config).to(torch.bfloat16)
    for p in model.parameters():
        p.requires_grad = False
    return inject(model).cuda()


def train():
    model = get_model()
    params = [p for p in model.parameters() if p.requires_grad]
    print(f"trainable: {sum(p.numel() for p in params):,}")
    opt = torch.optim.AdamW(params, lr=2e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 4))
    model.train()
    for step in range(STEPS):
        ids = torch.randint(4, 50272, (BATCH, LENGTH), device="cuda")
        labels = ids.clone()
        labels[:, : LENGTH // 3] = -100
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad()
        print(step, loss.item())


train()
