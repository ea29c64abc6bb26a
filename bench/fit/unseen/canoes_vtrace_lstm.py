"""Canoes through rapids by IMPALA: V-trace, a deep residual network and an LSTM, fp32.

The actor plays with weights that are a few updates old. The river is simulated with tensors on the GPU, rendered
as four colour channels of 72 x 96.
"""

import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = int(os.environ.get("JOB_STEPS", "5"))


@dataclass
class Args:
    envs: int = 96
    unroll: int = 20
    actions: int = 5
    hidden: int = 512
    lr: float = 6e-4
    gamma: float = 0.99
    entropy: float = 0.01
    baseline: float = 0.5
    clip: float = 40.0
    sync_every: int = 2


class River:
    def __init__(self, n, device):
        self.n, self.device = n, device
        self.where = torch.rand(n, 2, device=device)
        self.rocks = torch.rand(n, 12, 2, device=device)
        ys, xs = torch.linspace(0, 1, 72, device=device), torch.linspace(0, 1, 96, device=device)
        self.grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij"), -1).view(1, 1, -1, 2)
        self.moves = torch.tensor([[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0]], device=device) * 0.03

    def render(self):
        def blob(points, size):
            d = (points[:, :, None] - self.grid).square().sum(-1)
            return torch.exp(-d / size).amax(1).view(self.n, 72, 96)

        canoe, rocks = blob(self.where[:, None], 0.002), blob(self.rocks, 0.004)
        frame = torch.stack([canoe, rocks, 1 - rocks, canoe * rocks], 1)
        return (frame * 255).to(torch.uint8)

    def step(self, action):
        self.where = (self.where + self.moves[action] + torch.randn_like(self.where) * 0.005) % 1
        self.rocks = (self.rocks + torch.tensor([0.02, 0.0], device=self.device)) % 1
        near = (self.where[:, None] - self.rocks).square().sum(-1).amin(1)
        crashed = near < 5e-4
        fresh = torch.rand(self.n, 2, device=self.device)
        self.where = torch.where(crashed[:, None], fresh, self.where)
        return self.render(), 0.1 - crashed.float(), crashed


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, 1, 1), nn.Conv2d(c, c, 3, 1, 1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(F.relu(x))))


class Agent(nn.Module):
    def __init__(self, args):
        super().__init__()
        layers, i = [], 4
        for o in (32, 64, 64):
            layers += [nn.Conv2d(i, o, 3, 1, 1), nn.MaxPool2d(3, 2, 1), Residual(o), Residual(o)]
            i = o
        self.convs = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
        self.fc = nn.Linear(64 * 9 * 12, args.hidden)
        self.core = nn.LSTMCell(args.hidden + args.actions + 1, args.hidden)
        self.policy, self.value = nn.Linear(args.hidden, args.actions), nn.Linear(args.hidden, 1)
        self.actions = args.actions

    def forward(self, frames, last_action, reward, done, state):
        t, b = frames.shape[:2]
        x = F.relu(self.fc(self.convs(frames.flatten(0, 1).float() / 255))).view(t, b, -1)
        x = torch.cat([x, F.one_hot(last_action, self.actions).float(), reward[..., None]], -1)
        outs = []
        for k in range(t):
            keep = (~done[k]).float()[:, None]
            state = self.core(x[k], (state[0] * keep, state[1] * keep))
            outs.append(state[0])
        h = torch.stack(outs)
        return self.policy(h), self.value(h).squeeze(-1), state


def vtrace(behaviour, target, rewards, discounts, values, bootstrap):
    rho = (target - behaviour).exp()
    clipped = rho.clamp(max=1.0)
    following = torch.cat([values[1:], bootstrap[None]])
    deltas = clipped * (rewards + discounts * following - values)
    acc, out = torch.zeros_like(bootstrap), []
    for t in reversed(range(len(rewards))):
        acc = deltas[t] + discounts[t] * clipped[t] * acc
        out.append(acc)
    vs = torch.stack(out[::-1]) + values
    advantage = clipped * (rewards + discounts * torch.cat([vs[1:], bootstrap[None]]) - values)
    return vs, advantage


def main(args, device="cuda"):
    torch.manual_seed(0)
    learner, actor = Agent(args).to(device), Agent(args).to(device)
    actor.load_state_dict(learner.state_dict())
    opt = torch.optim.RMSprop(learner.parameters(), args.lr, alpha=0.99, eps=0.01)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.0, total_iters=10_000)
    river = River(args.envs, device)
    zero = torch.zeros(args.envs, device=device)
    now = (river.render(), zero.long(), zero, zero.bool())
    state = (torch.zeros(args.envs, args.hidden, device=device),) * 2

    for update in range(STEPS):
        first, rows, logs = state, [now], []
        with torch.no_grad():
            for _ in range(args.unroll):
                logits, _, state = actor(*[x[None] for x in now], state)
                action = torch.distributions.Categorical(logits=logits[0]).sample()
                logs.append(F.log_softmax(logits[0], -1).gather(-1, action[:, None]).squeeze(-1))
                frame, reward, done = river.step(action)
                now = (frame, action, reward, done)
                rows.append(now)
        frames, actions, rewards, dones = (torch.stack(x) for x in zip(*rows))
        logits, values, _ = learner(frames, actions, rewards, dones, first)
        log_p = F.log_softmax(logits[:-1], -1)
        chosen = log_p.gather(-1, actions[1:, :, None]).squeeze(-1)
        with torch.no_grad():
            discounts = args.gamma * (~dones[1:]).float()
            vs, adv = vtrace(
                torch.stack(logs), chosen, rewards[1:], discounts, values[:-1], values[-1]
            )
        pg = -(chosen * adv).mean()
        mse = 0.5 * (vs - values[:-1]).square().mean()
        ent = (log_p.exp() * log_p).sum(-1).mean()
        loss = pg + args.baseline * mse + args.entropy * ent
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), args.clip)
        opt.step()
        sched.step()
        if update % args.sync_every == 0:
            actor.load_state_dict(learner.state_dict())
        print(f"update {update} loss {loss.item():.4f} return {rewards.sum(0).mean().item():.3f}")


if __name__ == "__main__":
    main(Args())
