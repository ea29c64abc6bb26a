"""Needles of dials read off by a network trained with K-FAC by hand: hooks gather Kronecker factors, inverses by Cholesky every other step, momentum, a clip by the quadratic model."""

import torch
from torch import nn
from torch.nn import functional as F


class KFAC:
    def __init__(self, model, lr=0.05, momentum=0.9, damping=1e-2, decay=0.95, every=2):
        self.lr, self.momentum, self.damping = lr, momentum, damping
        self.decay, self.every, self.count = decay, every, 0
        self.layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        self.a, self.g, self.inverse, self.speed = {}, {}, {}, {}
        for m in self.layers:
            m.register_forward_pre_hook(self._inputs)
            m.register_full_backward_hook(self._outputs)

    def _mix(self, store, m, new):
        store[m] = (
            new if m not in store else store[m].mul_(self.decay).add_(new, alpha=1 - self.decay)
        )

    @torch.no_grad()
    def _inputs(self, m, args):
        if not m.training:
            return
        x = args[0]
        if isinstance(m, nn.Conv2d):
            x = F.unfold(x, m.kernel_size, padding=m.padding, stride=m.stride)
            x = x.transpose(1, 2).reshape(-1, x.shape[1])
        x = torch.cat([x, x.new_ones(len(x), 1)], 1)
        self._mix(self.a, m, x.t() @ x / len(x))

    @torch.no_grad()
    def _outputs(self, m, grad_in, grad_out):
        g = grad_out[0]
        scale = g.shape[0]
        if g.ndim == 4:
            g = g.permute(0, 2, 3, 1).flatten(0, 2)
        self._mix(self.g, m, g.t() @ g * (scale**2 / len(g)))

    def _invert(self, matrix):
        eye = torch.eye(len(matrix), device=matrix.device)
        return torch.cholesky_inverse(torch.linalg.cholesky(matrix + self.damping**0.5 * eye))

    @torch.no_grad()
    def step(self):
        if self.count % self.every == 0:
            self.inverse = {
                m: (self._invert(self.a[m]), self._invert(self.g[m])) for m in self.layers
            }
        self.count += 1
        updates, agreement = {}, 0.0
        for m in self.layers:
            grad = torch.cat([m.weight.grad.flatten(1), m.bias.grad[:, None]], 1)
            inv_a, inv_g = self.inverse[m]
            updates[m] = inv_g @ grad @ inv_a
            agreement = agreement + (updates[m] * grad).sum() * self.lr**2
        shrink = (1e-3 / agreement.abs().clamp_min(1e-12)).sqrt().clamp(max=1.0)
        for m, u in updates.items():
            v = self.speed.get(m)
            v = u * shrink if v is None else v.mul_(self.momentum).add_(u * shrink)
            self.speed[m] = v
            m.weight.sub_(self.lr * v[:, :-1].view_as(m.weight))
            m.bias.sub_(self.lr * v[:, -1])


def block(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1), nn.ELU())


net = nn.Sequential(
    block(3, 48),
    block(48, 48),
    block(48, 96, 2),
    block(96, 96),
    block(96, 192, 2),
    block(192, 192),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(192 * 16, 1024),
    nn.ELU(),
    nn.Linear(1024, 2),
).cuda()
opt = KFAC(net)

for step in range(5):
    angle = torch.rand(56, device="cuda") * 6.2832
    needle = torch.stack([angle.cos(), angle.sin()], 1)
    image = torch.rand(56, 3, 112, 112, device="cuda") * 0.2 + needle.mean(1)[:, None, None, None]
    loss = F.mse_loss(F.normalize(net(image), dim=1), needle)
    net.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"step {step}: {loss.item():.4f}")
