"""Modules written out: perceptrons, encoders, tables, graphs, derivatives, linear algebra, experts.

`python plain_modules.py NAME` as in training.py.
"""

from builders import module
from training import main


def mlp(opt):
    def build():
        import torch

        m = torch.nn.Sequential(
            *[l for _ in range(12) for l in (torch.nn.Linear(4096, 4096), torch.nn.ReLU())]
        ).cuda()

        def batch():
            return torch.randn(8192, 4096, device="cuda")

        return m, batch, lambda b: m(b).pow(2).mean()

    return dict(build=build, opt=opt, amp=None)


def encoder(amp):
    def make(torch):
        from torch import nn

        return nn.Sequential(
            nn.Linear(64, 512),
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True), 6
            ),
            nn.Linear(512, 64),
        )

    return module(
        make,
        lambda torch: torch.randn(32, 256, 64, device="cuda"),
        lambda torch, m, b: (m(b) - b).pow(2).mean(),
        opt="adamw",
        amp=amp,
    )


def fft_net():
    def make(torch):
        from torch import nn

        class F(nn.Module):
            def __init__(s, c):
                super().__init__()
                s.w = nn.Parameter(torch.randn(c, 64, 33, 2) * 0.02)
                s.m = nn.Sequential(
                    nn.LayerNorm([c, 64, 64]),
                    nn.Conv2d(c, 2 * c, 1),
                    nn.GELU(),
                    nn.Conv2d(2 * c, c, 1),
                )

            def forward(s, x):
                return x + s.m(
                    torch.fft.irfft2(torch.fft.rfft2(x) * torch.view_as_complex(s.w), s=(64, 64))
                )

        return nn.Sequential(nn.Conv2d(3, 96, 1), *[F(96) for _ in range(4)], nn.Conv2d(96, 3, 1))

    return module(
        make,
        lambda torch: torch.randn(16, 3, 64, 64, device="cuda"),
        lambda torch, m, b: (m(b) - b).pow(2).mean(),
    )


def recommender():
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.e = nn.ModuleList([nn.EmbeddingBag(200000, 64, mode="sum") for _ in range(8)])
                s.m = nn.Sequential(
                    nn.Linear(512 + 13, 512),
                    nn.ReLU(),
                    nn.Dropout(0.1),
                    nn.Linear(512, 256),
                    nn.ReLU(),
                    nn.Linear(256, 1),
                )

            def forward(s, d, ids):
                return s.m(torch.cat([d] + [e(ids[:, i]) for i, e in enumerate(s.e)], 1)).squeeze(1)

        return M()

    return module(
        make,
        lambda torch: (
            torch.randn(8192, 13, device="cuda"),
            torch.randint(0, 200000, (8192, 8, 4), device="cuda"),
            torch.rand(8192, device="cuda"),
        ),
        lambda torch, m, b: torch.nn.functional.binary_cross_entropy_with_logits(
            m(b[0], b[1]), b[2]
        ),
    )


def graph_net():
    def make(torch):
        from torch import nn

        class Layer(nn.Module):
            def __init__(s, i, o):
                super().__init__()
                s.a, s.b = nn.Linear(i, o), nn.Linear(i, o)

            def forward(s, x, src, dst):
                h = torch.zeros(x.shape[0], x.shape[1], device=x.device).index_add_(0, dst, x[src])
                degree = (
                    torch.zeros(x.shape[0], device=x.device)
                    .scatter_add_(0, dst, torch.ones_like(dst, dtype=torch.float))
                    .clamp(min=1)
                )
                return s.a(x) + s.b(h / degree[:, None])

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.l = nn.ModuleList([Layer(128, 256), Layer(256, 256), Layer(256, 40)])

            def forward(s, x, src, dst):
                for i, l in enumerate(s.l):
                    x = l(x, src, dst)
                    x = x if i == 2 else nn.functional.dropout(x.relu(), 0.5, s.training)
                return x

        return M()

    def batch(torch):
        return (
            torch.randn(50000, 128, device="cuda"),
            torch.randint(0, 50000, (600000,), device="cuda"),
            torch.randint(0, 50000, (600000,), device="cuda"),
            torch.randint(0, 40, (50000,), device="cuda"),
        )

    return module(
        make, batch, lambda torch, m, b: torch.nn.functional.cross_entropy(m(*b[:3]), b[3])
    )


