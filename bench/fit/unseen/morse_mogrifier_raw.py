"""Morse code by a Mogrifier LSTM of plain tensors: no nn.Module, no torch.optim; gates by hand, truncated in time, RMSprop with centring by torch._foreach."""

import torch

torch.manual_seed(1844)
gpu = torch.device("cuda")
V, X, H, ROUNDS, T, B = 64, 512, 768, 4, 64, 640


def weight(*shape):
    return (torch.randn(*shape, device=gpu) / shape[0] ** 0.5).requires_grad_()


def bias(n, value=0.0):
    return torch.full((n,), value, device=gpu, requires_grad=True)


P = {
    "embed": weight(V, X),
    "wx1": weight(X, 4 * H),
    "wh1": weight(H, 4 * H),
    "b1": bias(4 * H),
    "wx2": weight(H, 4 * H),
    "wh2": weight(H, 4 * H),
    "b2": bias(4 * H),
    "out": weight(H, V),
    "bo": bias(V),
}
for r in range(ROUNDS):
    P[f"mog{r}"] = weight(H, X) if r % 2 == 0 else weight(X, H)


def mogrify(x, h):
    for r in range(ROUNDS):
        if r % 2 == 0:
            x = 2 * torch.sigmoid(h @ P[f"mog{r}"]) * x
        else:
            h = 2 * torch.sigmoid(x @ P[f"mog{r}"]) * h
    return x, h


def cell(x, h, c, wx, wh, b):
    i, f, g, o = torch.chunk(x @ wx + h @ wh + b, 4, dim=1)
    c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def cross_entropy(logits, y):
    shifted = logits - logits.amax(-1, keepdim=True).detach()
    log_z = shifted.exp().sum(-1).log()
    return (log_z - shifted.gather(-1, y[..., None]).squeeze(-1)).mean()


def run(signal, state):
    h1, c1, h2, c2 = state
    emitted = []
    for t in range(T):
        x, h1m = mogrify(P["embed"][signal[:, t]], h1)
        h1, c1 = cell(x, h1m, c1, P["wx1"], P["wh1"], P["b1"])
        h2, c2 = cell(h1, h2, c2, P["wx2"], P["wh2"], P["b2"])
        emitted.append(h2)
    logits = torch.stack(emitted, 1) @ P["out"] + P["bo"]
    return cross_entropy(logits, signal[:, 1 : T + 1]), [s.detach() for s in (h1, c1, h2, c2)]


names, values = zip(*P.items())
mean = [torch.zeros_like(p) for p in values]
square = [torch.zeros_like(p) for p in values]
state = [torch.zeros(B, H, device=gpu) for _ in range(4)]

for update in range(4):
    signal = torch.randint(0, V, (B, T + 1), device=gpu)
    loss, state = run(signal, state)
    grads = list(torch.autograd.grad(loss, values))
    with torch.no_grad():
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        torch._foreach_mul_(grads, (1.0 / (norm + 1e-6)).clamp(max=1.0))
        torch._foreach_lerp_(mean, grads, 0.05)
        torch._foreach_mul_(square, 0.95)
        torch._foreach_addcmul_(square, grads, grads, 0.05)
        spread = torch._foreach_addcmul(square, mean, mean, -1.0)
        torch._foreach_clamp_min_(spread, 0.0)
        torch._foreach_sqrt_(spread)
        torch._foreach_add_(spread, 1e-4)
        torch._foreach_addcdiv_(list(values), grads, spread, -1e-3)
    print("update", update, "loss", loss.item())
