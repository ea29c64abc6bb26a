"""Gauges read by a network of one bit: signs of weights and activations by custom autograd Functions with straight-through gradients, latent weights clamped after each step, Adam."""

import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F


class SignActivation(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = torch.where(x < 0, 2 + 2 * x, 2 - 2 * x).clamp(min=0)
        return grad * slope


class SignWeight(Function):
    """Signs times the mean magnitude of each filter."""

    @staticmethod
    def forward(ctx, w):
        alpha = w.abs().mean((1, 2, 3), keepdim=True)
        ctx.save_for_backward(w)
        return w.sign() * alpha

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return grad * (w.abs() <= 1)


class BinaryConv(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1, i, 1, 1))
        self.weight = nn.Parameter(torch.empty(o, i, 3, 3).uniform_(-1, 1) * 1e-2)
        self.stride = stride

    def forward(self, x):
        x = SignActivation.apply(x + self.shift)
        return F.conv2d(x, SignWeight.apply(self.weight), stride=self.stride, padding=1)


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = BinaryConv(i, o, stride), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = BinaryConv(o, o), nn.BatchNorm2d(o)
        self.act1, self.act2 = nn.PReLU(o), nn.PReLU(o)
        self.down = nn.Sequential()
        if stride > 1 or i != o:
            self.down = nn.Sequential(
                nn.AvgPool2d(stride), nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o)
            )

    def forward(self, x):
        x = self.act1(self.bn1(self.conv1(x)) + self.down(x))
        return self.act2(self.bn2(self.conv2(x)) + x)


def network(width=64):
    layers = [nn.Conv2d(1, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.MaxPool2d(2)]
    i = width
    for o, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(Block(i, o, stride))
        i = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 2))


def gauges(n, side=224):
    angle = torch.rand(n) * 6.2832
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, side)] * 2, indexing="ij")
    off = x * angle.sin()[:, None, None] - y * angle.cos()[:, None, None]
    return torch.exp(-200 * off**2)[:, None], torch.stack([angle.cos(), angle.sin()], 1)


net = network().cuda()
latent = [m.weight for m in net.modules() if isinstance(m, BinaryConv)]
others = [p for p in net.parameters() if all(p is not w for w in latent)]
opt = torch.optim.Adam(
    [{"params": latent, "weight_decay": 0.0}, {"params": others, "weight_decay": 1e-5}], lr=1e-3
)
decay = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1 - s / 8)

for step in range(8):
    picture, hand = (t.cuda() for t in gauges(72))
    loss = F.mse_loss(net(picture), hand)
    opt.zero_grad()
    loss.backward()
    opt.step()
    decay.step()
    with torch.no_grad():
        for w in latent:
            w.clamp_(-1, 1)
    print(f"{step} loss {loss.item():.4f}")
