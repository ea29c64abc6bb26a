"""PPO on mazes seen as images: IMPALA network, rollouts kept on the GPU as bytes, GAE, two minibatches, two epochs."""

import torch
import torch.nn as nn
from torch.distributions import Categorical


class Mazes:
    """Stands in for a vectorised environment: frames as bytes, sparse rewards."""

    def __init__(self, n, device):
        self.n, self.device = n, device

    def reset(self):
        return torch.randint(0, 256, (self.n, 3, 64, 64), dtype=torch.uint8, device=self.device)

    def step(self, action):
        reward = (torch.rand(self.n, device=self.device) < 0.05).float()
        done = (torch.rand(self.n, device=self.device) < 0.01).float()
        return self.reset(), reward, done


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(torch.relu(x))))


class Agent(nn.Module):
    def __init__(self, actions=15, widths=(32, 64, 64)):
        super().__init__()
        layers, c = [], 3
        for w in widths:
            layers += [nn.Conv2d(c, w, 3, padding=1), nn.MaxPool2d(3, 2, 1), Res(w), Res(w)]
            c = w
        self.trunk = nn.Sequential(
            *layers, nn.Flatten(), nn.ReLU(), nn.Linear(c * 64, 512), nn.ReLU()
        )
        self.pi, self.v = nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, frames):
        h = self.trunk(frames.float() / 255.0)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def main(envs=32, horizon=64, updates=2, epochs=2, minibatches=2, gamma=0.999, lam=0.95):
    torch.manual_seed(0)
    device = torch.device("cuda")
    world, agent = Mazes(envs, device), Agent().to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=5e-4, eps=1e-5)
    obs = torch.zeros(horizon, envs, 3, 64, 64, dtype=torch.uint8, device=device)
    act, logp, rew, done, val = (torch.zeros(horizon, envs, device=device) for _ in range(5))
    frame = world.reset()
    for update in range(updates):
        for t in range(horizon):
            obs[t] = frame
            with torch.no_grad():
                dist, val[t] = agent(frame)
            a = dist.sample()
            act[t], logp[t] = a, dist.log_prob(a)
            frame, rew[t], done[t] = world.step(a)
        with torch.no_grad():
            _, last = agent(frame)
            adv, carry = torch.zeros_like(rew), 0
            for t in reversed(range(horizon)):
                after = last if t == horizon - 1 else val[t + 1]
                delta = rew[t] + gamma * after * (1 - done[t]) - val[t]
                carry = delta + gamma * lam * (1 - done[t]) * carry
                adv[t] = carry
        ret = adv + val
        b_obs, b_act, b_logp = obs.flatten(0, 1), act.flatten(), logp.flatten()
        b_adv, b_ret = adv.flatten(), ret.flatten()
        for _ in range(epochs):
            for mb in torch.randperm(envs * horizon, device=device).chunk(minibatches):
                dist, value = agent(b_obs[mb])
                ratio = (dist.log_prob(b_act[mb]) - b_logp[mb]).exp()
                a = (b_adv[mb] - b_adv[mb].mean()) / (b_adv[mb].std() + 1e-8)
                policy = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2)).mean()
                loss = (
                    policy + 0.5 * (value - b_ret[mb]).pow(2).mean() - 0.01 * dist.entropy().mean()
                )
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        print(update, loss.item())


if __name__ == "__main__":
    main()
