"""SimCLR: two views of each picture through a ResNet, NT-Xent over the batch, LARS."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = torch.rand(3, self.size, self.size)
        a = image.flip(-1) if index % 2 else image
        return a + 0.05 * torch.randn_like(a), image * (0.6 + 0.8 * torch.rand(3, 1, 1))


class SimCLR(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.encoder = torchvision.models.resnet34(weights=None)
        hidden = self.encoder.fc.in_features
        self.encoder.fc = nn.Identity()
        self.projector = nn.Sequential(
            nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)
        )

    def forward(self, x_i, x_j):
        z_i = self.projector(self.encoder(x_i))
        z_j = self.projector(self.encoder(x_j))
        return F.normalize(z_i, dim=1), F.normalize(z_j, dim=1)


def nt_xent(z_i, z_j, temperature):
    n = z_i.shape[0]
    z = torch.cat([z_i, z_j])
    sim = z @ z.t() / temperature
    sim.fill_diagonal_(float("-inf"))
    target = torch.cat([torch.arange(n) + n, torch.arange(n)]).to(z.device)
    return F.cross_entropy(sim, target)


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-6, eta=1e-3):
        super().__init__(params, dict(lr=lr, momentum=momentum, wd=weight_decay, eta=eta))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                update = p.grad
                if p.ndim > 1:
                    update = update.add(p, alpha=group["wd"])
                    ratio = group["eta"] * p.norm() / (update.norm() + 1e-9)
                    update = update * ratio
                buf = self.state[p].setdefault("mu", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(update)
                p.add_(buf, alpha=-group["lr"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.5)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        TwoViews(args.batch_size * 4, args.image_size),
        args.batch_size,
        shuffle=True,
        drop_last=True,
    )
    model = SimCLR().to(device)
    optimizer = LARS(model.parameters(), lr=0.3 * args.batch_size / 256)
    model.train()
    for i, (x_i, x_j) in enumerate(loader):
        x_i, x_j = x_i.to(device), x_j.to(device)
        loss = nt_xent(*model(x_i, x_j), args.temperature)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"Step [{i}/{len(loader)}]\t Loss: {loss.item()}")
