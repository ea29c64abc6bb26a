"""Texture inpainting for quilts with Lightning Fabric: a coarse and a fine network, trained together."""

import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset


class GatedConv(nn.Module):
    def __init__(self, i, o, k=3, stride=1, dilation=1):
        super().__init__()
        self.conv = nn.Conv2d(i, 2 * o, k, stride, padding=dilation * (k // 2), dilation=dilation)

    def forward(self, x):
        a, g = self.conv(x).chunk(2, 1)
        return F.elu(a) * torch.sigmoid(g)


class Stage(nn.Module):
    def __init__(self, i, w):
        super().__init__()
        self.down = nn.Sequential(
            GatedConv(i, w, 5),
            GatedConv(w, 2 * w, stride=2),
            GatedConv(2 * w, 2 * w),
            GatedConv(2 * w, 4 * w, stride=2),
        )
        self.mid = nn.Sequential(*(GatedConv(4 * w, 4 * w, dilation=d) for d in (1, 2, 4, 8, 16)))
        self.up1, self.up2 = GatedConv(4 * w, 2 * w), GatedConv(2 * w, w)
        self.out = nn.Conv2d(w, 3, 3, padding=1)

    def forward(self, x):
        x = self.mid(self.down(x))
        x = self.up1(F.interpolate(x, scale_factor=2))
        x = self.up2(F.interpolate(x, scale_factor=2))
        return self.out(x).clamp(-1, 1)


class Attend(nn.Module):
    """Patches in the hole look at patches outside of it."""

    def __init__(self, dim=128, patch=8):
        super().__init__()
        self.patch = patch
        self.q = nn.Conv2d(3, dim, patch, patch)
        self.k = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x, hole):
        q, k = self.q(x).flatten(2), self.k(x).flatten(2)
        v = F.unfold(x, self.patch, stride=self.patch)
        bias = F.max_pool2d(hole, self.patch).flatten(2) * -1e4
        w = torch.softmax(torch.einsum("bcn,bcm->bnm", q, k) / q.shape[1] ** 0.5 + bias, -1)
        return F.fold(
            torch.einsum("bnm,bpm->bpn", w, v), x.shape[-2:], self.patch, stride=self.patch
        )


class Inpainter(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.coarse, self.attend, self.fine = Stage(4, w), Attend(), Stage(10, w)

    def forward(self, x, hole):
        masked = x * (1 - hole)
        first = self.coarse(torch.cat([masked, hole], 1))
        filled = masked + first * hole
        second = self.fine(torch.cat([filled, self.attend(filled, hole), masked, hole], 1))
        return first, second


def gradient(x):
    return x[..., 1:, :-1] - x[..., :-1, :-1], x[..., :-1, 1:] - x[..., :-1, :-1]


def dataset(n, size):
    g = torch.Generator().manual_seed(2)
    tiles = torch.rand(n, 3, size // 16, size // 16, generator=g) * 2 - 1
    images = F.interpolate(tiles, size=size, mode="nearest")
    holes = torch.zeros(n, 1, size, size)
    for i, (y, x) in enumerate(torch.randint(size // 2, (n, 2), generator=g).tolist()):
        holes[i, :, y : y + size // 3, x : x + size // 3] = 1
    return TensorDataset(images, holes)


def main():
    fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
    fabric.launch()
    fabric.seed_everything(1)
    with fabric.init_module():
        model = Inpainter()
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
    model, optimizer = fabric.setup(model, optimizer)
    data = dataset(16 * 12, 256)
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=16, shuffle=True, drop_last=True))
    folder = Path(tempfile.mkdtemp())
    accumulate = 2
    for epoch in range(2):
        for i, (image, hole) in enumerate(loader):
            syncing = (i + 1) % accumulate == 0
            with fabric.no_backward_sync(model, enabled=not syncing):
                first, second = model(image, hole)
                loss = F.l1_loss(first, image) + F.l1_loss(second, image)
                loss = loss + sum(
                    F.l1_loss(a, b) for a, b in zip(gradient(second), gradient(image))
                )
                fabric.backward(loss / accumulate)
            if syncing:
                fabric.clip_gradients(model, optimizer, max_norm=5.0)
                optimizer.step()
                optimizer.zero_grad()
                fabric.print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")
        fabric.save(folder / "last.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})


if __name__ == "__main__":
    main()
