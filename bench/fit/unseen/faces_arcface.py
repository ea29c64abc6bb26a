"""ArcFace over 360,000 people: an iResNet-like trunk in fp16, the margin head in fp32, SGD with momentum over everything."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class IBasic(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.f = nn.Sequential(
            nn.BatchNorm2d(cin),
            nn.Conv2d(cin, cout, 3, 1, 1, bias=False),
            nn.BatchNorm2d(cout),
            nn.PReLU(cout),
            nn.Conv2d(cout, cout, 3, stride, 1, bias=False),
            nn.BatchNorm2d(cout),
        )
        self.short = (
            nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
            if stride > 1 or cin != cout
            else nn.Identity()
        )

    def forward(self, x):
        return self.f(x) + self.short(x)


def trunk(layers=(2, 3, 6, 2), embed=256):
    net, c = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.PReLU(64)], 64
    for width, n in zip((64, 128, 256, 512), layers):
        for k in range(n):
            net.append(IBasic(c, width, 2 if k == 0 else 1))
            c = width
    net += [
        nn.BatchNorm2d(c),
        nn.Flatten(),
        nn.Dropout(0.4),
        nn.Linear(c * 49, embed),
        nn.BatchNorm1d(embed),
    ]
    return nn.Sequential(*net)


class ArcFace(nn.Module):
    def __init__(self, embed, people, s=64.0, m=0.5):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(people, embed, device="cuda").normal_(0, 0.01))
        self.s = s
        self.cos_m, self.sin_m = math.cos(m), math.sin(m)
        self.theta, self.sinmm = math.cos(math.pi - m), math.sin(math.pi - m) * m

    def forward(self, x, label):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight)).clamp(-1, 1)
        target = cosine.gather(1, label[:, None])
        shifted = target * self.cos_m - torch.sqrt(1 - target**2 + 1e-7) * self.sin_m
        shifted = torch.where(target > self.theta, shifted, target - self.sinmm)
        return cosine.scatter(1, label[:, None], shifted) * self.s


def main(people=360_000, batch=128, steps=8):
    torch.manual_seed(0)
    net = trunk().cuda()
    head = ArcFace(256, people)
    optimizer = torch.optim.SGD(
        [{"params": net.parameters()}, {"params": head.parameters()}],
        lr=0.1,
        momentum=0.9,
        weight_decay=5e-4,
    )
    scaler = torch.amp.GradScaler("cuda", growth_interval=100)
    for step in range(steps):
        faces = torch.randn(batch, 3, 112, 112, device="cuda")
        label = torch.randint(0, people, (batch,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            embedding = net(faces)
        loss = F.cross_entropy(head(embedding.float(), label), label)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f} scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
