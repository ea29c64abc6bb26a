"""Adversarially robust sign classifier: WideResNet-28-10 trained by TRADES (KL between clean and attacked outputs, ten
PGD steps), fp16 with GradScaler, weights averaged."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

EPS, ALPHA, PGD_STEPS, BETA = 8 / 255, 2 / 255, 10, 6.0


class Block(nn.Module):
    def __init__(self, cin, cout, stride, drop):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(cin), nn.BatchNorm2d(cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.equal = cin == cout
        self.shortcut = None if self.equal else nn.Conv2d(cin, cout, 1, stride, bias=False)
        self.drop = drop

    def forward(self, x):
        if self.equal:
            out = F.relu(self.bn1(x))
        else:
            x = out = F.relu(self.bn1(x))
        out = F.relu(self.bn2(self.conv1(out)))
        if self.drop:
            out = F.dropout(out, self.drop, self.training)
        return (x if self.equal else self.shortcut(x)) + self.conv2(out)


class WideResNet(nn.Module):
    def __init__(self, depth=28, widen=10, classes=43, drop=0.0):
        super().__init__()
        n = (depth - 4) // 6
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        blocks = []
        for g in range(3):
            for i in range(n):
                cin = widths[g] if i == 0 else widths[g + 1]
                blocks.append(Block(cin, widths[g + 1], 2 if g and i == 0 else 1, drop))
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(widths[3])
        self.fc = nn.Linear(widths[3], classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out")

    def forward(self, x):
        x = F.relu(self.bn(self.blocks(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


def attack(model, x, clean):
    """Maximise the KL from the clean prediction within an l-inf ball."""
    model.eval()
    adv = x + 0.001 * torch.randn_like(x)
    target = clean.softmax(1)
    for _ in range(PGD_STEPS):
        adv.requires_grad_(True)
        with torch.enable_grad(), torch.autocast("cuda", torch.float16):
            kl = F.kl_div(F.log_softmax(model(adv).float(), 1), target, reduction="sum")
        grad = torch.autograd.grad(kl, adv)[0]
        adv = adv.detach() + ALPHA * grad.sign()
        adv = torch.min(torch.max(adv, x - EPS), x + EPS).clamp(0, 1)
    model.train()
    return adv.detach()


def batches(n, batch, device):
    for _ in range(n):
        y = torch.randint(43, (batch,), device=device)
        base = torch.rand(batch, 3, 4, 4, device=device) + y.view(-1, 1, 1, 1) / 43
        x = F.interpolate(base / 2, size=32, mode="bilinear") + 0.05 * torch.randn(
            batch, 3, 32, 32, device=device
        )
        yield x.clamp(0, 1).contiguous(memory_format=torch.channels_last), y


def main(batch=256, steps=3):
    torch.manual_seed(7)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    model = WideResNet().to(device, memory_format=torch.channels_last)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.995), use_buffers=True)
    opt = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=steps + 1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for step, (x, y) in enumerate(batches(steps, batch, device)):
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            model.eval()
            clean = model(x).float()
        adv = attack(model, x, clean)
        with torch.autocast("cuda", torch.float16):
            logits, logits_adv = model(x), model(adv)
        logits, logits_adv = logits.float(), logits_adv.float()
        natural = F.cross_entropy(logits, y, label_smoothing=0.1)
        robust = F.kl_div(F.log_softmax(logits_adv, 1), logits.softmax(1), reduction="batchmean")
        loss = natural + BETA * robust
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        sched.step()
        average.update_parameters(model)
        acc = (logits_adv.argmax(1) == y).float().mean()
        print(
            f"step {step} natural {natural.item():.3f} robust {robust.item():.4f} adv acc {acc.item():.3f}"
        )


if __name__ == "__main__":
    main()
