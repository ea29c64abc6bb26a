"""Chambers of the heart in 3-D: a residual U-Net with deep supervision, Dice and cross entropy, SGD with Nesterov, fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ResBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv3d(cin, cout, 3, stride, 1, bias=False)
        self.norm1 = nn.InstanceNorm3d(cout, affine=True)
        self.conv2 = nn.Conv3d(cout, cout, 3, 1, 1, bias=False)
        self.norm2 = nn.InstanceNorm3d(cout, affine=True)
        self.skip = (
            nn.Identity() if cin == cout and stride == 1 else nn.Conv3d(cin, cout, 1, stride)
        )
        self.act = nn.LeakyReLU(0.01)

    def forward(self, x):
        h = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(h)) + self.skip(x))


class ResUNet3D(nn.Module):
    def __init__(self, channels=(24, 48, 96, 192, 256), classes=8):
        super().__init__()
        self.enc = nn.ModuleList()
        cin = 1
        for i, c in enumerate(channels):
            self.enc.append(nn.Sequential(ResBlock(cin, c, 1 if i == 0 else 2), ResBlock(c, c)))
            cin = c
        self.up, self.dec, self.heads = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for low, high in zip(channels[:0:-1], channels[-2::-1]):
            self.up.append(nn.ConvTranspose3d(low, high, 2, 2))
            self.dec.append(ResBlock(2 * high, high))
            self.heads.append(nn.Conv3d(high, classes, 1))

    def forward(self, x):
        skips = []
        for stage in self.enc:
            x = stage(x)
            skips.append(x)
        outputs = []
        for up, dec, head, skip in zip(self.up, self.dec, self.heads, skips[-2::-1]):
            x = dec(torch.cat([up(x), skip], 1))
            outputs.append(head(x))
        return outputs[::-1]


def dice_ce(logits, target):
    probs = logits.float().softmax(1)
    onehot = F.one_hot(target, logits.shape[1]).permute(0, 4, 1, 2, 3).float()
    inter = (probs * onehot).sum((2, 3, 4))
    denom = probs.sum((2, 3, 4)) + onehot.sum((2, 3, 4))
    return F.cross_entropy(logits, target) + 1 - ((2 * inter + 1e-5) / (denom + 1e-5)).mean()


def deep_loss(outputs, target):
    total, weight = 0.0, 1.0
    for out in outputs[:3]:
        small = F.interpolate(target[:, None].float(), out.shape[2:], mode="nearest")[:, 0].long()
        total = total + weight * dice_ce(out, small)
        weight /= 2
    return total


def main():
    torch.backends.cudnn.benchmark = True
    net = ResUNet3D().cuda()
    opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
    scaler = torch.amp.GradScaler("cuda")
    for it in range(8):
        volume = torch.randn(2, 1, 96, 128, 128).cuda()
        label = torch.randint(0, 8, (2, 96, 128, 128)).cuda()
        with torch.autocast("cuda"):
            loss = deep_loss(net(volume), label)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 12)
        scaler.step(opt)
        scaler.update()
        print(f"{it}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
