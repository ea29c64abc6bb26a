"""A castle as plenoxels: a dense grid of density and spherical harmonics without any network, trilinear samples along rays, total variation, RMSprop by hand."""

import torch
import torch.nn.functional as F

RES = 224
RAYS, SAMPLES = 4096, 128
dev = torch.device("cuda")

# one tensor holds it all: 1 density + 3 colours x 9 harmonics (degree 2)
density = torch.full((1, 1, RES, RES, RES), 0.1, device=dev, requires_grad=True)
harmonics = torch.zeros(1, 27, RES, RES, RES, device=dev, requires_grad=True)
squares = {"density": torch.zeros_like(density), "harmonics": torch.zeros_like(harmonics)}


def basis(d):
    x, y, z = d.unbind(-1)
    one = torch.ones_like(x)
    return torch.stack(
        [
            0.2820948 * one,
            -0.4886025 * y,
            0.4886025 * z,
            -0.4886025 * x,
            1.0925484 * x * y,
            -1.0925484 * y * z,
            0.3153916 * (2 * z * z - x * x - y * y),
            -1.0925484 * x * z,
            0.5462742 * (x * x - y * y),
        ],
        -1,
    )


def render(origin, direction):
    t = torch.linspace(0.5, 3.5, SAMPLES, device=dev)
    t = t + torch.rand(len(origin), SAMPLES, device=dev) * (3.0 / SAMPLES)
    points = origin[:, None] + direction[:, None] * t[..., None]
    where = points[None, None]  # 1 x 1 x rays x samples x 3
    sigma = F.grid_sample(density, where, align_corners=True)[0, 0, 0].relu()
    sh = F.grid_sample(harmonics, where, align_corners=True)[0, :, 0]  # 27 x rays x samples
    sh = sh.view(3, 9, *sh.shape[1:])
    colour = torch.sigmoid(torch.einsum("ckrs,rk->rsc", sh, basis(direction)))
    alpha = 1 - torch.exp(-sigma * (3.0 / SAMPLES))
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)
    return ((alpha * through[:, :-1])[..., None] * colour).sum(1)


def total_variation(grid):
    """On a random slab: the whole grid would take longer than the rays."""
    start = int(torch.randint(0, RES - 32, ()))
    slab = grid[:, :, start : start + 32]
    return sum((slab.diff(dim=k) ** 2).mean() for k in (2, 3, 4))


@torch.no_grad()
def rmsprop(p, sq, lr, beta=0.95):
    sq.mul_(beta).addcmul_(p.grad, p.grad, value=1 - beta)
    p.addcdiv_(p.grad, sq.sqrt().add_(1e-8), value=-lr)
    p.grad = None


for it in range(6):
    origin = F.normalize(torch.randn(RAYS, 3, device=dev), dim=1) * 2
    direction = F.normalize(-origin + 0.3 * torch.randn_like(origin), dim=1)
    truth = torch.rand(RAYS, 3, device=dev)
    loss = F.mse_loss(render(origin, direction), truth)
    loss = loss + 1e-4 * total_variation(density) + 1e-3 * total_variation(harmonics)
    loss.backward()
    rmsprop(density, squares["density"], lr=30.0 * 0.99**it)
    rmsprop(harmonics, squares["harmonics"], lr=0.01)
    print(f"{it:4d} {loss.item():.5f}")
