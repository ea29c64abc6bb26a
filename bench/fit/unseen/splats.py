"""Gaussian splatting in plain PyTorch: no module anywhere, parameters in a dictionary, tiles of 64 x 64, densification."""

import math

import torch

torch.manual_seed(0)
dev = "cuda"
H, W, TILE, NEAREST = 128, 256, 64, 6144
FOCAL = 220.0


def init_gaussians(n):
    logit = lambda p: math.log(p / (1 - p))
    raw = {
        "means": torch.randn(n, 3) * 1.2,
        "log_scales": torch.full((n, 3), -3.5) + 0.1 * torch.randn(n, 3),
        "quats": torch.randn(n, 4),
        "opacity": torch.full((n, 1), logit(0.1)),
        "sh_dc": torch.rand(n, 1, 3),
        "sh_rest": torch.zeros(n, 15, 3),
    }
    return {k: v.to(dev).requires_grad_() for k, v in raw.items()}


LRS = dict(means=1.6e-4, log_scales=5e-3, quats=1e-3, opacity=5e-2, sh_dc=2.5e-3, sh_rest=1.25e-4)


def make_optimizer(params):
    return torch.optim.Adam(
        [{"params": [p], "lr": LRS[k], "name": k} for k, p in params.items()], lr=0.0, eps=1e-15
    )


def camera(angle):
    c, s = math.cos(angle), math.sin(angle)
    R = torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]], device=dev)
    return R, torch.tensor([0.0, 0.0, 6.0], device=dev)


def rotations(q):
    w, x, y, z = torch.nn.functional.normalize(q, dim=-1).unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).reshape(-1, 3, 3)


def colours(params, dirs):
    x, y, z = dirs.unbind(-1)
    basis = [
        -y, z, -x, x * y, y * z, 3 * z * z - 1, x * z, x * x - y * y, y * (3 * x * x - y * y), x * y * z,
        y * (5 * z * z - 1), z * (5 * z * z - 3), x * (5 * z * z - 1), z * (x * x - y * y), x * (x * x - 3 * y * y),
    ]  # fmt: skip
    rest = (torch.stack(basis, -1)[..., None] * params["sh_rest"]).sum(1)
    return (0.282 * params["sh_dc"][:, 0] + 0.4 * rest + 0.5).clamp_min(0)


def project(params, R, t):
    cam = params["means"] @ R.T + t
    z = cam[:, 2].clamp_min(0.2)
    uv = torch.stack([FOCAL * cam[:, 0] / z + W / 2, FOCAL * cam[:, 1] / z + H / 2], -1)
    M = rotations(params["quats"]) * params["log_scales"].exp()[:, None, :]
    sigma = M @ M.transpose(1, 2)
    zero = torch.zeros_like(z)
    J = torch.stack(
        [FOCAL / z, zero, -FOCAL * cam[:, 0] / z**2, zero, FOCAL / z, -FOCAL * cam[:, 1] / z**2], -1
    ).reshape(-1, 2, 3)
    T = J @ R
    cov = T @ sigma @ T.transpose(1, 2) + 0.3 * torch.eye(2, device=dev)
    det = (cov[:, 0, 0] * cov[:, 1, 1] - cov[:, 0, 1] ** 2).clamp_min(1e-6)
    conic = torch.stack([cov[:, 1, 1], -cov[:, 0, 1], cov[:, 0, 0]], -1) / det[:, None]
    return uv, z, conic, colours(params, torch.nn.functional.normalize(cam, dim=-1))


def render(params, R, t):
    uv, depth, conic, rgb = project(params, R, t)
    alpha0 = 0.99 * params["opacity"].sigmoid()[:, 0]
    order = depth.detach().argsort()
    uv, conic, rgb, alpha0 = uv[order], conic[order], rgb[order], alpha0[order]
    image = []
    for y in range(0, H, TILE):
        line = []
        for x in range(0, W, TILE):
            centre = torch.tensor([x + TILE / 2, y + TILE / 2], device=dev)
            near = (
                (uv.detach() - centre)
                .norm(dim=-1)
                .topk(NEAREST, largest=False)
                .indices.sort()
                .values
            )
            ys, xs = torch.meshgrid(
                torch.arange(y, y + TILE, device=dev) + 0.5,
                torch.arange(x, x + TILE, device=dev) + 0.5,
                indexing="ij",
            )
            d = torch.stack([xs, ys], -1).reshape(-1, 1, 2) - uv[near]  # pixels, gaussians, 2
            a, b, c = conic[near].unbind(-1)
            power = -0.5 * (a * d[..., 0] ** 2 + c * d[..., 1] ** 2) - b * d[..., 0] * d[..., 1]
            alpha = alpha0[near] * power.exp()
            through = torch.cumprod(1 - alpha, dim=1)
            through = torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], 1)
            line.append(((alpha * through) @ rgb[near]).reshape(TILE, TILE, 3))
        image.append(torch.cat(line, 1))
    return torch.cat(image, 0)


def ssim(a, b):
    a, b = a.permute(2, 0, 1)[None], b.permute(2, 0, 1)[None]
    pool = lambda x: torch.nn.functional.avg_pool2d(x, 11, 1, 5)
    ma, mb = pool(a), pool(b)
    va, vb, vab = pool(a * a) - ma**2, pool(b * b) - mb**2, pool(a * b) - ma * mb
    return (
        ((2 * ma * mb + 1e-4) * (2 * vab + 9e-4)) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))
    ).mean()


def densify(params, optimizer, n):
    """Clone the n gaussians with the largest gradients of their means; the optimizer's state grows with zeros."""
    chosen = params["means"].grad.norm(dim=-1).topk(n).indices
    for group in optimizer.param_groups:
        old = group["params"][0]
        state = optimizer.state.pop(old)
        new = torch.cat([old.data, old.data[chosen]]).requires_grad_()
        for key in ("exp_avg", "exp_avg_sq"):
            state[key] = torch.cat([state[key], torch.zeros_like(old.data[chosen])])
        optimizer.state[new] = state
        group["params"] = [new]
        params[group["name"]] = new


def main():
    params = init_gaussians(30_000)
    optimizer = make_optimizer(params)
    for step in range(5):
        R, t = camera(0.4 * step)
        target = torch.rand(H, W, 3).to(dev)
        image = render(params, R, t)
        loss = 0.8 * (image - target).abs().mean() + 0.2 * (1 - ssim(image, target))
        loss.backward()
        optimizer.step()
        if step == 2:
            densify(params, optimizer, 3_000)
        optimizer.zero_grad(set_to_none=True)
        print(f"{step}: {len(params['means'])} gaussians, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
