"""Tumours in brains: a residual V-Net over patches of 112^3 cut from volumes in memory, deep supervision, Dice and CE, fp16."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class ResStage(nn.Module):
    def __init__(self, cin, cout, convs):
        super().__init__()
        self.inp = nn.Conv3d(cin, cout, 1) if cin != cout else nn.Identity()
        self.body = nn.Sequential(
            *[
                nn.Sequential(
                    nn.Conv3d(cin if k == 0 else cout, cout, 3, padding=1),
                    nn.GroupNorm(8, cout),
                    nn.PReLU(cout) if k < convs - 1 else nn.Identity(),
                )
                for k in range(convs)
            ]
        )
        self.act = nn.PReLU(cout)

    def forward(self, x):
        return self.act(self.body(x) + self.inp(x))


class VNet(nn.Module):
    def __init__(self, channels=4, classes=4, width=16):
        super().__init__()
        w = [width * 2**k for k in range(5)]
        self.enc = nn.ModuleList(
            ResStage(channels if k == 0 else w[k], w[k], min(k + 1, 3)) for k in range(5)
        )
        self.down = nn.ModuleList(nn.Conv3d(w[k], w[k + 1], 2, 2) for k in range(4))
        self.up = nn.ModuleList(nn.ConvTranspose3d(w[k + 1], w[k], 2, 2) for k in range(4))
        self.dec = nn.ModuleList(ResStage(2 * w[k], w[k], min(k + 1, 3)) for k in range(4))
        self.heads = nn.ModuleList(nn.Conv3d(w[k], classes, 1) for k in range(3))

    def forward(self, x):
        skips = []
        for k, stage in enumerate(self.enc):
            x = stage(x)
            if k < 4:
                skips.append(x)
                x = self.down[k](x)
        outs = []
        for k in (3, 2, 1, 0):
            x = self.dec[k](torch.cat([self.up[k](x), skips[k]], 1))
            if k < 3:
                outs.append(self.heads[k](x))
        return outs[::-1]


def dice_ce(logits, target):
    onehot = F.one_hot(target, logits.shape[1]).permute(0, 4, 1, 2, 3).float()
    prob = logits.float().softmax(1)
    inter = (prob * onehot).sum((2, 3, 4))
    dice = 1 - (2 * inter + 1) / (prob.sum((2, 3, 4)) + onehot.sum((2, 3, 4)) + 1)
    return dice.mean() + F.cross_entropy(logits.float(), target)


def random_patch(volume, mask, size):
    corner = [np.random.randint(0, s - size) for s in mask.shape]
    cut = tuple(slice(c, c + size) for c in corner)
    return volume[(slice(None), *cut)], mask[cut]


np.random.seed(0)
torch.manual_seed(0)
volume = np.random.randn(4, 128, 140, 128).astype(np.float32)
mask = np.random.randint(0, 4, volume.shape[1:])

net = VNet().cuda()
optimizer = torch.optim.SGD(
    net.parameters(), lr=1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5
)
scaler = torch.amp.GradScaler("cuda")

for it in range(8):
    xs, ys = zip(*[random_patch(volume, mask, 112) for _ in range(2)])
    x = torch.from_numpy(np.stack(xs)).cuda()
    y = torch.from_numpy(np.stack(ys)).cuda()
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        outs = net(x)
        loss = 0
        for k, out in enumerate(outs):
            target = y[:, :: 2**k, :: 2**k, :: 2**k]
            loss = loss + dice_ce(out, target) / 2**k
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 12)
    scaler.step(optimizer)
    scaler.update()
    print("iteration", it, "loss", loss.item())
