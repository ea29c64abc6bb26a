"""Pictures of lichens, pixel by pixel: a gated PixelCNN with vertical and horizontal stacks, 256-way softmax, Accelerate in fp16."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 64


class Lichens(Dataset):
    def __init__(self, size, classes=10):
        self.size, self.classes = size, classes

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        field = F.interpolate(torch.rand(1, 1, 8, 8, generator=g), size=SIDE, mode="bilinear")[0, 0]
        grain = 0.1 * torch.rand(SIDE, SIDE, generator=g)
        return ((field + grain).clamp(0, 1) * 255).long(), i % self.classes


class MaskedConv(nn.Conv2d):
    """A horizontal convolution that sees only the pixels to the left (A) or also its own (B)."""

    def __init__(self, kind, *args, **kwargs):
        super().__init__(*args, **kwargs)
        mask = torch.ones_like(self.weight)
        middle = self.kernel_size[1] // 2
        mask[..., middle + (kind == "B") :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x):
        return self._conv_forward(x, self.weight * self.mask, self.bias)


def gate(x):
    a, b = x.chunk(2, 1)
    return torch.tanh(a) * torch.sigmoid(b)


class Layer(nn.Module):
    def __init__(self, kind, width, kernel, classes):
        super().__init__()
        half = kernel // 2
        self.kind, self.half = kind, half
        self.vertical = nn.Conv2d(width, 2 * width, (half + 1, kernel))
        self.horizontal = MaskedConv(kind, width, 2 * width, (1, kernel), padding=(0, half))
        self.cross = nn.Conv2d(2 * width, 2 * width, 1)
        self.out = nn.Conv2d(width, width, 1)
        self.skip = nn.Conv2d(width, width, 1)
        self.condition = nn.Embedding(classes, 2 * width)

    def forward(self, v, h, label):
        c = self.condition(label)[:, :, None, None]
        v_new = self.vertical(F.pad(v, (self.half, self.half, self.half, 0)))
        # The horizontal stack may look at the rows above only, so the vertical features move down by one.
        above = F.pad(v_new, (0, 0, 1, 0))[:, :, :-1]
        h_new = gate(self.horizontal(h) + self.cross(above) + c)
        skip = self.skip(h_new)
        h_new = self.out(h_new)
        if self.kind == "B":
            h_new = h_new + h
        return gate(v_new + c), h_new, skip


class PixelCNN(nn.Module):
    def __init__(self, width=160, layers=14, classes=10):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(
            Layer("A" if k == 0 else "B", width, 7 if k == 0 else 5, classes) for k in range(layers)
        )
        self.head = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, 512, 1), nn.ReLU(), nn.Conv2d(512, 256, 1)
        )

    def forward(self, image, label):
        v = h = self.embed(image).permute(0, 3, 1, 2)
        total = 0
        for layer in self.layers:
            v, h, skip = layer(v, h, label)
            total = total + skip
        return self.head(total / len(self.layers) ** 0.5)


def main():
    set_seed(8)
    accelerator = Accelerator(mixed_precision="fp16")
    model = PixelCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.95, 0.9995))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
    loader = DataLoader(Lichens(16 * 5), batch_size=16, shuffle=True, drop_last=True)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    model.train()
    for step, (image, label) in enumerate(loader):
        with accelerator.autocast():
            logits = model(image, label)
            loss = F.cross_entropy(logits, image)
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        bits = loss.item() / 0.6931
        accelerator.print(f"step {step} bits per pixel {bits:.3f} norm {float(norm):.2f}")


if __name__ == "__main__":
    main()
