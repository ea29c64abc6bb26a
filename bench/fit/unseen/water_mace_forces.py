"""A potential for water in the manner of MACE: spherical harmonics, many-body products, energies, forces and stress by autograd, Amsgrad."""

import torch
from torch import nn

CUTOFF = 5.0


def harmonics(r):
    """Real spherical harmonics up to l = 2 of unit vectors: E x 9."""
    x, y, z = r.unbind(-1)
    one = torch.ones_like(x)
    return torch.stack(
        [one, x, y, z, x * y, y * z, (3 * z * z - 1) / 2, x * z, (x * x - y * y) / 2], dim=-1
    )


def bessel(d, n=8):
    k = torch.arange(1, n + 1, device=d.device)
    u = (d / CUTOFF).clamp(max=1.0)
    envelope = 1 - 21 * u**5 + 35 * u**6 - 15 * u**7
    return torch.sin(k * torch.pi * u[:, None]) / d.clamp(min=0.1)[:, None] * envelope[:, None]


class Interaction(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.up = nn.Linear(channels, channels, bias=False)
        self.radial = nn.Sequential(
            nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 3 * channels)
        )
        self.mix = nn.ModuleList([nn.Linear(channels, channels, bias=False) for _ in range(3)])
        self.product = nn.Parameter(torch.randn(3, channels) * 0.1)
        self.register_buffer("degree", torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 2]))

    def forward(self, h, src, dst, sh, edge):
        weights = self.radial(edge).view(len(edge), 3, -1)[:, self.degree]
        message = self.up(h)[src][:, None] * weights * sh[..., None]
        a = message.new_zeros(len(h), 9, h.shape[1]).index_add(0, dst, message) / 10
        parts = [m(a[:, self.degree == l]) for l, m in enumerate(self.mix)]
        invariant = [parts[0][:, 0]] + [p.pow(2).sum(1) for p in parts[1:]]
        out = sum(w * v for w, v in zip(self.product, invariant))
        return out + out * invariant[1] + out * invariant[1] * invariant[2]


class Potential(nn.Module):
    def __init__(self, channels=128, layers=2):
        super().__init__()
        self.embed = nn.Embedding(3, channels)
        self.layers = nn.ModuleList([Interaction(channels) for _ in range(layers)])
        self.skips = nn.ModuleList([nn.Linear(channels, channels) for _ in range(layers)])
        self.read = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(channels, 64), nn.SiLU(), nn.Linear(64, 1))
                for _ in range(layers)
            ]
        )

    def forward(self, kinds, pos, shift, src, dst, box, boxes):
        strain = torch.zeros(boxes, 3, 3, device=pos.device, requires_grad=True)
        pos = pos.requires_grad_(True)
        deform = strain + strain.transpose(1, 2)
        moved = pos + torch.einsum("ni,nij->nj", pos, deform[box])
        vector = moved[dst] - moved[src] + shift
        distance = vector.pow(2).sum(-1).add(1e-6).sqrt()
        sh, edge = harmonics(vector / distance[:, None]), bessel(distance)
        h, energy = self.embed(kinds), 0
        for layer, skip, read in zip(self.layers, self.skips, self.read):
            h = layer(h, src, dst, sh, edge) + skip(h)
            energy = energy + read(h).squeeze(-1)
        energy = pos.new_zeros(boxes).index_add(0, box, energy)
        forces, stress = torch.autograd.grad(energy.sum(), (pos, strain), create_graph=True)
        return energy, -forces, stress


def water(boxes, molecules=64, neighbours=30):
    n = boxes * molecules * 3
    kinds = torch.tensor([2, 1, 1]).repeat(boxes * molecules)
    box = torch.arange(boxes).repeat_interleave(molecules * 3)
    dst = torch.arange(n).repeat_interleave(neighbours)
    src = box[dst] * molecules * 3 + torch.randint(0, molecules * 3, (len(dst),))
    return [
        t.cuda() for t in (kinds, torch.rand(n, 3) * 12, torch.randn(len(dst), 3), src, dst, box)
    ]


model = Potential().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)
boxes = 8
for step in range(5):
    e, f, s = model(*water(boxes), boxes)
    loss = (
        nn.functional.huber_loss(e, torch.randn_like(e))
        + 100 * nn.functional.huber_loss(f, torch.randn_like(f))
        + nn.functional.huber_loss(s, torch.randn_like(s))
    )
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    opt.step()
    print("step", step, loss.item())
