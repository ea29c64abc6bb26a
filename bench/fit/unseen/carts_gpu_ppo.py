"""Carts with two poles by PPO, simulated on the GPU: 16,384 environments stepped in PyTorch, a GRU policy trained over whole rollouts, value clipping, a rate that follows the KL."""

from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Normal


@dataclass
class Args:
    num_envs: int = 16_384
    num_steps: int = 24
    iterations: int = 2
    update_epochs: int = 2
    num_minibatches: int = 2
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.005
    vf_coef: float = 1.0
    max_grad_norm: float = 1.0
    desired_kl: float = 0.01
    lr: float = 1e-3


class CartEnv:
    """State: place and speed of the cart, angles and speeds of two poles (N, 6)."""

    def __init__(self, n, device):
        self.n, self.device = n, device
        self.state = self.fresh(n)
        self.age = torch.zeros(n, device=device)

    def fresh(self, n):
        return torch.empty(n, 6, device=self.device).uniform_(-0.05, 0.05)

    def observe(self):
        x, v, a, wa, b, wb = self.state.unbind(1)
        return torch.stack([x, v, a.sin(), a.cos(), wa, b.sin(), b.cos(), wb], 1)

    def step(self, action, dt=0.02):
        force = action.squeeze(1).clamp(-1, 1) * 10
        x, v, a, wa, b, wb = self.state.unbind(1)
        acc = (force + 0.05 * (wa**2 * a.sin() + wb**2 * b.sin())) / 1.1
        wa = wa + dt * (9.8 * a.sin() - a.cos() * acc) / 0.66
        wb = wb + dt * (9.8 * b.sin() - b.cos() * acc) / 0.33
        v = v + dt * acc
        self.state = torch.stack([x + dt * v, v, a + dt * wa, wa, b + dt * wb, wb], 1)
        self.age += 1
        reward = 1 - self.state[:, 2].abs() - self.state[:, 4].abs() - 0.01 * force.abs()
        done = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.7) | (self.age > 500)
        self.state = torch.where(done[:, None], self.fresh(self.n), self.state)
        self.age = torch.where(done, 0.0, self.age)
        return self.observe(), reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self, obs=8, act=1, hidden=256):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(obs, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU()
        )
        self.memory = nn.GRU(hidden, hidden)
        self.actor = nn.Sequential(nn.Linear(hidden, 128), nn.ELU(), nn.Linear(128, act))
        self.critic = nn.Sequential(nn.Linear(hidden, 128), nn.ELU(), nn.Linear(128, 1))
        self.log_std = nn.Parameter(torch.zeros(act))

    def forward(self, obs, h):
        y, h = self.memory(self.body(obs), h)
        return Normal(self.actor(y), self.log_std.exp().expand(1)), self.critic(y).squeeze(-1), h


args = Args()
device = torch.device("cuda")
torch.manual_seed(1)
env, agent = CartEnv(args.num_envs, device), ActorCritic().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
shape = (args.num_steps, args.num_envs)
obs = torch.zeros(*shape, 8, device=device)
actions, means = (torch.zeros(*shape, 1, device=device) for _ in range(2))
logprobs, rewards, dones, values = (torch.zeros(shape, device=device) for _ in range(4))
next_obs, next_h = env.observe(), torch.zeros(1, args.num_envs, 256, device=device)

for iteration in range(args.iterations):
    start_h = next_h.clone()
    with torch.no_grad():
        for t in range(args.num_steps):
            obs[t] = next_obs
            dist, value, next_h = agent(next_obs[None], next_h)
            action = dist.sample()
            actions[t], means[t], values[t] = action[0], dist.mean[0], value[0]
            logprobs[t] = dist.log_prob(action).sum(-1)[0]
            next_obs, rewards[t], dones[t] = env.step(action[0])
            next_h = next_h * (1 - dones[t])[None, :, None]
        _, last, _ = agent(next_obs[None], next_h)
        advantages, carry = torch.zeros_like(rewards), 0
        for t in reversed(range(args.num_steps)):
            following = last[0] if t == args.num_steps - 1 else values[t + 1]
            alive = 1 - dones[t]
            delta = rewards[t] + args.gamma * following * alive - values[t]
            advantages[t] = carry = delta + args.gamma * args.gae_lambda * alive * carry
        returns = advantages + values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        old_std = agent.log_std.exp().clone()

    for epoch in range(args.update_epochs):
        for mb in torch.randperm(args.num_envs, device=device).chunk(args.num_minibatches):
            dist, value, _ = agent(obs[:, mb], start_h[:, mb].contiguous())
            newlogprob = dist.log_prob(actions[:, mb]).sum(-1)
            with torch.no_grad():
                kl = torch.distributions.kl_divergence(Normal(means[:, mb], old_std), dist).mean()
            ratio = (newlogprob - logprobs[:, mb]).exp()
            adv = advantages[:, mb]
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            pg_loss = -torch.min(adv * ratio, adv * clipped).mean()
            near = values[:, mb] + (value - values[:, mb]).clamp(-args.clip_coef, args.clip_coef)
            v_loss = torch.max((value - returns[:, mb]) ** 2, (near - returns[:, mb]) ** 2).mean()
            loss = pg_loss + args.vf_coef * v_loss - args.ent_coef * dist.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
            distance = kl.item()
            for group in optimizer.param_groups:
                if distance > 2 * args.desired_kl:
                    group["lr"] = max(1e-5, group["lr"] / 1.5)
                elif 0 < distance < args.desired_kl / 2:
                    group["lr"] = min(1e-2, group["lr"] * 1.5)
    reward = rewards.mean().item()
    print(
        f"iteration {iteration}: reward {reward:.3f}, policy {pg_loss.item():.4f}, value {v_loss.item():.4f}"
    )
