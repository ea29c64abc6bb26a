"""Vases as functions: a hypernetwork writes the weights of a small coordinate network for each picture, run by vmap over functional_call, Adam, no DataLoader."""

import torch
from torch import nn
from torch.func import functional_call, vmap


def coordinate_net(width=64):
    return nn.Sequential(
        nn.Linear(34, width),
        nn.SiLU(),
        nn.Linear(width, width),
        nn.SiLU(),
        nn.Linear(width, width),
        nn.SiLU(),
        nn.Linear(width, 3),
    )


class HyperNetwork(nn.Module):
    def __init__(self, shapes, latent=256, hidden=512):
        super().__init__()
        self.shapes = shapes
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 48, 5, 2, 2), nn.SiLU(),
            nn.Conv2d(48, 96, 3, 2, 1), nn.SiLU(),
            nn.Conv2d(96, 192, 3, 2, 1), nn.SiLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(192 * 16, latent),
        )  # fmt: skip
        self.heads = nn.ModuleDict(
            {
                name.replace(".", "_"): nn.Sequential(
                    nn.Linear(latent, hidden), nn.SiLU(), nn.Linear(hidden, shape.numel())
                )
                for name, shape in shapes.items()
            }
        )

    def forward(self, pictures):
        z = self.encoder(pictures)
        return {
            name: self.heads[name.replace(".", "_")](z).view(-1, *shape) / shape[-1] ** 0.5
            for name, shape in self.shapes.items()
        }


def fourier(xy):
    freq = 2.0 ** torch.arange(8, device=xy.device) * torch.pi
    phase = (xy[..., None] * freq).flatten(-2)
    return torch.cat([xy, phase.sin(), phase.cos()], -1)


def make_step(hyper, template, optimizer, pixels):
    """A closure that does one update; `template` lends its structure, not its weights."""

    def render_one(weights, xy):
        return functional_call(template, weights, (fourier(xy),))

    render = vmap(render_one)

    def step(pictures):
        b, _, h, w = pictures.shape
        at = torch.randint(0, h * w, (b, pixels), device=pictures.device)
        xy = torch.stack([at % w / w, at // w / h], -1) * 2 - 1
        colours = pictures.flatten(2).gather(2, at[:, None].expand(-1, 3, -1)).transpose(1, 2)
        weights = hyper(pictures)
        loss = (torch.sigmoid(render(weights, xy)) - colours).square().mean()
        penalty = sum(w.square().mean() for w in weights.values())
        optimizer.zero_grad()
        (loss + 1e-4 * penalty).backward()
        optimizer.step()
        return 10 * torch.log10(1 / loss.detach())

    return step


def main():
    torch.manual_seed(4)
    template = coordinate_net().to("meta")
    hyper = HyperNetwork({n: p.shape for n, p in template.named_parameters()}).cuda()
    optimizer = torch.optim.Adam(hyper.parameters(), lr=1e-4)
    step = make_step(hyper, template, optimizer, pixels=4096)
    vases = torch.rand(480, 3, 128, 128, device="cuda")
    for i in range(6):
        batch = vases[torch.randperm(len(vases), device="cuda")[:320]]
        print(f"step {i}: {step(batch).item():.2f} dB")


main()
