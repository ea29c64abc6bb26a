"""3-D U-Net for CT: levels as attributes, instance norm, deep supervision, Dice and cross-entropy, patches of 96 voxels."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(a, b):
    return nn.Sequential(
        nn.Conv3d(a, b, 3, padding=1, bias=False),
        nn.InstanceNorm3d(b, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(b, b, 3, padding=1, bias=False),
        nn.InstanceNorm3d(b, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )


class UNet3D(nn.Module):
    def __init__(self, classes=3, w=32):
        super().__init__()
        self.enc1, self.enc2 = conv(1, w), conv(w, 2 * w)
        self.enc3, self.enc4 = conv(2 * w, 4 * w), conv(4 * w, 8 * w)
        self.pool = nn.MaxPool3d(2)
        self.up3 = nn.ConvTranspose3d(8 * w, 4 * w, 2, stride=2)
        self.dec3 = conv(8 * w, 4 * w)
        self.up2 = nn.ConvTranspose3d(4 * w, 2 * w, 2, stride=2)
        self.dec2 = conv(4 * w, 2 * w)
        self.up1 = nn.ConvTranspose3d(2 * w, w, 2, stride=2)
        self.dec1 = conv(2 * w, w)
        self.head, self.aux = nn.Conv3d(w, classes, 1), nn.Conv3d(2 * w, classes, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(self.pool(e1))
        e3 = self.enc3(self.pool(e2))
        e4 = self.enc4(self.pool(e3))
        d3 = self.dec3(torch.cat([self.up3(e4), e3], 1))
        d2 = self.dec2(torch.cat([self.up2(d3), e2], 1))
        d1 = self.dec1(torch.cat([self.up1(d2), e1], 1))
        return self.head(d1), self.aux(d2)


def dice(logits, target):
    p = logits.softmax(1)
    t = F.one_hot(target, p.shape[1]).movedim(-1, 1).float()
    inter = (p * t).sum((2, 3, 4))
    return 1 - ((2 * inter + 1e-5) / (p.sum((2, 3, 4)) + t.sum((2, 3, 4)) + 1e-5)).mean()


def main():
    net = UNet3D().cuda()
    opt = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5)
    volume = torch.zeros(1, 160, 160, 160)
    for it in range(6):
        corners = torch.randint(0, 64, (2, 3))
        x = torch.stack([volume[:, a : a + 96, b : b + 96, c : c + 96] for a, b, c in corners])
        x = x.cuda()
        y = torch.randint(0, 3, (2, 96, 96, 96), device="cuda")
        opt.zero_grad(set_to_none=True)
        full, half = net(x)
        loss = dice(full, y) + F.cross_entropy(full, y)
        y2 = y[:, ::2, ::2, ::2]
        loss = loss + 0.5 * (dice(half, y2) + F.cross_entropy(half, y2))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 12)
        opt.step()
        print(it, float(loss))


if __name__ == "__main__":
    main()
