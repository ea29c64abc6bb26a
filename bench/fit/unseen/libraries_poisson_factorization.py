"""Loans of libraries: Bayesian Poisson factorization by stochastic variational inference, on plain tensors with a hand-written Adam."""

import math

import torch

device = torch.device("cuda")
READERS, BOOKS, FACTORS = 250_000, 120_000, 64
PAIRS, BATCH = 20_000_000, 3_000_000
SHAPE, RATE = 0.3, 0.3


def init_params(g):
    """Location and log-scale of a log-normal posterior for each factor."""
    params = {}
    for name, rows in (("reader", READERS), ("book", BOOKS)):
        loc = torch.randn(rows, FACTORS, generator=g, device=device) * 0.1 - 2.5
        params[name + "_loc"] = loc.requires_grad_()
        params[name + "_scale"] = torch.full_like(loc, -2.0).requires_grad_()
    params["activity"] = torch.zeros(READERS, device=device, requires_grad=True)
    params["popularity"] = torch.zeros(BOOKS, device=device, requires_grad=True)
    return params


def sample(loc, log_scale):
    """A draw of the factors, its divergence from the gamma prior (up to a constant) by the same draw."""
    scale = log_scale.exp()
    log_value = loc + scale * torch.randn_like(loc)
    value = log_value.exp()
    log_prior = SHAPE * log_value - RATE * value
    entropy = log_scale
    return value, -(log_prior + entropy).sum()


def draw_loans(g):
    """Triples of reader, book and count, with popular books more often."""
    reader = torch.randint(READERS, (BATCH,), generator=g, device=device)
    book = (torch.rand(BATCH, generator=g, device=device) ** 3 * BOOKS).long()
    count = 1 + torch.poisson(torch.full((BATCH,), 0.4, device=device), generator=g)
    return reader, book, count


def negative_elbo(params, loans):
    reader, book, count = loans
    theta, kl_theta = sample(params["reader_loc"], params["reader_scale"])
    beta, kl_beta = sample(params["book_loc"], params["book_scale"])
    a, p = params["activity"].exp(), params["popularity"].exp()
    rate = (theta[reader] * beta[book]).sum(-1) * a[reader] * p[book]
    seen = (count * torch.log(rate + 1e-10) - torch.lgamma(count + 1)).sum() * (PAIRS / BATCH)
    # The rates of all the pairs, also of those without a loan, add up to a product of sums.
    everything = ((theta * a[:, None]).sum(0) * (beta * p[:, None]).sum(0)).sum()
    ridge = 0.5 * (params["activity"].square().sum() + params["popularity"].square().sum())
    return (everything - seen + kl_theta + kl_beta + ridge) / PAIRS


@torch.no_grad()
def adam(params, grads, state, lr, beta1=0.9, beta2=0.999, eps=1e-8):
    state["t"] += 1
    t = state["t"]
    for name, grad in grads.items():
        m, v = state["m"][name], state["v"][name]
        m.lerp_(grad, 1 - beta1)
        v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        step = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + eps)
        params[name].sub_(lr * step)


def step(params, state, loans, lr):
    loss = negative_elbo(params, loans)
    grads = dict(zip(params, torch.autograd.grad(loss, list(params.values()))))
    adam(params, grads, state, lr)
    return loss.detach()


def main():
    g = torch.Generator(device=device).manual_seed(6)
    torch.manual_seed(6)
    params = init_params(g)
    state = {
        "t": 0,
        "m": {k: torch.zeros_like(v) for k, v in params.items()},
        "v": {k: torch.zeros_like(v) for k, v in params.items()},
    }
    print(f"{sum(p.numel() for p in params.values()) / 1e6:.0f} M variational parameters")
    losses = []
    for k in range(5):
        lr = 0.02 * 0.5 * (1 + math.cos(math.pi * k / 100))
        losses.append(step(params, state, draw_loans(g), lr))
        print(f"step {k} negative elbo per loan {losses[-1].item():.4f}")
    print("mean", torch.stack(losses).mean().item())


if __name__ == "__main__":
    main()
