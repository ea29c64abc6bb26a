"""Levels of ground water by an exact Gaussian process: the kernel of 10,000 wells, marginal likelihood by Cholesky, hyperparameters by L-BFGS."""

import math

import torch


class MaternARD(torch.nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.log_length = torch.nn.Parameter(torch.zeros(dims))
        self.log_variance = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x, y):
        scale = self.log_length.exp()
        d = torch.cdist(x / scale, y / scale, compute_mode="use_mm_for_euclid_dist") * math.sqrt(5)
        return self.log_variance.exp() * (1 + d + d * d / 3) * torch.exp(-d)


class ExactGP(torch.nn.Module):
    def __init__(self, x, y):
        super().__init__()
        self.kernel = MaternARD(x.shape[1])
        self.mean = torch.nn.Parameter(torch.zeros(()))
        self.log_noise = torch.nn.Parameter(torch.tensor(-2.0))
        self.register_buffer("x", x)
        self.register_buffer("y", y)

    def negative_log_likelihood(self):
        n = len(self.x)
        k = self.kernel(self.x, self.x)
        k = k + (self.log_noise.exp() + 1e-4) * torch.eye(n, device=k.device)
        factor = torch.linalg.cholesky_ex(k).L
        residual = (self.y - self.mean)[:, None]
        alpha = torch.cholesky_solve(residual, factor)
        logdet = factor.diagonal().clamp(min=1e-6).log().sum()
        return (0.5 * (residual * alpha).sum() + logdet + 0.5 * n * math.log(2 * math.pi)) / n


def main():
    wells = torch.rand(10_000, 6, device="cuda")
    level = torch.sin(3 * wells).sum(1) + 0.1 * torch.randn(len(wells), device="cuda")
    gp = ExactGP(wells, level).cuda()
    optimizer = torch.optim.LBFGS(gp.parameters(), lr=0.1, max_iter=2, history_size=5)

    def closure():
        optimizer.zero_grad()
        loss = gp.negative_log_likelihood()
        loss.backward()
        return loss

    for outer in range(4):
        loss = optimizer.step(closure)
        print(outer, loss.item())


if __name__ == "__main__":
    main()
