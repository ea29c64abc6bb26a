"""Yields of fields by an ensemble of twelve wide residual MLPs trained at once: stacked weights, vmap over models with bootstrap batches, Adam written over dicts of tensors."""

import copy

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

MEMBERS, BATCH, FEATURES = 12, 1536, 410


class FieldNet(nn.Module):
    """Mean and log-variance of the harvest of one field."""

    def __init__(self, width=1536, blocks=3):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
            )
            for _ in range(blocks)
        )
        self.out = nn.Linear(width, 2)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        mean, logvar = self.out(h).unbind(-1)
        return mean, logvar.clamp(-8, 4)


def nll(params, skeleton, x, y):
    mean, logvar = functional_call(skeleton, params, (x,))
    return 0.5 * (logvar + (y - mean).square() / logvar.exp()).mean()


def adam_init(params):
    return {k: (torch.zeros_like(p), torch.zeros_like(p)) for k, p in params.items()}


def adam_update(params, grads, state, t, lr=3e-4, b1=0.9, b2=0.999, eps=1e-8):
    """Returns new tensors; nothing is changed in place, as in JAX."""
    new_params, new_state = {}, {}
    for k, p in params.items():
        m = b1 * state[k][0] + (1 - b1) * grads[k]
        v = b2 * state[k][1] + (1 - b2) * grads[k].square()
        new_params[k] = p - lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
        new_state[k] = (m, v)
    return new_params, new_state


def main():
    device = "cuda"
    torch.manual_seed(0)
    with torch.device(device):
        members = [FieldNet() for _ in range(MEMBERS)]
    params, _ = stack_module_state(members)
    params = {k: p.detach() for k, p in params.items()}
    skeleton = copy.deepcopy(members[0]).to("meta")
    del members

    x = torch.randn(20_000, FEATURES, device=device)
    y = torch.randn(20_000, device=device)
    step_fn = vmap(grad_and_value(nll), in_dims=(0, None, 0, 0))
    state = adam_init(params)
    for t in range(1, 6):
        rows = torch.randint(0, len(x), (MEMBERS, BATCH), device=device)  # bootstrap
        grads, losses = step_fn(params, skeleton, x[rows], y[rows])
        params, state = adam_update(params, grads, state, t)
        print(t, [round(v, 3) for v in losses.tolist()])


if __name__ == "__main__":
    main()
