"""Science and three dimensions: operators on fields, meshes, points, splats, molecules, particles, factorizations."""

import math

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from job import device, job, main, pick


class SpectralConv3d(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        shape = (4, width, width, modes, modes, modes)
        self.weight = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / width)

    def forward(self, x):
        m, size = self.modes, x.shape[-3:]
        spec = torch.fft.rfftn(x, dim=(-3, -2, -1))
        out = torch.zeros_like(spec)
        low, high = slice(None, m), slice(-m, None)
        for weight, (a, b) in zip(
            self.weight, ((low, low), (high, low), (low, high), (high, high))
        ):
            part = torch.einsum("bixyz,ioxyz->boxyz", spec[:, :, a, b, :m], weight)
            out[:, :, a, b, :m] = part
        return torch.fft.irfftn(out, s=size, dim=(-3, -2, -1))


@job()
def fourier_operator_3d_rollout():
    """A Fourier neural operator on volumes: two steps pushed forward without gradient, one with it."""
    width, side, modes = pick(24, 4), pick(64, 8), pick(12, 2)

    class Operator(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = nn.Conv3d(4, width, 1)
            self.spectral = nn.ModuleList(SpectralConv3d(width, modes) for _ in range(4))
            self.local = nn.ModuleList(nn.Conv3d(width, width, 1) for _ in range(4))
            self.norm = nn.ModuleList(nn.InstanceNorm3d(width) for _ in range(4))
            self.out = nn.Sequential(nn.Conv3d(width, 128, 1), nn.GELU(), nn.Conv3d(128, 1, 1))

        def forward(self, u, grid):
            x = F.pad(self.lift(torch.cat([u, grid.expand(len(u), -1, -1, -1, -1)], 1)), (0, 6))
            for spectral, local, norm in zip(self.spectral, self.local, self.norm):
                x = F.gelu(norm(spectral(x)) + local(x))
            return u + self.out(x[..., :-6])

    model = Operator().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    axis = torch.linspace(0, 1, side, device=device)
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))[None]
    for _ in range(4):
        u = torch.randn(pick(6, 2), 1, side, side, side, device=device)
        target = torch.randn_like(u)
        with torch.no_grad():
            for _ in range(2):
                u = model(u, grid)
        out = model(u, grid)
        off = (out - target).flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1)
        optimizer.zero_grad()
        off.mean().backward()
        optimizer.step()
        yield off.mean().item()


