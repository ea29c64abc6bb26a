"""Kinetics in chemical reactors: a neural ODE by RK4 with its own adjoint function, species in ranges of many decades, two passes over windows, AdaBelief by hand."""

import torch
from torch import nn


class Kinetics(nn.Module):
    """d log(c) / dt for 64 species at 32 places, given temperature."""

    def __init__(self, species=64, width=1024):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(species + 2, width),
            nn.Softplus(),
            nn.Linear(width, width),
            nn.Softplus(),
            nn.Linear(width, width),
            nn.Softplus(),
            nn.Linear(width, species),
        )

    def forward(self, t, state):
        temperature = torch.sin(t).expand(*state.shape[:-1], 1)
        clock = t.expand(*state.shape[:-1], 1)
        return self.net(torch.cat([state, temperature, clock], -1))


def rk4(f, t, h, y):
    k1 = f(t, y)
    k2 = f(t + h / 2, y + h / 2 * k1)
    k3 = f(t + h / 2, y + h / 2 * k2)
    k4 = f(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class Checkpointed(torch.autograd.Function):
    """Keeps the states between steps and runs each step again for its gradient."""

    @staticmethod
    def forward(ctx, f, times, y, *weights):
        states = [y]
        for t0, t1 in zip(times, times[1:]):
            states.append(rk4(f, t0, t1 - t0, states[-1]))
        ctx.f, ctx.weights = f, weights
        ctx.save_for_backward(times, *states)
        return torch.stack(states)

    @staticmethod
    def backward(ctx, grad):
        times, *states = ctx.saved_tensors
        adjoint = grad[-1]
        totals = [torch.zeros_like(w) for w in ctx.weights]
        for i in range(len(times) - 2, -1, -1):
            with torch.enable_grad():
                y = states[i].detach().requires_grad_()
                after = rk4(ctx.f, times[i], times[i + 1] - times[i], y)
            gy, *gw = torch.autograd.grad(after, [y, *ctx.weights], adjoint)
            adjoint = gy + grad[i]
            for total, g in zip(totals, gw):
                total.add_(g)
        return None, None, adjoint, *totals


class AdaBelief(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-12):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["n"], s["mean"], s["var"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["n"] += 1
                s["mean"].lerp_(p.grad, 1 - b1)
                surprise = p.grad - s["mean"]
                s["var"].mul_(b2).addcmul_(surprise, surprise, value=1 - b2).add_(group["eps"])
                denom = (s["var"] / (1 - b2 ** s["n"])).sqrt().add_(group["eps"])
                p.addcdiv_(s["mean"], denom, value=-group["lr"] / (1 - b1 ** s["n"]))


torch.manual_seed(64)
kinetics = Kinetics().cuda()
optimizer = AdaBelief(kinetics.parameters(), lr=5e-4)
times = torch.linspace(0, 2, 13).cuda()
for step in range(5):
    start = torch.randn(768, 32, 64).cuda()
    measured = (start[None] * torch.exp(-times.cpu()).view(-1, 1, 1, 1).cuda()).detach()
    path = Checkpointed.apply(kinetics, times, start, *kinetics.parameters())
    loss = nn.functional.huber_loss(path, measured)
    mass = (path.sum(-1) - path[0].sum(-1)).pow(2).mean()
    optimizer.zero_grad()
    (loss + 1e-3 * mass).backward()
    optimizer.step()
    print(f"{step}: {loss.item():.4e} {mass.item():.4e}")
