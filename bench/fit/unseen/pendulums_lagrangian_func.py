"""A Lagrangian neural network for chains of four pendulums. Weights in a dict, accelerations by torch.func (gradient, Hessian, mixed derivative, solve), L-BFGS in double precision."""

import functools

import torch
from torch.func import grad, hessian, jacrev, vmap

torch.set_default_dtype(torch.float64)
N, WIDTH, GRAVITY = 4, 224, 9.81


def init(sizes, generator):
    params = {}
    for k, (a, b) in enumerate(zip(sizes, sizes[1:])):
        params[f"w{k}"] = torch.randn(a, b, generator=generator) * (2.0 / a) ** 0.5
        params[f"b{k}"] = torch.zeros(b)
    return {k: v.cuda().requires_grad_() for k, v in params.items()}


def lagrangian(params, q, qt):
    """One chain: angles and their speeds in, a number out."""
    x = torch.cat([q.sin(), q.cos(), qt])
    layers = len(params) // 2
    for k in range(layers):
        x = x @ params[f"w{k}"] + params[f"b{k}"]
        if k < layers - 1:
            x = torch.nn.functional.softplus(x)
    # a kinetic term to start from, so that the Hessian can be inverted
    return x.squeeze(-1) + 0.5 * (qt * qt).sum()


def acceleration(params, q, qt):
    L = functools.partial(lagrangian, params)
    force = grad(L, 0)(q, qt)
    mass = hessian(L, 1)(q, qt)
    mixed = jacrev(grad(L, 1), 0)(q, qt)
    eye = torch.eye(len(q), device=q.device)
    return torch.linalg.solve(mass + 1e-2 * eye, force - mixed @ qt)


def true_acceleration(q, qt):
    """Equal masses on equal rods."""
    i = torch.arange(N, device=q.device)
    below = (N - torch.maximum(i[:, None], i[None])).to(q)
    diff = q[:, :, None] - q[:, None, :]
    right = -(below * diff.sin() * (qt**2)[:, None, :]).sum(-1) - (N - i).to(q) * GRAVITY * q.sin()
    return torch.linalg.solve(below * diff.cos(), right)


def penalty(params):
    return sum((v**2).sum() for k, v in params.items() if k.startswith("w"))


def fit(samples=12288, steps=10):
    generator = torch.Generator().manual_seed(1788)
    params = init([3 * N, WIDTH, WIDTH, WIDTH, 1], generator)
    q = (torch.rand(samples, N, generator=generator) * 2 - 1).mul(torch.pi).cuda()
    qt = torch.randn(samples, N, generator=generator).cuda()
    target = true_acceleration(q, qt)
    spread = target.std()
    model = vmap(acceleration, in_dims=(None, 0, 0))

    opt = torch.optim.LBFGS(list(params.values()), lr=0.3, max_iter=3, history_size=20)
    history = []

    def closure():
        opt.zero_grad()
        error = (model(params, q, qt) - target) / spread
        loss = torch.log(torch.cosh(error.clamp(-30, 30))).mean() + 1e-6 * penalty(params)
        loss.backward()
        history.append(loss.item())
        return loss

    for step in range(steps):
        opt.step(closure)
        print(f"step {step}: {history[-1]:.6f} after {len(history)} evaluations")


if __name__ == "__main__":
    fit()
