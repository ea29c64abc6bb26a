"""Robots in a warehouse by QMIX: recurrent agents that share weights, a monotonic mixer with hypernetworks, targets copied now and then, RMSprop, episodes on the GPU."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

AGENTS, ACTIONS, STATE = 12, 18, 640


class AgentRNN(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.eyes = nn.Sequential(
            nn.Conv2d(5, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.fc = nn.Linear(32 * 11 * 11 + ACTIONS, hidden)
        self.rnn = nn.GRUCell(hidden, hidden)
        self.q = nn.Linear(hidden, ACTIONS)
        self.hidden = hidden

    def unroll(self, views, last):
        """views: T x N x 5 x 11 x 11, last: T x N x ACTIONS one-hot; N = episodes x agents."""
        h = views.new_zeros(views.shape[1], self.hidden)
        qs = []
        for view, action in zip(views, last):
            x = F.relu(self.fc(torch.cat([self.eyes(view), action], 1)))
            h = self.rnn(x, h)
            qs.append(self.q(h))
        return torch.stack(qs)


class Mixer(nn.Module):
    def __init__(self, embed=64, hyper=256):
        super().__init__()
        self.embed = embed
        self.w1 = nn.Sequential(
            nn.Linear(STATE, hyper), nn.ReLU(), nn.Linear(hyper, embed * AGENTS)
        )
        self.b1 = nn.Linear(STATE, embed)
        self.w2 = nn.Sequential(nn.Linear(STATE, hyper), nn.ReLU(), nn.Linear(hyper, embed))
        self.b2 = nn.Sequential(nn.Linear(STATE, embed), nn.ReLU(), nn.Linear(embed, 1))

    def forward(self, q, state):
        q, s = q.reshape(-1, 1, AGENTS), state.reshape(-1, STATE)
        w1 = self.w1(s).abs().view(-1, AGENTS, self.embed)
        hidden = F.elu(torch.bmm(q, w1) + self.b1(s)[:, None])
        total = torch.bmm(hidden, self.w2(s).abs()[..., None]) + self.b2(s)[:, None]
        return total.view(state.shape[:-1])


class QMix:
    def __init__(self, device, gamma=0.99):
        self.online = nn.ModuleDict({"agent": AgentRNN(), "mixer": Mixer()}).to(device)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.opt = torch.optim.RMSprop(self.online.parameters(), lr=5e-4, alpha=0.99, eps=1e-5)
        self.gamma, self.updates = gamma, 0

    def values(self, nets, ep):
        t, e = ep["views"].shape[:2]
        q = nets["agent"].unroll(ep["views"].flatten(1, 2), ep["last"].flatten(1, 2))
        return q.view(t, e, AGENTS, ACTIONS)

    def update(self, ep):
        q = self.values(self.online, ep)
        chosen = q[:-1].gather(3, ep["actions"][:-1, ..., None]).squeeze(3)
        with torch.no_grad():  # double Q: the online net chooses, the target values
            best = q[1:].masked_fill(~ep["allowed"][1:], -1e8).argmax(3, keepdim=True)
            later = self.values(self.target, ep)[1:].gather(3, best).squeeze(3)
            later = self.target["mixer"](later, ep["state"][1:])
            goal = ep["reward"][:-1] + self.gamma * (1 - ep["done"][:-1]) * later
        td = self.online["mixer"](chosen, ep["state"][:-1]) - goal
        loss = (td * ep["filled"][:-1]).square().sum() / ep["filled"][:-1].sum().clamp(min=1)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10)
        self.opt.step()
        self.updates += 1
        if self.updates % 3 == 0:
            self.target.load_state_dict(self.online.state_dict())
        return loss.item()


def replay(episodes, steps, device):
    actions = torch.randint(0, ACTIONS, (steps, episodes, AGENTS), device=device)
    return {
        "views": torch.rand(steps, episodes, AGENTS, 5, 11, 11, device=device),
        "last": F.one_hot(actions.roll(1, 0), ACTIONS).float(),
        "actions": actions,
        "allowed": torch.rand(steps, episodes, AGENTS, ACTIONS, device=device) > 0.2,
        "state": torch.randn(steps, episodes, STATE, device=device),
        "reward": torch.randn(steps, episodes, device=device),
        "done": torch.zeros(steps, episodes, device=device),
        "filled": torch.ones(steps, episodes, device=device),
    }


if __name__ == "__main__":
    learner = QMix("cuda")
    for i in range(5):
        print(i, learner.update(replay(episodes=80, steps=48, device="cuda")))
