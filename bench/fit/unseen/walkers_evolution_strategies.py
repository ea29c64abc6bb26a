"""Evolution strategies for a simulated walker: 1024 mirrored perturbations of one policy act in 1024 copies of the
world at once (vmap over the weights), rank-shaped returns make the gradient, Adam moves the mean. No backward pass."""

import math

import torch
from torch import nn
from torch.func import functional_call, vmap

OBS, ACT, HIDDEN = 376, 17, 640
POPULATION, SIGMA, HORIZON = 1024, 0.02, 150


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(OBS, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, ACT),
        )

    def forward(self, obs):
        return torch.tanh(self.body(obs))


class Walkers:
    """Damped oscillators, pushed by the actions; the reward is forward speed less effort."""

    def __init__(self, n, device, dt=0.05):
        g = torch.Generator(device=device).manual_seed(0)
        half = OBS // 2
        self.n, self.dt, self.device = n, dt, device
        self.stiff = torch.randn(half, half, generator=g, device=device) / math.sqrt(half)
        self.stiff = self.stiff @ self.stiff.T + 0.1 * torch.eye(half, device=device)
        self.push = torch.randn(ACT, half, generator=g, device=device) / math.sqrt(ACT)
        self.ahead = torch.randn(half, generator=g, device=device) / math.sqrt(half)

    def reset(self):
        start = 0.1 * torch.randn(1, OBS, device=self.device)  # the same for all, else luck decides
        self.pos, self.vel = start.expand(self.n, -1).chunk(2, 1)
        self.alive = torch.ones(self.n, device=self.device)
        return torch.cat([self.pos, self.vel], 1)

    def step(self, action):
        force = action @ self.push - self.pos @ self.stiff - 0.1 * self.vel
        self.vel = self.vel + self.dt * force
        self.pos = self.pos + self.dt * self.vel
        self.alive = self.alive * (self.pos.abs().amax(1) < 8).float()
        reward = self.vel @ self.ahead - 0.05 * action.square().sum(1) + 0.1
        return torch.cat([self.pos, self.vel], 1), reward * self.alive


class RunningNorm:
    def __init__(self, device):
        self.n, self.mean, self.m2 = (
            1e-4,
            torch.zeros(OBS, device=device),
            torch.ones(OBS, device=device),
        )

    def __call__(self, x, update=True):
        if update:
            k, mean = len(x), x.mean(0)
            delta = mean - self.mean
            total = self.n + k
            self.mean = self.mean + delta * k / total
            self.m2 = self.m2 + (x - mean).square().sum(0) + delta.square() * self.n * k / total
            self.n = total
        return ((x - self.mean) / (self.m2 / self.n).sqrt().clamp(min=1e-2)).clamp(-5, 5)


def centred_ranks(x):
    ranks = torch.empty_like(x)
    ranks[x.argsort()] = torch.arange(len(x), device=x.device, dtype=x.dtype)
    return ranks / (len(x) - 1) - 0.5


@torch.no_grad()
def generation(policy, world, norm):
    half = POPULATION // 2
    noise = {n: torch.randn(half, *p.shape, device=p.device) for n, p in policy.named_parameters()}
    weights = {
        n: torch.cat([p + SIGMA * noise[n], p - SIGMA * noise[n]])
        for n, p in policy.named_parameters()
    }
    act = vmap(lambda w, o: functional_call(policy, w, (o,)))
    obs, returns = world.reset(), torch.zeros(POPULATION, device=world.device)
    for _ in range(HORIZON):
        obs, reward = world.step(act(weights, norm(obs)))
        returns += reward
    utility = centred_ranks(returns)
    advantage = utility[:half] - utility[half:]
    for n, p in policy.named_parameters():
        p.grad = -torch.tensordot(advantage, noise[n], dims=1) / (POPULATION * SIGMA)
    return returns


def main():
    torch.manual_seed(5)
    device = torch.device("cuda")
    policy = Policy().to(device)
    opt = torch.optim.Adam(policy.parameters(), lr=0.01, weight_decay=0.005)
    world, norm = Walkers(POPULATION, device), RunningNorm(device)
    for g in range(3):
        opt.zero_grad()
        returns = generation(policy, world, norm)
        opt.step()
        print(f"generation {g} mean {returns.mean().item():.2f} best {returns.max().item():.2f}")


if __name__ == "__main__":
    main()
