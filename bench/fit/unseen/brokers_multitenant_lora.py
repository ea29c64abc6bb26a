"""Letters of insurance brokers: one frozen StableLM in bf16, one LoRA per broker. A batch mixes brokers, each row goes through its own adapter."""

import argparse
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import StableLmConfig, StableLmForCausalLM


class Router:
    """Which adapter each row of the running batch uses."""

    rows = None

    @contextlib.contextmanager
    def use(self, rows):
        self.rows = rows
        try:
            yield
        finally:
            self.rows = None


class TenantLinear(nn.Module):
    def __init__(self, base, router, tenants, rank, alpha, dropout):
        super().__init__()
        self.base, self.router, self.scale = base, router, alpha / rank
        device = base.weight.device
        self.down = nn.Parameter(torch.empty(tenants, base.in_features, rank, device=device))
        self.up = nn.Parameter(torch.zeros(tenants, rank, base.out_features, device=device))
        nn.init.normal_(self.down, std=base.in_features**-0.5)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        y = self.base(x)
        rows = self.router.rows
        if rows is None:
            return y
        down, up = self.down[rows].to(x.dtype), self.up[rows].to(x.dtype)
        return y + self.scale * torch.bmm(torch.bmm(self.dropout(x), down), up)


def add_adapters(model, router, targets, **kw):
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.rsplit(".", 1)[-1] in targets:
            parent = model.get_submodule(name.rsplit(".", 1)[0])
            setattr(parent, name.rsplit(".", 1)[-1], TenantLinear(module, router, **kw))


def letters(args, generator):
    """Prompt (a claim) and answer (a letter); only the answer counts."""
    while True:
        rows = torch.randint(0, args.tenants, (args.batch,), generator=generator)
        ids = torch.randint(10, 50000, (args.batch, args.length), generator=generator)
        prompt = torch.randint(40, args.length // 2, (args.batch, 1), generator=generator)
        labels = ids.masked_fill(torch.arange(args.length) < prompt, -100)
        yield rows.cuda(), ids.cuda(), labels.cuda()


def loss_per_row(logits, labels):
    logits, labels = logits[:, :-1], labels[:, 1:]
    nll = F.cross_entropy(
        logits.transpose(1, 2).float(), labels, ignore_index=-100, reduction="none"
    )
    count = (labels != -100).sum(1).clamp(min=1)
    return nll.sum(1) / count


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tenants", type=int, default=12)
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--lr", type=float, default=2e-4)
    args = p.parse_args()

    torch.manual_seed(0)
    config = StableLmConfig(
        hidden_size=1536,
        intermediate_size=4096,
        num_hidden_layers=16,
        num_attention_heads=24,
        num_key_value_heads=24,
        max_position_embeddings=2048,
        use_cache=False,
    )
    with torch.device("cuda"):
        model = StableLmForCausalLM(config).bfloat16()
    model.requires_grad_(False)
    router = Router()
    add_adapters(
        model,
        router,
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        tenants=args.tenants,
        rank=args.rank,
        alpha=32,
        dropout=0.05,
    )
    adapters = [q for q in model.parameters() if q.requires_grad]
    print(f"{sum(q.numel() for q in adapters) / 1e6:.1f} M parameters in adapters")

    optimizer = torch.optim.AdamW(adapters, lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    seen = torch.zeros(args.tenants, device="cuda")
    average = torch.zeros(args.tenants, device="cuda")
    model.train()
    source = letters(args, torch.Generator().manual_seed(1))
    for step in range(args.steps):
        rows, ids, labels = next(source)
        with router.use(rows):
            logits = model(input_ids=ids).logits
        each = loss_per_row(logits, labels)
        loss = each.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(adapters, 1.0)
        optimizer.step()
        schedule.step()
        seen.index_add_(0, rows, torch.ones_like(each))
        average.index_add_(0, rows, each.detach())
        print(f"step {step:3d}  loss {loss.item():.4f}  lr {schedule.get_last_lr()[0]:.2e}")
    print("by broker:", [round(v, 3) for v in (average / seen.clamp(min=1)).tolist()])


if __name__ == "__main__":
    main()
