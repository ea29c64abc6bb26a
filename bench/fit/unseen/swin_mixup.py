"""Swin with Mixup, gradient accumulation and fp16 with a scaler; parameters grouped by decay."""

import torch
import torch.nn.functional as F
import torchvision

torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True

ACCUM, MICRO, STEPS = 2, 24, 4


def mixup(x, y, alpha=0.8):
    lam = float(torch.distributions.Beta(alpha, alpha).sample())
    perm = torch.randperm(x.size(0), device=x.device)
    y1, y2 = F.one_hot(y, 1000).float(), F.one_hot(y[perm], 1000).float()
    return x * lam + x[perm] * (1 - lam), y1 * lam + y2 * (1 - lam)


def soft_ce(logits, target):
    return -(target * F.log_softmax(logits, -1)).sum(-1).mean()


net = torchvision.models.swin_t(weights=None).cuda()
no_decay = {n for n, p in net.named_parameters() if p.ndim == 1 or "relative_position" in n}
groups = [
    {"params": [p for n, p in net.named_parameters() if n not in no_decay], "weight_decay": 0.05},
    {"params": [p for n, p in net.named_parameters() if n in no_decay], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
scaler = torch.amp.GradScaler()
net.train()
for step in range(STEPS):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(ACCUM):
        x = torch.randn(MICRO, 3, 224, 224).cuda(non_blocking=True)
        y = torch.randint(0, 1000, (MICRO,)).cuda(non_blocking=True)
        x, y = mixup(x, y)
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            loss = soft_ce(net(x), y) / ACCUM
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, total)
