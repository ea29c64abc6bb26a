"""Scientific computing: graphs, sparse matrices, differential equations, linear algebra, particles."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from job import device, job, main, pick


def perceptron(*widths, act=nn.SiLU):
    layers = []
    for i, o in zip(widths, widths[1:]):
        layers += [nn.Linear(i, o), act()]
    return nn.Sequential(*layers[:-1])


@job()
def graph_attention_scatter():
    """Graph attention: softmax over each node's edges by scatter_reduce and index_add."""
    nodes, edges, heads, width = pick(60000, 50), pick(900000, 200), 4, pick(64, 8)

    class Layer(nn.Module):
        def __init__(self, i):
            super().__init__()
            self.value = nn.Linear(i, heads * width, bias=False)
            self.source = nn.Parameter(torch.randn(heads, width) * 0.1)
            self.target = nn.Parameter(torch.randn(heads, width) * 0.1)

        def forward(self, x, src, dst):
            h = self.value(x).view(-1, heads, width)
            score = (h * self.source).sum(-1)[src] + (h * self.target).sum(-1)[dst]
            score = F.leaky_relu(score, 0.2)
            index = dst[:, None].expand(-1, heads)
            most = torch.full((len(x), heads), -math.inf, device=x.device)
            most = most.scatter_reduce(0, index, score.detach(), "amax")
            weight = (score - most[dst]).exp()
            total = torch.zeros_like(most).index_add(0, dst, weight)
            weight = F.dropout(weight / (total[dst] + 1e-16), 0.3, self.training)
            out = torch.zeros_like(h).index_add(0, dst, h[src] * weight[..., None])
            return out.flatten(1)

    layers = nn.ModuleList([Layer(100), Layer(heads * width), Layer(heads * width)]).to(device)
    head = nn.Linear(heads * width, 47).to(device)
    model = nn.ModuleList([layers, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    x = torch.randn(nodes, 100, device=device)
    src = torch.randint(0, nodes, (edges,), device=device)
    dst = torch.randint(0, nodes, (edges,), device=device)
    y = torch.randint(0, 47, (nodes,), device=device)
    train = torch.arange(nodes, device=device) < nodes // 2
    for _ in range(4):
        model.train()
        h = x
        for layer in layers:
            h = F.elu(layer(h, src, dst))
        loss = F.cross_entropy(head(h)[train], y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def gcn_sparse_coo():
    """Graph convolution as a product with a sparse COO matrix, full batch."""
    nodes, edges, width = pick(120000, 60), pick(2000000, 300), pick(256, 8)
    place = torch.randint(0, nodes, (2, edges), device=device)
    value = torch.rand(edges, device=device)
    matrix = torch.sparse_coo_tensor(place, value, (nodes, nodes)).coalesce()
    layers = nn.ModuleList([nn.Linear(128, width), nn.Linear(width, width), nn.Linear(width, 64)])
    layers.to(device)
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-2)
    x = torch.randn(nodes, 128, device=device)
    y = torch.randint(0, 64, (nodes,), device=device)
    for _ in range(4):
        h = x
        for i, layer in enumerate(layers):
            h = torch.sparse.mm(matrix, layer(h))
            if i < 2:
                h = F.dropout(h.relu(), 0.5)
        loss = F.cross_entropy(h, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def laplacian(side):
    """The five-point Laplacian of a square grid as a CSR matrix of float64."""
    index = torch.arange(side * side).view(side, side)
    pairs = [(index, index, 4.0)]
    for a, b in ((index[1:], index[:-1]), (index[:, 1:], index[:, :-1])):
        pairs += [(a, b, -1.0), (b, a, -1.0)]
    rows = torch.cat([a.flatten() for a, _, _ in pairs])
    columns = torch.cat([b.flatten() for _, b, _ in pairs])
    values = torch.cat([torch.full((a.numel(),), v, dtype=torch.float64) for a, _, v in pairs])
    size = (side * side, side * side)
    return torch.sparse_coo_tensor(torch.stack([rows, columns]), values, size).to_sparse_csr()


@job()
def conjugate_gradients_csr():
    """Poisson's equation on a grid: conjugate gradients with a sparse CSR matrix, several right sides."""
    side = pick(1024, 12)
    matrix = laplacian(side).to(device)
    for sides in (pick(8, 2), pick(16, 2)):
        b = torch.randn(side * side, sides, dtype=torch.float64, device=device)
        x = torch.zeros_like(b)
        r = b - matrix @ x
        p, rr = r.clone(), r.pow(2).sum(0)
        for _ in range(pick(60, 3)):
            ap = matrix @ p
            alpha = rr / (p * ap).sum(0)
            x = x + alpha * p
            r = r - alpha * ap
            new = r.pow(2).sum(0)
            p = r + new / rr * p
            rr = new
        yield rr.max().item()


@job()
def navier_stokes_pinn():
    """A stream function's derivatives up to the third by autograd, trained with a boundary loss."""
    net = perceptron(3, *[pick(256, 16)] * 6, 2, act=nn.Tanh).to(device)
    viscosity = nn.Parameter(torch.tensor(0.01, device=device))
    optimizer = torch.optim.Adam([*net.parameters(), viscosity], lr=1e-3)

    def d(y, x):
        return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

    for _ in range(4):
        points = torch.rand(pick(30000, 40), 3, device=device)
        x, y, t = (c.requires_grad_() for c in points.split(1, 1))
        psi, p = net(torch.cat([x, y, t], 1)).split(1, 1)
        u, v = d(psi, y), -d(psi, x)
        ux, uy, ut, vx, vy, vt = d(u, x), d(u, y), d(u, t), d(v, x), d(v, y), d(v, t)
        f = ut + u * ux + v * uy + d(p, x) - viscosity * (d(ux, x) + d(uy, y))
        g = vt + u * vx + v * vy + d(p, y) - viscosity * (d(vx, x) + d(vy, y))
        wall = net(torch.rand(pick(5000, 10), 3, device=device))
        loss = f.pow(2).mean() + g.pow(2).mean() + wall.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def laplacian_by_torch_func():
    """Heat equation: the Hessian of a network at each point with torch.func (vmap over hessian)."""
    net = perceptron(3, *[pick(128, 8)] * 4, 1, act=nn.Tanh).to(device)
    parameters = dict(net.named_parameters())

    def value(point, parameters):
        return torch.func.functional_call(net, parameters, point).squeeze()

    def residual(point, parameters):
        hessian = torch.func.hessian(value)(point, parameters)
        slope = torch.func.grad(value)(point, parameters)
        return slope[0] - 0.1 * (hessian[1, 1] + hessian[2, 2])

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(4):
        points = torch.rand(pick(16384, 16), 3, device=device)
        loss = torch.func.vmap(residual, (0, None))(points, parameters).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def neural_ode_rk4():
    """A continuous normalizing flow, RK4 by hand, backward through every stage; Hutchinson's trace."""
    net = perceptron(65, *[pick(512, 16)] * 3, 64, act=nn.Tanh).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(4):
        x = torch.randn(pick(4096, 8), 64, device=device, requires_grad=True)
        noise = torch.randn_like(x)

        def rate(t, x):
            out = net(F.pad(x, (0, 1), value=t))
            back = torch.autograd.grad(out, x, noise, create_graph=True)[0]
            return out, (back * noise).sum(1)

        h, logs, steps = 1 / 12, 0, pick(12, 2)
        for i in range(steps):
            t = i * h
            k1, l1 = rate(t, x)
            k2, l2 = rate(t + h / 2, x + h / 2 * k1)
            k3, l3 = rate(t + h / 2, x + h / 2 * k2)
            k4, l4 = rate(t + h, x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            logs = logs + h / 6 * (l1 + 2 * l2 + 2 * l3 + l4)
        loss = (0.5 * x.pow(2).sum(1) - logs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def turbulence_fft_solver():
    """Two-dimensional turbulence, pseudo-spectral in float64, no gradient."""
    n = pick(2048, 32)
    k = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64, device=device)
    kr = torch.fft.rfftfreq(n, 1 / n, dtype=torch.float64, device=device)
    ky, kx = torch.meshgrid(k, kr, indexing="ij")
    square = kx**2 + ky**2
    inverse = torch.where(square > 0, 1 / square, 0.0)
    keep = (kx.abs() < n / 3) & (ky.abs() < n / 3)
    w = torch.fft.rfft2(torch.randn(n, n, dtype=torch.float64, device=device)) * keep

    def slope(w):
        psi = w * inverse
        u, v = torch.fft.irfft2(1j * ky * psi), torch.fft.irfft2(-1j * kx * psi)
        wx, wy = torch.fft.irfft2(1j * kx * w), torch.fft.irfft2(1j * ky * w)
        return -torch.fft.rfft2(u * wx + v * wy) * keep - 1e-4 * square * w

    with torch.no_grad():
        for _ in range(4):
            for _ in range(pick(10, 2)):
                middle = w + 0.0005 * slope(w)
                w = w + 0.001 * slope(middle)
            energy = (w.abs().pow(2) * inverse).sum().item()
            yield energy


@job()
def wave_inversion_time_domain():
    """Full-waveform inversion: a velocity map is fitted through 200 steps of the wave equation."""
    n, shots = pick(256, 24), pick(8, 2)
    velocity = torch.full((n, n), 2.0, device=device).requires_grad_()
    optimizer = torch.optim.Adam([velocity], lr=0.01)
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], device=device)[None, None]
    seen = torch.randn(shots, pick(200, 5), n, device=device)
    at = torch.linspace(4, n - 5, shots).long().to(device)
    every = torch.arange(shots, device=device)
    for _ in range(3):
        before = now = torch.zeros(shots, n, n, device=device)
        kept = []
        for t in range(seen.shape[1]):
            curve = F.conv2d(now[:, None], kernel, padding=1)[:, 0]
            after = 2 * now - before + 0.01 * velocity**2 * curve
            pulse = math.exp(-((t - 20) ** 2) / 50)
            after = after.index_put(
                (every, torch.full_like(at, 4), at), after.new_tensor(pulse), True
            )
            before, now = now, after
            kept.append(now[:, 8])
        loss = F.mse_loss(torch.stack(kept, 1), seen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def low_rank_compression_svd():
    """Singular value decompositions of a model's weights, one after the other, and a fine-tuning step."""
    width = pick(1536, 24)
    model = perceptron(*[width] * 5, act=nn.ReLU).to(device)
    small = []
    for layer in model:
        if isinstance(layer, nn.Linear):
            with torch.no_grad():
                u, s, vh = torch.linalg.svd(layer.weight, full_matrices=False)
                rank = width // 8
                a, b = nn.Linear(width, rank, bias=False), nn.Linear(rank, width)
                a, b = a.to(device), b.to(device)
                a.weight.copy_(s[:rank, None].sqrt() * vh[:rank])
                b.weight.copy_(u[:, :rank] * s[:rank].sqrt())
            small += [a, b]
            yield
        else:
            small.append(layer)
    compact = nn.Sequential(*small)
    optimizer = torch.optim.SGD(compact.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(2):
        x = torch.randn(pick(16384, 4), width, device=device)
        with torch.no_grad():
            wanted = model(x)
        loss = F.mse_loss(compact(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def pca_and_whitening_eigh():
    """Principal components of features, whitening by eigh, canonical correlations by svd and qr."""
    n, width = pick(200000, 100), pick(1536, 12)
    for _ in range(3):
        x = torch.randn(n, width, device=device)
        y = torch.randn(n, width // 2, device=device)
        x, y = x - x.mean(0), y - y.mean(0)
        values, vectors = torch.linalg.eigh(x.T @ x / n)
        white = x @ (vectors * (values + 1e-3).rsqrt())
        q, r = torch.linalg.qr(y)
        correlations = torch.linalg.svdvals(white[:, : width // 2].T @ q)
        yield correlations[0].item()


@job()
def gaussian_process_regression():
    """Exact Gaussian process in float64: Cholesky, hyperparameters by gradient, then predictions."""
    n = pick(6000, 30)
    x = torch.rand(n, 6, dtype=torch.float64, device=device)
    y = torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(n, dtype=torch.float64, device=device)
    logs = torch.zeros(8, dtype=torch.float64, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([logs], lr=0.05)

    def kernel(a, b):
        scale = logs[:6].exp()
        return logs[6].exp() * torch.exp(-0.5 * torch.cdist(a / scale, b / scale).pow(2))

    eye = torch.eye(n, dtype=torch.float64, device=device)
    for _ in range(3):
        factor = torch.linalg.cholesky(kernel(x, x) + (logs[7].exp() * 0.01 + 1e-4) * eye)
        alpha = torch.cholesky_solve(y[:, None], factor)
        loss = 0.5 * (y[:, None] * alpha).sum() + factor.diagonal().log().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield
    with torch.no_grad():
        new = torch.rand(pick(2000, 10), 6, dtype=torch.float64, device=device)
        cross = kernel(new, x)
        mean = cross @ alpha
        half = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        variance = logs[6].exp() - half.pow(2).sum(0)
        yield (mean.sum() + variance.sum()).item()


@job()
def batched_kalman_filters():
    """Many filters at once: solve, inv, lu and eigvals of small matrices, gradient through all steps."""
    batch, state, seen = pick(2048, 3), pick(32, 4), pick(16, 2)
    move = nn.Parameter(
        torch.eye(state, device=device) + 0.01 * torch.randn(state, state, device=device)
    )
    look = nn.Parameter(torch.randn(seen, state, device=device) * 0.1)
    noise = nn.Parameter(torch.zeros(state, device=device))
    optimizer = torch.optim.Adam([move, look, noise], lr=1e-3)
    eye, small_eye = torch.eye(state, device=device), torch.eye(seen, device=device)
    for _ in range(4):
        data = torch.randn(pick(25, 3), batch, seen, device=device)
        mean = torch.zeros(batch, state, 1, device=device)
        cover = eye.expand(batch, state, state)
        loss = 0
        for z in data:
            mean = move @ mean
            cover = move @ cover @ move.T + torch.diag(noise.exp())
            inner = look @ cover @ look.T + small_eye
            gain = torch.linalg.solve(inner, look @ cover).mT
            wrong = z[..., None] - look @ mean
            mean = mean + gain @ wrong
            cover = (eye - gain @ look) @ cover
            loss = loss + torch.linalg.slogdet(inner)[1].mean()
            loss = loss + (wrong.mT @ torch.linalg.inv(inner) @ wrong).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            radius = torch.linalg.eigvals(move).abs().max().item()
        yield radius


@job()
def n_body_leapfrog():
    """Gravity between all pairs, leapfrog, energies; then initial velocities by gradient."""
    n = pick(6000, 20)

    def pull(x, m):
        d = x[None] - x[:, None]
        r = (d.pow(2).sum(-1) + 0.01).rsqrt()
        return (m[None, :, None] * d * r.pow(3)[..., None]).sum(1)

    x, v = torch.randn(n, 3, device=device), torch.randn(n, 3, device=device) * 0.1
    m = torch.rand(n, device=device) / n
    for _ in range(3):
        with torch.no_grad():
            for _ in range(pick(10, 2)):
                v = v + 0.005 * pull(x, m)
                x = x + 0.01 * v
                v = v + 0.005 * pull(x, m)
        yield (0.5 * m * v.pow(2).sum(1)).sum().item()
    few = pick(1500, 10)
    guess = v[:few].clone().requires_grad_()
    optimizer = torch.optim.Adam([guess], lr=1e-3)
    for _ in range(2):
        at, speed = x[:few], guess
        for _ in range(pick(8, 2)):
            speed = speed + 0.01 * pull(at, m[:few])
            at = at + 0.01 * speed
        loss = at.pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def schnet_energies_and_forces():
    """Molecules: continuous-filter convolutions; forces are a gradient, trained by a second one."""
    width, atoms, molecules = pick(256, 16), 30, pick(96, 2)

    class SchNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(100, width)
            self.register_buffer("centers", torch.linspace(0, 6, 64))
            self.filters = nn.ModuleList([perceptron(64, width, width) for _ in range(5)])
            self.inputs = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(5)])
            self.outputs = nn.ModuleList([perceptron(width, width, width) for _ in range(5)])
            self.read = perceptron(width, width // 2, 1)

        def forward(self, z, x, src, dst, owner):
            far = (x[src] - x[dst]).pow(2).sum(1, keepdim=True).add(1e-6).sqrt()
            basis = torch.exp(-8 * (far - self.centers).pow(2))
            cut = 0.5 * (torch.cos(far * math.pi / 6) + 1) * (far < 6)
            h = self.embed(z)
            for f, i, o in zip(self.filters, self.inputs, self.outputs):
                message = i(h)[src] * f(basis) * cut
                h = h + o(torch.zeros_like(h).index_add(0, dst, message))
            e = self.read(h).squeeze(1)
            return torch.zeros(molecules, device=e.device).index_add(0, owner, e)

    model = SchNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    one = torch.combinations(torch.arange(atoms)).T
    one = torch.cat([one, one.flip(0)], 1)
    shift = torch.arange(molecules)[:, None, None] * atoms
    src, dst = (one[None] + shift).transpose(0, 1).flatten(1).to(device)
    owner = torch.arange(molecules, device=device).repeat_interleave(atoms)
    for _ in range(4):
        z = torch.randint(1, 10, (molecules * atoms,), device=device)
        x = torch.randn(len(z), 3, device=device, requires_grad=True)
        energy = model(z, x, src, dst, owner)
        (force,) = torch.autograd.grad(-energy.sum(), x, create_graph=True)
        loss = 0.01 * energy.pow(2).mean() + (force - torch.randn_like(force)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def optimal_transport_sinkhorn():
    """Point clouds matched by Sinkhorn's algorithm in the log domain, gradient through the rounds."""
    points = nn.Parameter(torch.randn(pick(8, 2), pick(1024, 12), 3, device=device))
    optimizer = torch.optim.Adam([points], lr=1e-2)
    for _ in range(4):
        other = torch.randn_like(points) + 1
        cost = torch.cdist(points, other).pow(2)
        f = torch.zeros_like(cost[:, :, 0])
        g = torch.zeros_like(cost[:, 0])
        for _ in range(pick(30, 3)):
            f = -0.05 * torch.logsumexp((g[:, None] - cost) / 0.05, 2)
            g = -0.05 * torch.logsumexp((f[:, :, None] - cost) / 0.05, 1)
        plan = ((f[:, :, None] + g[:, None] - cost) / 0.05).exp()
        loss = (plan * cost).sum() / len(points)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def equilibrium_model_anderson():
    """A deep equilibrium model: a fixed point by Anderson's method, gradient by one more solve."""
    width, memory = pick(48, 4), 5
    conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False).to(device)
    conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False).to(device)
    norms = nn.ModuleList([nn.GroupNorm(4, width) for _ in range(3)]).to(device)
    stem = nn.Conv2d(3, width, 3, padding=1).to(device)
    head = nn.Linear(width, 10).to(device)
    model = nn.ModuleList([conv1, conv2, norms, stem, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def layer(z, x):
        return norms[2]((z + norms[1](x + conv2(norms[0](conv1(z).relu())))).relu())

    def anderson(f, z):
        batch = len(z)
        xs = torch.zeros(batch, memory, z[0].numel(), device=z.device)
        fs = torch.zeros_like(xs)
        xs[:, 0], fs[:, 0] = z.flatten(1), f(z).flatten(1)
        xs[:, 1] = fs[:, 0]
        fs[:, 1] = f(fs[:, 0].view_as(z)).flatten(1)
        system = torch.zeros(batch, memory + 1, memory + 1, device=z.device)
        system[:, 0, 1:] = system[:, 1:, 0] = 1
        right = torch.zeros(batch, memory + 1, 1, device=z.device)
        right[:, 0] = 1
        for k in range(2, pick(12, 4)):
            n = min(k, memory)
            g = fs[:, :n] - xs[:, :n]
            system[:, 1 : n + 1, 1 : n + 1] = g @ g.mT + 1e-4 * torch.eye(n, device=z.device)
            mix = torch.linalg.solve(system[:, : n + 1, : n + 1], right[:, : n + 1])[:, 1:, 0]
            xs[:, k % memory] = (mix[:, None] @ fs[:, :n])[:, 0]
            fs[:, k % memory] = f(xs[:, k % memory].view_as(z)).flatten(1)
        return xs[:, k % memory].view_as(z)

    for _ in range(4):
        images = torch.randn(pick(128, 2), 3, pick(32, 8), pick(32, 8), device=device)
        x = stem(images)
        with torch.no_grad():
            z = anderson(lambda z: layer(z, x), torch.zeros_like(x))
        z = layer(z, x)
        start = z.detach().clone().requires_grad_()
        again = layer(start, x)
        z.register_hook(
            lambda grad: anderson(
                lambda y: torch.autograd.grad(again, start, y, retain_graph=True)[0] + grad, grad
            )
        )
        labels = torch.randint(0, 10, (len(images),), device=device)
        loss = F.cross_entropy(head(z.mean((2, 3))), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def regression_lstsq_ensembles():
    """Random features and least squares, many bootstraps in one batch, pinv and matrix_exp."""
    batch, n, width = pick(64, 2), pick(6000, 40), pick(256, 6)
    for _ in range(3):
        x = torch.randn(batch, n, 16, device=device)
        features = torch.cos(x @ torch.randn(16, width, device=device))
        target = torch.randn(batch, n, 4, device=device)
        answer = torch.linalg.lstsq(features, target).solution
        spare = torch.linalg.pinv(features[:6, :512])
        flow = torch.linalg.matrix_exp(answer.mT @ answer * 0.01)
        lu, pivots = torch.linalg.lu_factor(
            features.mT @ features + torch.eye(width, device=device)
        )
        again = torch.linalg.lu_solve(lu, pivots, features.mT @ target)
        yield (flow.sum() + spare.sum() + again.sum()).item()


if __name__ == "__main__":
    main()
