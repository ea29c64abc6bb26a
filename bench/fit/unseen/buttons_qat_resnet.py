"""Buttons sorted by a torchvision ResNet-34 that shall run in int8: quantization-aware training written out with fake_quantize, moving ranges frozen late, batch norms frozen too, SGD."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import resnet34

KINDS = 36


class RangeObserver(nn.Module):
    """Moving minimum and maximum of what passes, as scale and zero point of eight bits."""

    def __init__(self, momentum=0.05):
        super().__init__()
        self.momentum = momentum
        self.watching = True
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.ones(()))

    def forward(self, x):
        if self.watching and self.training:
            with torch.no_grad():
                low, high = torch.aminmax(x)
                self.low.lerp_(low.clamp(max=0), self.momentum)
                self.high.lerp_(high.clamp(min=0), self.momentum)
        scale = ((self.high - self.low) / 255).clamp(min=1e-8)
        zero = (-self.low / scale).round().clamp(0, 255).int()
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)


class QuantConv(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv, self.seen = conv, RangeObserver()

    def forward(self, x):
        w = self.conv.weight
        scale = (w.detach().abs().amax((1, 2, 3)) / 127).clamp(min=1e-8)
        zero = torch.zeros_like(scale, dtype=torch.int32)
        w = torch.fake_quantize_per_channel_affine(w, scale, zero, 0, -127, 127)
        return self.conv._conv_forward(self.seen(x), w, self.conv.bias)


class QuantLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear, self.seen = linear, RangeObserver()

    def forward(self, x):
        w = self.linear.weight
        scale = (w.detach().abs().amax() / 127).clamp(min=1e-8)
        zero = torch.zeros_like(scale, dtype=torch.int32)
        w = torch.fake_quantize_per_tensor_affine(w, scale, zero, -127, 127)
        return F.linear(self.seen(x), w, self.linear.bias)


def prepare_qat(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d):
            setattr(module, name, QuantConv(child))
        elif isinstance(child, nn.Linear):
            setattr(module, name, QuantLinear(child))
        else:
            prepare_qat(child)
    return module


def freeze(model):
    for m in model.modules():
        if isinstance(m, RangeObserver):
            m.watching = False
        if isinstance(m, nn.BatchNorm2d):
            m.eval()


def batches(count, size=40):
    for _ in range(count):
        yield (
            torch.rand(size, 3, 224, 224, device="cuda"),
            torch.randint(0, KINDS, (size,), device="cuda"),
        )


model = prepare_qat(resnet34(weights=None, num_classes=KINDS)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
for epoch in range(3):
    model.train()
    if epoch == 2:
        freeze(model)
    for images, kinds in batches(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), kinds, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    scheduler.step()
    model.eval()
    with torch.no_grad():
        hits = [(model(x).argmax(1) == y).float().mean().item() for x, y in batches(1)]
    print(f"epoch {epoch} accuracy {sum(hits) / len(hits):.3f}")