@job()
def gaussian_splats_densified():
    """Gaussians painted tile by tile, sorted by depth; between epochs some are split and some removed.

    Values decide which are split and which removed, not how many.
    """
    count, side, tile, most = pick(60000, 300), pick(256, 32), 16, pick(256, 8)
    draw = lambda *shape: torch.randn(*shape, device=device)
    params = dict(
        place=draw(count, 3),
        scale=draw(count, 3) * 0.2 - 4,
        turn=draw(count, 4),
        opacity=draw(count),
        color=draw(count, 9, 3) * 0.2,
    )
    params = {k: nn.Parameter(v) for k, v in params.items()}
    groups = [dict(params=[v], name=k, lr=1e-3) for k, v in params.items()]
    optimizer = torch.optim.Adam(groups, eps=1e-15)

    def replace(change):
        """Every parameter and its moments through `change`, in place of the old ones."""
        for group in optimizer.param_groups:
            (old,) = group["params"]
            state = optimizer.state.pop(old)
            new = nn.Parameter(change(old.detach(), False))
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = change(state[key], True)
            group["params"] = [new]
            optimizer.state[new] = state
            params[group["name"]] = new

    def render(view):
        p = params["place"] @ view.T
        depth = p[:, 2] + 4
        at = (p[:, :2] / depth[:, None].clamp(min=0.2) * 0.8 + 0.5) * side
        w, x, y, z = F.normalize(params["turn"], dim=1).unbind(1)
        turn = torch.stack(
            [
                torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], 1),
                torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], 1),
                torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1),
            ],
            1,
        )
        half = view @ turn * params["scale"].exp()[:, None]
        cov = (half @ half.mT)[:, :2, :2] * (side * 0.8 / depth.clamp(min=0.2))[:, None, None] ** 2
        cov = cov + 0.3 * torch.eye(2, device=device)
        precision = torch.linalg.inv(cov)
        direction = F.normalize(p, dim=1)
        basis = torch.cat([torch.ones_like(depth)[:, None], direction, direction**2, p[:, :2]], 1)
        color = torch.sigmoid((basis[..., None] * params["color"]).sum(1))
        opacity = params["opacity"].sigmoid()
        order = depth.argsort()
        rows = []
        pixel = torch.arange(tile, device=device) + 0.5
        for top in range(0, side, tile):
            for left in range(0, side, tile):
                with torch.no_grad():
                    middle = torch.tensor([left + tile / 2, top + tile / 2], device=device)
                    away = (at[order] - middle).square().sum(1)
                    near = away.topk(most, largest=False).indices.sort().values
                    chosen = order[near]
                xy = torch.stack(torch.meshgrid(pixel + left, pixel + top, indexing="xy"), -1)
                d = xy.reshape(-1, 1, 2) - at[chosen]
                power = -0.5 * torch.einsum("pni,nij,pnj->pn", d, precision[chosen], d)
                alpha = (opacity[chosen] * power.exp()).clamp(max=0.99)
                through = torch.cumprod(1 - alpha + 1e-10, 1)
                through = torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], 1)
                rows.append((alpha * through) @ color[chosen])
        tiles = torch.stack(rows).view(side // tile, side // tile, tile, tile, 3)
        return tiles.permute(0, 2, 1, 3, 4).reshape(side, side, 3)

    for epoch in range(2):
        seen = torch.zeros(len(params["place"]), device=device)
        for _ in range(2):
            angle = torch.rand(()).item() * 6.28
            c, s = math.cos(angle), math.sin(angle)
            view = torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]], device=device)
            picture = render(view)
            loss = F.l1_loss(picture, torch.rand_like(picture))
            loss.backward()
            seen += params["place"].grad.norm(dim=1)
            optimizer.step()
            optimizer.zero_grad()
            yield loss.item()
        split = seen.topk(len(seen) // 4).indices
        replace(lambda v, moment: torch.cat([v, v[split] * (0 if moment else 1)]))
        faint = params["opacity"].topk(len(seen) // 10, largest=False).indices
        keep = torch.ones(len(params["opacity"]), dtype=torch.bool, device=device)
        keep[faint] = False
        replace(lambda v, moment: v[keep])
        with torch.no_grad():
            params["opacity"].clamp_(max=2.0)


def farthest(points, count):
    """Indices of `count` points, each the farthest from those before; points is batch × n × 3."""
    b, n, _ = points.shape
    found = torch.zeros(b, count, dtype=torch.long, device=points.device)
    away = torch.full((b, n), 1e10, device=points.device)
    now = torch.randint(0, n, (b,), device=points.device)
    rows = torch.arange(b, device=points.device)
    for i in range(count):
        found[:, i] = now
        d = (points - points[rows, now][:, None]).square().sum(-1)
        away = torch.minimum(away, d)
        now = away.argmax(-1)
    return found


def chosen(x, index):
    """x[b, index[b]] for indices of any shape behind the batch."""
    rows = torch.arange(len(x), device=x.device).view(-1, *[1] * (index.dim() - 1))
    return x[rows, index]


@job()
def pointnet_set_abstraction():
    """PointNet++: farthest points, balls around them by sorted distances, features handed back by three neighbours."""

    def mlp(*widths):
        layers = []
        for i, o in zip(widths, widths[1:]):
            layers += [nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    w = pick(64, 4)
    down = nn.ModuleList([mlp(6, w, w, 2 * w), mlp(2 * w + 3, 2 * w, 2 * w, 4 * w)])
    down.append(mlp(4 * w + 3, 4 * w, 8 * w, 16 * w))
    up = nn.ModuleList(
        [mlp(20 * w, 4 * w, 4 * w), mlp(6 * w, 4 * w, 2 * w), mlp(2 * w, 2 * w, 2 * w)]
    )
    head = nn.Conv1d(2 * w, 13, 1)
    model = nn.ModuleList([down, up, head]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    counts = pick((512, 128), (16, 4))
    for _ in range(4):
        xyz = torch.rand(pick(32, 2), pick(4096, 40), 3, device=device)
        label = torch.randint(0, 13, xyz.shape[:2], device=device)
        levels = [(xyz, None)]
        x = xyz
        for count, radius, layer in zip(counts, (0.2, 0.4), down):
            places = levels[-1][0]
            centers = chosen(places, farthest(places, count))
            away = torch.cdist(centers, places)
            index = torch.arange(places.shape[1], device=device).expand(away.shape).clone()
            index[away > radius] = places.shape[1]
            index = index.sort(-1).values[..., : pick(32, 4)]
            first = index[..., :1].expand_as(index)
            index = torch.where(index == places.shape[1], first, index).clamp(
                max=places.shape[1] - 1
            )
            group = torch.cat([chosen(places, index) - centers[:, :, None], chosen(x, index)], -1)
            x = layer(group.permute(0, 3, 1, 2)).amax(-1).transpose(1, 2)
            levels.append((centers, x))
        whole = torch.cat([levels[-1][0], x], -1).permute(0, 2, 1)[..., None]
        x = down[2](whole).amax(2, keepdim=True).expand(-1, -1, counts[1], -1).squeeze(-1)
        x = torch.cat([x.transpose(1, 2), levels[-1][1]], -1)
        x = up[0](x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)
        for i, (fine, coarse) in enumerate(((1, 2), (0, 1))):
            d = torch.cdist(levels[fine][0], levels[coarse][0])
            near = d.topk(3, largest=False)
            weight = 1 / (near.values + 1e-8)
            weight = weight / weight.sum(-1, keepdim=True)
            x = (chosen(x, near.indices) * weight[..., None]).sum(2)
            if i == 0:
                x = torch.cat([x, levels[fine][1]], -1)
                x = up[1](x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)
        x = up[2](x.transpose(1, 2)[..., None])[..., 0]
        loss = F.cross_entropy(head(F.dropout(x, 0.5)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def dynamic_edge_convolutions():
    """DGCNN: twenty neighbours in the space of features, anew in each layer, on point clouds."""
    k, w = pick(20, 3), pick(64, 4)

    def edges(x):
        inner = -2 * x.transpose(2, 1) @ x
        square = (x**2).sum(1, keepdim=True)
        index = (-square - inner - square.transpose(2, 1)).topk(k, -1).indices
        b, c, n = x.shape
        flat = (index + torch.arange(b, device=x.device)[:, None, None] * n).view(-1)
        rows = x.transpose(2, 1).contiguous()
        near = rows.view(b * n, c)[flat].view(b, n, k, c)
        own = rows[:, :, None].repeat(1, 1, k, 1)
        return torch.cat([near - own, own], 3).permute(0, 3, 1, 2).contiguous()

    conv = lambda i, o: nn.Sequential(
        nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2)
    )
    layers = nn.ModuleList([conv(3, w), conv(w, w), conv(w, 2 * w), conv(2 * w, 4 * w)])
    last = nn.Sequential(nn.Conv1d(8 * w, 16 * w, 1, bias=False), nn.BatchNorm1d(16 * w))
    head = nn.Sequential(
        nn.Linear(32 * w, 512, bias=False), nn.BatchNorm1d(512), nn.Dropout(0.5), nn.Linear(512, 40)
    )
    model = nn.ModuleList([layers, last, head]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    for train in (True, True, False, True):
        model.train(train)
        x = torch.randn(pick(32, 4), 3, pick(1024, 20), device=device)
        y = torch.randint(0, 40, (len(x),), device=device)
        with torch.set_grad_enabled(train):
            kept = []
            for layer in layers:
                x = layer(edges(x)).max(-1)[0]
                kept.append(x)
            x = F.leaky_relu(last(torch.cat(kept, 1)), 0.2)
            x = torch.cat([F.adaptive_max_pool1d(x, 1), F.adaptive_avg_pool1d(x, 1)], 1).squeeze(-1)
            loss = F.cross_entropy(head(x), y, label_smoothing=0.2)
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        yield loss.item()


@job()
def neighbour_sampling_sage():
    """GraphSAGE: neighbourhoods are sampled on the host, features gathered there and copied from pinned memory."""
    nodes, degree, width, classes = pick(200000, 300), 24, pick(256, 8), 47
    draw = torch.Generator().manual_seed(5)
    columns = torch.randint(0, nodes, (nodes, degree), generator=draw)
    features = torch.randn(nodes, 100, generator=draw)
    labels = torch.randint(0, classes, (nodes,), generator=draw)
    sizes = (15, 10, 10)

    class Sage(nn.Module):
        def __init__(self):
            super().__init__()
            widths = (100, width, width, classes)
            self.own = nn.ModuleList(nn.Linear(i, o) for i, o in zip(widths, widths[1:]))
            self.near = nn.ModuleList(nn.Linear(i, o, False) for i, o in zip(widths, widths[1:]))

        def forward(self, x, blocks):
            for i, (src, dst, count) in enumerate(blocks):
                total = x.new_zeros(count, x.shape[1]).index_add_(0, dst, x[src])
                seen = torch.bincount(dst, minlength=count).clamp_(min=1)
                x = self.own[i](x[:count]) + self.near[i](total / seen[:, None])
                if i < 2:
                    x = F.dropout(F.normalize(x, dim=-1).relu(), 0.5, self.training)
            return x

    model = Sage().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    order = torch.randperm(nodes, generator=draw)
    for seeds in order.split(pick(8192, 16))[:5]:
        now, blocks = seeds, []
        for size in sizes:
            pick_of = torch.randint(0, degree, (len(now), size), generator=draw)
            near = columns[now[:, None], pick_of].flatten()
            new = near.unique()
            new = new[~torch.isin(new, now)]
            every = torch.cat([now, new])
            where = torch.empty(nodes, dtype=torch.long)
            where[every] = torch.arange(len(every))
            dst = torch.arange(len(now)).repeat_interleave(size)
            blocks.insert(0, (where[near], dst, len(now)))
            now = every
        blocks = [
            (src.pin_memory().to(device, non_blocking=True), dst.to(device), count)
            for src, dst, count in blocks
        ]
        x = features[now].pin_memory().to(device, non_blocking=True)
        y = labels[seeds].pin_memory().to(device, non_blocking=True)
        loss = F.cross_entropy(model(x, blocks), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def equivariant_graph_diffusion():
    """EGNN in a diffusion of molecules: edges within a cutoff by nonzero(), so that values set their number."""
    width, molecules, atoms = pick(192, 16), pick(96, 3), pick(29, 6)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            act = nn.SiLU
            self.edge = nn.Sequential(
                nn.Linear(2 * width + 1, width), act(), nn.Linear(width, width), act()
            )
            self.node = nn.Sequential(nn.Linear(2 * width, width), act(), nn.Linear(width, width))
            self.place = nn.Sequential(
                nn.Linear(width, width), act(), nn.Linear(width, 1, bias=False)
            )
            self.gate = nn.Sequential(nn.Linear(width, 1), nn.Sigmoid())

        def forward(self, h, x, src, dst):
            way = x[src] - x[dst]
            square = way.square().sum(-1, keepdim=True)
            m = self.edge(torch.cat([h[src], h[dst], square], -1))
            m = m * self.gate(m)
            push = way / (square.sqrt() + 1) * self.place(m).tanh()
            x = x.index_add(0, dst, push)
            total = torch.zeros_like(h).index_add_(0, dst, m)
            return h + self.node(torch.cat([h, total], -1)), x

    embed = nn.Linear(6, width)
    layers = nn.ModuleList(Layer() for _ in range(pick(9, 2)))
    out = nn.Linear(width, 5)
    model = nn.ModuleList([embed, layers, out]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, amsgrad=True, weight_decay=1e-12)
    group = torch.arange(molecules, device=device).repeat_interleave(atoms)
    for _ in range(4):
        x = torch.randn(molecules * atoms, 3, device=device)
        h = F.one_hot(torch.randint(0, 5, (len(x),), device=device), 5).float()
        t = torch.rand(molecules, 1, device=device)[group]
        noise_x, noise_h = torch.randn_like(x), torch.randn_like(h)
        mean = torch.zeros(molecules, 3, device=device).index_add_(0, group, noise_x) / atoms
        noise_x = noise_x - mean[group]
        x, h = (1 - t) * x + t * noise_x, (1 - t) * h + t * noise_h
        with torch.no_grad():
            near = torch.cdist(x.view(molecules, atoms, 3), x.view(molecules, atoms, 3)) < 2.5
            near &= ~torch.eye(atoms, dtype=torch.bool, device=device)
            which, a, b = near.nonzero(as_tuple=True)
            src, dst = which * atoms + a, which * atoms + b
        y, z = embed(torch.cat([h, t], -1)), x
        for layer in layers:
            y, z = layer(y, z, src, dst)
        loss = F.mse_loss(z - x, noise_x) + F.mse_loss(out(y), noise_h)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        yield loss.item()


@job()
def lattice_boltzmann_obstacles():
    """Flow around cylinders on a lattice in three dimensions (D3Q19), streaming by roll, in place."""
    shape = pick((192, 160, 128), (8, 6, 4))
    c = [(0, 0, 0)]
    c += [(s, 0, 0) for s in (1, -1)] + [(0, s, 0) for s in (1, -1)] + [(0, 0, s) for s in (1, -1)]
    c += [(a, b, 0) for a in (1, -1) for b in (1, -1)]
    c += [(a, 0, b) for a in (1, -1) for b in (1, -1)]
    c += [(0, a, b) for a in (1, -1) for b in (1, -1)]
    w = [1 / 3] + [1 / 18] * 6 + [1 / 36] * 12
    against = [c.index(tuple(-x for x in v)) for v in c]
    ways = torch.tensor(c, dtype=torch.float32, device=device)
    weights = torch.tensor(w, device=device)[:, None, None, None]
    x, y, z = torch.meshgrid(*[torch.arange(n, device=device) for n in shape], indexing="ij")
    solid = (x - shape[0] / 4) ** 2 + (y - shape[1] / 2) ** 2 < (shape[1] / 9) ** 2

    def equilibrium(rho, u):
        cu = torch.einsum("qd,dxyz->qxyz", ways, u)
        return weights * rho * (1 + 3 * cu + 4.5 * cu**2 - 1.5 * (u**2).sum(0))

    rho = torch.ones(shape, device=device)
    u = torch.zeros(3, *shape, device=device)
    u[0] = 0.04
    f = equilibrium(rho, u)
    for _ in range(4):
        for _ in range(pick(25, 2)):
            for q in range(1, 19):
                f[q] = torch.roll(f[q], c[q], (0, 1, 2))
            bounced = f[against][:, solid]
            rho = f.sum(0)
            u = torch.einsum("qd,qxyz->dxyz", ways, f) / rho
            u[:, 0] = u.new_tensor([0.04, 0, 0])[:, None, None]
            f -= (f - equilibrium(rho, u)) / 0.56
            f[:, solid] = bounced
        vorticity = torch.gradient(u[1], dim=0)[0] - torch.gradient(u[0], dim=1)[0]
        yield vorticity[:, :, shape[2] // 2].abs().max().item()


@job()
def molecular_dynamics_cell_lists():
    """Lennard-Jones particles in cells: sorted by cell, at most so many a cell, forces by autograd.

    How many particles the fullest cell has is read back and sets the size of the list.
    """
    n, cells = pick(120000, 200), pick(26, 3)
    box = cells * 2.6
    place = torch.rand(n, 3, device=device) * box
    speed = torch.randn(n, 3, device=device) * 0.1
    shifts = torch.tensor([(a, b, c) for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)])
    shifts, own = shifts.to(device), torch.arange(n, device=device)[:, None]

    def neighbours():
        with torch.no_grad():
            at = (place / 2.6).long().clamp_(0, cells - 1)
            key = (at[:, 0] * cells + at[:, 1]) * cells + at[:, 2]
            order = key.argsort()
            counts = torch.bincount(key, minlength=cells**3)
            most = int(counts.max())
            start = counts.cumsum(0) - counts
            rank = own[:, 0] - start[key[order]]
            table = torch.full((cells**3, most), -1, device=device)
            table[key[order], rank] = order
            around = (at[:, None] + shifts) % cells
            around = (around[..., 0] * cells + around[..., 1]) * cells + around[..., 2]
            near = table[around].flatten(1)
            # An empty place in the list holds the particle itself.
            return torch.where(near < 0, own, near)

    def energy(place, near):
        total = 0
        for part, index, self_ in zip(*(t.split(n // 6) for t in (place, near, own))):
            way = part[:, None] - place[index]
            way = way - box * torch.round(way / box)
            square = way.square().sum(-1).clamp(min=0.8)
            inverse = (1 / square).pow(3)
            pair = torch.where(
                (square < 6.76) & (index != self_), 4 * (inverse.square() - inverse), 0.0
            )
            total = total + 0.5 * pair.sum()
        return total

    for _ in range(4):
        near = neighbours()
        for _ in range(3):
            place.requires_grad_(True)
            (force,) = torch.autograd.grad(energy(place, near), place)
            place = place.detach()
            speed.sub_(force.clamp_(-50, 50), alpha=1e-3).mul_(0.999)
            place = (place + 1e-3 * speed) % box
        del near
        yield speed.square().mean().item()


@job()
def split_step_condensate():
    """A rotating condensate: split steps in complex128 on a cube, imaginary time first, then real time."""
    n = pick(224, 8)
    x = torch.linspace(-8, 8, n, dtype=torch.float64, device=device)
    k = 2 * math.pi * torch.fft.fftfreq(n, 16 / n, dtype=torch.float64, device=device)
    trap = 0.5 * (x[:, None, None] ** 2 + x[None, :, None] ** 2 + 4 * x**2)
    kinetic = 0.5 * (k[:, None, None] ** 2 + k[None, :, None] ** 2 + k**2)
    psi = torch.exp(-trap / 4).to(torch.complex128)
    cell = (16 / n) ** 3
    for unit in (-1, -1, -1j, -1j):
        half = torch.exp(unit * 0.0025 * kinetic)
        for _ in range(pick(15, 2)):
            psi = torch.fft.ifftn(half * torch.fft.fftn(psi))
            density = psi.real**2 + psi.imag**2
            psi = psi * torch.exp(unit * 0.005 * (trap + 100 * density))
            psi = torch.fft.ifftn(half * torch.fft.fftn(psi))
            if unit == -1:
                psi /= torch.sqrt((psi.abs() ** 2).sum() * cell)
        momentum = torch.fft.fftshift(torch.fft.fftn(psi)).abs().square()
        spin = psi.conj() * (x[:, None, None] * torch.gradient(psi, spacing=(x,), dim=1)[0])
        yield momentum.max().item(), spin.imag.sum().item()


@job()
def weather_mesh_rollout():
    """GraphCast: a grid and a mesh exchange messages; two steps of six hours, each recomputed, bfloat16."""
    lat, lon, mesh, width = pick(121, 6), pick(240, 8), pick(2562, 12), pick(512, 16)
    fields, grid = pick(78, 5), lat * lon

    def mlp(i, o=width, norm=True):
        layers = [nn.Linear(i, width), nn.SiLU(), nn.Linear(width, o)]
        return nn.Sequential(*layers, *[nn.LayerNorm(o)] * norm)

    def links(sources, targets, count):
        return (
            torch.randint(0, sources, (count,), device=device),
            torch.randint(0, targets, (count,), device=device),
            torch.randn(count, 4, device=device),
        )

    class Interaction(nn.Module):
        def __init__(self):
            super().__init__()
            self.edge, self.node = mlp(3 * width), mlp(2 * width)

        def forward(self, source, target, edge, src, dst):
            m = self.edge(torch.cat([source[src], target[dst], edge], -1))
            total = torch.zeros(target.shape, dtype=m.dtype, device=m.device)
            total.index_add_(0, dst, m)
            return target + self.node(torch.cat([target, total], -1)), edge + m

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.on_grid, self.on_mesh = mlp(2 * fields + 5), mlp(3)
            self.edges = nn.ModuleList(mlp(4) for _ in range(3))
            self.encode, self.decode = Interaction(), Interaction()
            self.process = nn.ModuleList(Interaction() for _ in range(pick(12, 2)))
            self.out = mlp(width, fields, norm=False)

        def forward(self, before, now, forcing):
            g = self.on_grid(torch.cat([before, now, forcing], -1))
            m = self.on_mesh(place)
            e = [layer(l[2]) for layer, l in zip(self.edges, (to_mesh, on_mesh, to_grid))]
            m, _ = self.encode(g, m, e[0], *to_mesh[:2])
            edge = e[1]
            for layer in self.process:
                m, edge = checkpoint(layer, m, m, edge, *on_mesh[:2], use_reentrant=False)
            g, _ = self.decode(m, g, e[2], *to_grid[:2])
            return now + self.out(g).float()

    to_mesh, on_mesh = links(grid, mesh, 2 * grid), links(mesh, mesh, pick(20460, 50))
    to_grid, place = links(mesh, grid, 3 * grid), torch.randn(mesh, 3, device=device)
    model = Model().to(device)
    weight = torch.linspace(-1.5, 1.5, lat, device=device).cos().repeat_interleave(lon)[:, None]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    for steps in (1, 2, 3):
        before, now = torch.randn(2, grid, fields, device=device)
        target = torch.randn(steps, grid, fields, device=device)
        loss = 0
        for truth in target:
            forcing = torch.randn(grid, 5, device=device)
            with torch.autocast(device, dtype=torch.bfloat16):
                after = checkpoint(model, before, now, forcing, use_reentrant=False)
            loss = loss + (weight * (after - truth).square()).mean()
            before, now = now, after
        (loss / steps).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 32.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


@job()
def hash_grid_signed_distance():
    """A surface: features from hashed grids of many resolutions, a loss on the gradient's length (twice differentiated)."""
    levels, rows, width = pick(14, 3), 2 ** pick(19, 8), 2
    primes = torch.tensor([1, 2654435761, 805459861], device=device)
    corners = torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)], device=device)

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.empty(levels, rows, width).uniform_(-1e-4, 1e-4))
            self.net = nn.Sequential(
                nn.Linear(levels * width + 3, 64),
                nn.Softplus(100),
                nn.Linear(64, 64),
                nn.Softplus(100),
            )
            self.out = nn.Linear(64, 1)

        def forward(self, x):
            found = []
            for level in range(levels):
                scaled = x * 16 * 1.4**level
                low = scaled.floor()
                part = scaled - low
                at = low.long()[:, None] + corners
                key = at * primes
                key = (key[..., 0] ^ key[..., 1] ^ key[..., 2]) % rows
                x_, y_, z_ = torch.where(corners.bool(), part[:, None], 1 - part[:, None]).unbind(
                    -1
                )
                found.append((self.table[level][key] * (x_ * y_ * z_)[..., None]).sum(1))
            return self.out(self.net(torch.cat([x, *found], -1)))

    field = Field().to(device)
    optimizer = torch.optim.Adam(
        [
            dict(params=[field.table], lr=1e-2, eps=1e-15),
            dict(params=[*field.net.parameters(), *field.out.parameters()], lr=1e-3),
        ],
        betas=(0.9, 0.99),
    )
    for _ in range(4):
        near = torch.rand(pick(100000, 50), 3, device=device)
        free = torch.rand(pick(50000, 50), 3, device=device)
        points = torch.cat([near, free]).requires_grad_()
        distance = field(points)
        (slope,) = torch.autograd.grad(
            distance, points, torch.ones_like(distance), create_graph=True
        )
        eikonal = (slope.norm(dim=-1) - 1).square().mean()
        surface = distance[: len(near)].abs().mean()
        loss = surface + 0.1 * eikonal + 0.1 * torch.exp(-50 * distance[len(near) :].abs()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
    with torch.no_grad():
        axis = torch.linspace(0, 1, pick(160, 8), device=device)
        volume = torch.cat(
            [
                field(torch.cartesian_prod(part, axis, axis)).view(len(part), len(axis), len(axis))
                for part in axis.split(4)
            ]
        )
        crossing = (volume[1:] * volume[:-1] < 0).sum()
    yield crossing.item()


@job()
def alternating_least_squares():
    """Implicit feedback: a normal matrix for each user by sparse rows, batched Cholesky solves, in parts."""
    users, items, rank, seen = pick(160000, 60), pick(40000, 40), pick(128, 6), pick(60, 5)
    liked = torch.randint(0, items, (users, seen), device=device)
    trust = 1 + 40 * torch.rand(users, seen, device=device)
    u = torch.randn(users, rank, device=device) * 0.01
    v = torch.randn(items, rank, device=device) * 0.01
    eye = 0.1 * torch.eye(rank, device=device)

    def solve(gram, rows, weight):
        a = gram + eye + torch.einsum("nkr,nk,nks->nrs", rows, weight - 1, rows)
        b = (rows * weight[..., None]).sum(1, keepdim=True).mT
        return torch.cholesky_solve(b, torch.linalg.cholesky(a)).squeeze(-1)

    for _ in range(3):
        gram = v.T @ v
        for part in torch.arange(users, device=device).split(pick(20000, 25)):
            u[part] = solve(gram, v[liked[part]], trust[part])
        # The other way: users of each item, sorted, cut to a fixed number.
        gram = u.T @ u
        order = liked.flatten().argsort(stable=True)
        item, user = liked.flatten()[order], order // seen
        count = torch.bincount(item, minlength=items)
        start = count.cumsum(0) - count
        most = pick(200, 8)
        for part in torch.arange(items, device=device).split(pick(8000, 20)):
            at = start[part, None] + torch.arange(most, device=device)
            there = torch.arange(most, device=device) < count[part, None]
            at = at.clamp(max=len(order) - 1)
            weight = torch.where(there, trust.flatten()[order[at]], 1.0)
            v[part] = solve(gram, u[user[at]] * there[..., None], weight)
        guess = torch.einsum("nr,nkr->nk", u[:1000], v[liked[:1000]])
        yield guess.mean().item()


@job()
def hamiltonian_monte_carlo_chains():
    """A Bayesian network: many chains at once by vmap over a functional call, leapfrog, accept or not by where()."""
    chains, n = pick(64, 3), pick(4000, 20)
    net = nn.Sequential(
        nn.Linear(20, pick(256, 8)), nn.Tanh(), nn.Linear(pick(256, 8), pick(256, 8)), nn.Tanh()
    )
    net.append(nn.Linear(pick(256, 8), 1)).to(device)
    x, y = torch.randn(n, 20, device=device), torch.randn(n, 1, device=device)

    def energy(params):
        out = functional_call(net, params, (x,))
        prior = sum(p.square().sum() for p in params.values())
        return 50 * (out - y).square().sum() / n + 0.5 * prior

    slope = vmap(grad_and_value(energy))
    params = {
        k: p.detach() + 0.1 * torch.randn(chains, *p.shape, device=device)
        for k, p in net.named_parameters()
    }
    kept = []
    for _ in range(5):
        speed = {k: torch.randn_like(p) for k, p in params.items()}
        kinetic = lambda s: sum(v.square().flatten(1).sum(1) for v in s.values()) / 2
        grads, before = slope(params)
        total = before + kinetic(speed)
        now = params
        for _ in range(pick(12, 2)):
            speed = {k: speed[k] - 0.005 * grads[k] for k in now}
            now = {k: now[k] + 0.01 * speed[k] for k in now}
            grads, after = slope(now)
            speed = {k: speed[k] - 0.005 * grads[k] for k in now}
        accept = torch.rand(chains, device=device).log() < total - after - kinetic(speed)
        params = {
            k: torch.where(accept.view(-1, *[1] * (p.dim() - 1)), now[k], p)
            for k, p in params.items()
        }
        kept.append({k: p[:8].cpu() for k, p in params.items()})
        yield accept.float().mean().item()


if __name__ == "__main__":
    main()
