"""The ground's velocities from records of quakes: the acoustic wave equation stepped in PyTorch, all shots at once, gradients to the model, no network."""

import torch


class Wave:
    """Second order in time, fourth in space, on a grid that absorbs at its borders."""

    def __init__(self, shape, dx=10.0, dt=1e-3, border=20):
        self.dx, self.dt = dx, dt
        nz, nx = shape
        z = torch.arange(nz, device="cuda")[:, None].expand(nz, nx)
        x = torch.arange(nx, device="cuda")[None].expand(nz, nx)
        edge = torch.minimum(torch.minimum(x, nx - 1 - x), nz - 1 - z).clamp(max=border)
        self.damp = torch.exp(-((0.015 * (border - edge)) ** 2))
        self.stencil = torch.tensor([-1 / 12, 4 / 3, -5 / 2, 4 / 3, -1 / 12]) / dx**2

    def laplacian(self, u):
        c = self.stencil
        padded = torch.nn.functional.pad(u, (2, 2, 2, 2))
        out = 2 * c[2] * u
        for k in (0, 1, 3, 4):
            out = out + c[k] * padded[:, k : k + u.shape[1], 2:-2]
            out = out + c[k] * padded[:, 2:-2, k : k + u.shape[2]]
        return out

    def record(self, velocity, wavelet, sources, receivers):
        shots = len(sources)
        now = torch.zeros(shots, *velocity.shape, device="cuda")
        before = torch.zeros_like(now)
        factor = (velocity * self.dt) ** 2
        pulse = torch.zeros_like(now)
        pulse[torch.arange(shots), 2, sources] = 1.0
        traces = []
        for amplitude in wavelet:
            after = 2 * now - before + factor * self.laplacian(now) + amplitude * pulse
            before, now = now * self.damp, after * self.damp
            traces.append(now[:, 2, receivers])
        return torch.stack(traces, -1)


def ricker(n, dt, peak=12.0):
    t = torch.arange(n) * dt - 1 / peak
    a = (torch.pi * peak * t) ** 2
    return ((1 - 2 * a) * torch.exp(-a)).tolist()


shape = (800, 1600)
wave = Wave(shape)
sources = torch.arange(60, 1540, 130, device="cuda")
receivers = torch.arange(10, 1590, 4, device="cuda")
wavelet = ricker(60, 1e-3)

velocity = (1500 + 8 * torch.arange(shape[0]).float())[:, None].repeat(1, shape[1]).cuda()
velocity.requires_grad_()
observed = torch.randn(len(sources), len(receivers), len(wavelet), device="cuda")
optimizer = torch.optim.Adam([velocity], lr=10.0)

for it in range(4):
    optimizer.zero_grad()
    synthetic = wave.record(velocity, wavelet, sources, receivers)
    misfit = (synthetic - observed).square().sum()
    smooth = velocity.diff(dim=0).abs().mean() + velocity.diff(dim=1).abs().mean()
    (misfit + 1e-3 * smooth).backward()
    velocity.grad.clamp_(-1e3, 1e3)
    optimizer.step()
    with torch.no_grad():
        velocity.clamp_(1400, 5000)
    print(it, misfit.item())