def pinn():
    """A second derivative: the graph of the gradient is differentiated again."""

    def make(torch):
        from torch import nn

        return nn.Sequential(
            nn.Linear(2, 256),
            nn.Tanh(),
            *[l for _ in range(5) for l in (nn.Linear(256, 256), nn.Tanh())],
            nn.Linear(256, 1),
        )

    def loss(torch, m, x):
        x = x.requires_grad_()
        u = m(x)
        (g,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (gg,) = torch.autograd.grad(g[:, 0].sum(), x, create_graph=True)
        return (g[:, 1] - gg[:, 0]).pow(2).mean() + u.pow(2).mean()

    return module(make, lambda torch: torch.rand(40000, 2, device="cuda"), loss)


def linear_algebra():
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.n = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64 * 64))

            def forward(s, x):
                a = s.n(x).view(-1, 64, 64)
                p = a @ a.mT + 4 * torch.eye(64, device=x.device)
                l = torch.linalg.cholesky(p)
                y = torch.linalg.solve(p, x[..., None])
                return (
                    torch.linalg.slogdet(p)[1].mean()
                    + y.pow(2).mean()
                    + torch.linalg.svdvals(a[:16]).sum()
                    + l.diagonal(dim1=-2, dim2=-1).log().mean()
                )

        return M()

    return module(make, lambda torch: torch.randn(512, 64, device="cuda"), lambda torch, m, b: m(b))


def experts():
    """Tokens routed by boolean masks and nonzero, as written by hand."""

    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.i = nn.Linear(64, 512)
                s.g = nn.Linear(512, 8)
                s.e = nn.ModuleList(
                    [
                        nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
                        for _ in range(8)
                    ]
                )
                s.o = nn.Linear(512, 64)

            def forward(s, x):
                h = s.i(x)
                w, k = s.g(h).softmax(-1).topk(2, -1)
                y = torch.zeros_like(h)
                for i, e in enumerate(s.e):
                    t, n = (k == i).nonzero(as_tuple=True)
                    y = y.index_add(0, t, e(h[t]) * w[t, n, None])
                return s.o(y)

        return M()

    return module(
        make,
        lambda torch: torch.randn(16384, 64, device="cuda"),
        lambda torch, m, b: (m(b) - b).pow(2).mean(),
        opt="adamw",
    )


def tcn():
    def make(torch):
        from torch import nn

        return nn.Sequential(
            *[
                l
                for i, d in ((16, 1), (128, 2), (128, 4), (128, 8), (128, 16))
                for l in (
                    nn.Conv1d(i, 128, 5, padding=2 * d, dilation=d),
                    nn.BatchNorm1d(128),
                    nn.ReLU(),
                    nn.Dropout(0.1),
                )
            ],
            nn.Conv1d(128, 1, 1),
        )

    return module(
        make,
        lambda torch: torch.randn(64, 16, 2048, device="cuda"),
        lambda torch, m, b: m(b).pow(2).mean(),
    )


JOBS = {
    "mlp_sgd": lambda: mlp("sgd"),
    "mlp_adamw_fused": lambda: mlp("adamw_fused"),
    "encoder_fp32_b32": lambda: encoder(None),
    "encoder_fp16_b32": lambda: encoder("fp16"),
    "fft_net_b16": fft_net,
    "recommender_b8192": recommender,
    "graph_net": graph_net,
    "pinn_40000": pinn,
    "linear_algebra_b512": linear_algebra,
    "experts_16384": experts,
    "tcn_b64": tcn,
}

if __name__ == "__main__":
    main(JOBS)
