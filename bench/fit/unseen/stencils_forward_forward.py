"""Stencilled letters by the forward-forward algorithm: each convolution has its own loss and its own optimizer, no gradient crosses a layer, right and wrong labels drawn into pictures."""

import torch
from torch import nn
from torch.nn import functional as F


class LocalLayer(nn.Module):
    """A convolution that learns to be lively for true pictures and quiet for false ones."""

    def __init__(self, c_in, c_out, stride, threshold=2.0):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, stride, 1)
        self.threshold = threshold
        self.opt = torch.optim.Adam(self.conv.parameters(), lr=1e-3)

    def forward(self, x):
        x = x / (x.flatten(1).norm(dim=1)[:, None, None, None] + 1e-4) * x[0].numel() ** 0.5
        return F.leaky_relu(self.conv(x), 0.1)

    def learn(self, true, false):
        a, b = self(true), self(false)
        lively = a.square().mean((1, 2, 3)) - self.threshold
        quiet = self.threshold - b.square().mean((1, 2, 3))
        loss = F.softplus(-torch.cat([lively, quiet])).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return a.detach(), b.detach(), loss.item()


class Stack(nn.ModuleList):
    def learn(self, true, false):
        losses = []
        for layer in self:
            true, false, loss = layer.learn(true, false)
            losses.append(loss)
        return losses

    @torch.no_grad()
    def guess(self, images, labels=26):
        scores = []
        for k in range(labels):
            x = stamp(images, torch.full((len(images),), k, device=images.device))
            total = 0
            for layer in self:
                x = layer(x)
                total = total + x.square().mean((1, 2, 3))
            scores.append(total)
        return torch.stack(scores, 1).argmax(1)


def stamp(images, labels):
    out = images.clone()
    out[:, 0, :4, :] = 0.0
    rows = torch.arange(len(images), device=images.device)
    for k in range(4):
        out[rows, 0, k, labels * 3] = 1.0
    return out


def main():
    torch.manual_seed(26)
    plan = [(1, 96, 1), (96, 192, 2), (192, 192, 1), (192, 384, 2), (384, 384, 1), (384, 512, 2)]
    stack = Stack(LocalLayer(*p) for p in plan).cuda()
    for layer in stack:
        layer.opt = torch.optim.Adam(layer.conv.parameters(), lr=1e-3)
    for epoch in range(1):
        for i in range(4):
            images = torch.rand(160, 1, 96, 96, device="cuda")
            labels = torch.randint(0, 26, (160,), device="cuda")
            wrong = (labels + torch.randint(1, 26, (160,), device="cuda")) % 26
            losses = stack.learn(stamp(images, labels), stamp(images, wrong))
            print(epoch, i, " ".join(f"{x:.3f}" for x in losses))
    right = (stack.guess(images[:48]) == labels[:48]).float().mean()
    print(f"accuracy {right.item():.1%}")


if __name__ == "__main__":
    main()
