import torch


class WingHeatmapLoss:
    """Adaptive wing loss, weighted where the target is warm."""

    def __init__(self, omega, epsilon, gamma, alpha=2.1, theta=0.5):
        self.omega, self.epsilon, self.gamma, self.alpha, self.theta = (
            omega,
            epsilon,
            gamma,
            alpha,
            theta,
        )

    def one(self, pred, target):
        delta = (target - pred).abs()
        power = self.alpha - target
        ratio = self.theta / self.epsilon
        a = self.omega * (1 / (1 + ratio**power)) * power * ratio ** (power - 1) / self.epsilon
        c = self.theta * a - self.omega * torch.log1p(ratio**power)
        small = self.omega * torch.log1p((delta / self.epsilon) ** power)
        loss = torch.where(delta < self.theta, small, a * delta - c)
        return (loss * (1 + 10 * (target > 0.2).float())).mean()

    def __call__(self, maps, target):
        total = 0
        for i, m in enumerate(reversed(maps)):
            total = total + self.gamma**i * self.one(m.float(), target)
        return total
