"""Wrecks in sonar lines by a dilated convolutional network compiled whole: fp16 with a scaler, focal loss, gains drawn at random, AdaBelief written as an optimizer, three classes."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class AdaBelief(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-12):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), eps = group["betas"], group["eps"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["n"], s["m"], s["s"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["n"] += 1
                s["m"].lerp_(p.grad, 1 - b1)
                surprise = p.grad - s["m"]
                s["s"].mul_(b2).addcmul_(surprise, surprise, value=1 - b2).add_(eps)
                spread = (s["s"] / (1 - b2 ** s["n"])).sqrt_().add_(eps)
                p.addcdiv_(s["m"], spread, value=-group["lr"] / (1 - b1 ** s["n"]))


class Stage(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.wide = nn.Conv1d(c, 2 * c, 3, padding=dilation, dilation=dilation)
        self.back = nn.Conv1d(c, c, 1)
        self.scale = nn.Parameter(torch.full((c, 1), 1e-2))

    def forward(self, x):
        return x + self.scale * self.back(F.glu(self.wide(x), dim=1))


class Sonar(nn.Module):
    def __init__(self, beams=128, c=192, classes=3):
        super().__init__()
        self.into = nn.Conv1d(beams, c, 1)
        self.stages = nn.Sequential(*(Stage(c, 2 ** (i % 8)) for i in range(16)))
        self.norm = nn.GroupNorm(1, c)
        self.out = nn.Conv1d(c, classes, 1)

    def forward(self, x):
        return self.out(self.norm(self.stages(self.into(x))))


def focal(logits, label, gamma=2.0):
    log_p = F.log_softmax(logits.float(), 1).gather(1, label[:, None]).squeeze(1)
    return -((1 - log_p.exp()) ** gamma * log_p).mean()


def main():
    net = Sonar().cuda()
    fast = torch.compile(net)
    opt = AdaBelief(net.parameters(), lr=5e-4)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for step in range(5):
        lines = torch.randn(28, 128, 4096, device="cuda") * torch.empty(
            28, 1, 1, device="cuda"
        ).uniform_(0.5, 2)
        label = torch.randint(0, 3, (28, 4096), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = focal(fast(lines), label)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        print(f"{step}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
