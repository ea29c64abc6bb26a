"""The weather of a chaotic system from a deep echo state network. The reservoirs are dense, and only the readout is fitted."""

import os

import torch
from torch import nn

UNITS = 4000 if os.environ.get("MENDED") else 14000


class Reservoir(nn.Module):
    """Random and never trained, so buffers."""

    def __init__(self, inputs, units, leak=0.3, radius=0.95):
        super().__init__()
        self.leak = leak
        self.register_buffer(
            "inward", torch.empty(inputs, units, device="cuda").uniform_(-0.5, 0.5)
        )
        self.register_buffer("within", torch.empty(units, units, device="cuda"))
        # A matrix of normal numbers has about this spectral radius.
        self.within.normal_(0, radius / units**0.5)

    def forward(self, series):
        state, states = series.new_zeros(series.shape[0], self.within.shape[0]), []
        for x in series.unbind(1):
            new = torch.tanh(x @ self.inward + state @ self.within)
            state = (1 - self.leak) * state + self.leak * new
            states.append(state)
        return torch.stack(states, 1)


class DeepEcho(nn.Module):
    def __init__(self, inputs=3, units=UNITS, layers=4):
        super().__init__()
        self.reservoirs = nn.ModuleList()
        for n in range(layers):
            self.reservoirs.append(Reservoir(inputs if n == 0 else units, units))
        self.pick = torch.randperm(units)[:512]
        self.readout = None

    @torch.inference_mode()
    def states(self, series):
        seen = []
        for reservoir in self.reservoirs:
            series = reservoir(series)
            seen.append(series[..., self.pick.cuda()])
        return torch.cat(seen, 2)

    def fit(self, series, washout=10, ridge=1e-4):
        h = self.states(series)[:, washout:-1].flatten(0, 1)
        wanted = series[:, washout + 1 :].flatten(0, 1)
        gram = h.T @ h + ridge * torch.eye(h.shape[1], device="cuda")
        self.readout = torch.linalg.solve(gram, h.T @ wanted)


def lorenz(runs=4, steps=60, dt=0.02):
    x, path = torch.rand(runs, 3) * 10, []
    for _ in range(steps):
        a, b, c = x.unbind(1)
        x = x + dt * torch.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], 1)
        path.append(x)
    return torch.stack(path, 1)


echo = DeepEcho()
echo.fit(lorenz().cuda() / 20)
print(echo.readout.shape)
