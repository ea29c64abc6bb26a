"""Control of excavators by TD-MPC2: an implicit world model of 200 million weights, five critics, plans by MPPI."""

import copy
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state

OBS, ACT = 48, 8
LATENT, WIDTH, GROUP = 2048, 3584, 8
BINS, LOW, HIGH = 101, -10.0, 10.0
HORIZON, DISCOUNT, RHO = 3, 0.99, 0.5


class SimNorm(nn.Module):
    def forward(self, x):
        return x.unflatten(-1, (-1, GROUP)).softmax(-1).flatten(-2)


class NormedLinear(nn.Linear):
    def __init__(self, cin, cout, act=None, dropout=0.0):
        super().__init__(cin, cout)
        self.norm, self.act, self.drop = nn.LayerNorm(cout), act or nn.Mish(), nn.Dropout(dropout)

    def forward(self, x):
        return self.act(self.norm(self.drop(super().forward(x))))


def mlp(cin, cout, last=None, dropout=0.0):
    head = NormedLinear(WIDTH, cout, last) if last else nn.Linear(WIDTH, cout)
    return nn.Sequential(
        NormedLinear(cin, WIDTH, dropout=dropout), NormedLinear(WIDTH, WIDTH), head
    )


class Critics(nn.Module):
    """Five critics in one call."""

    def __init__(self, n=5):
        super().__init__()
        nets = [mlp(LATENT + ACT, BINS, dropout=0.01).cuda() for _ in range(n)]
        params, _ = stack_module_state(nets)
        self.names = list(params)
        self.params = nn.ParameterList(nn.Parameter(p.detach()) for p in params.values())
        self.base = [
            copy.deepcopy(nets[0]).to("meta")
        ]  # in a list, so that it is no module of ours

    def forward(self, x):
        params = dict(zip(self.names, self.params))

        def one(params, x):
            return functional_call(self.base[0], params, (x,))

        return torch.vmap(one, (0, None), randomness="different")(params, x)


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            NormedLinear(OBS, WIDTH), NormedLinear(WIDTH, LATENT, SimNorm())
        )
        self.dynamics = mlp(LATENT + ACT, LATENT, SimNorm())
        self.reward = mlp(LATENT + ACT, BINS)
        self.policy = mlp(LATENT, 2 * ACT)
        self.critics = Critics()
        nn.init.zeros_(self.reward[-1].weight)

    def next(self, z, a):
        return self.dynamics(torch.cat([z, a], -1))

    def pi(self, z):
        mean, log_std = self.policy(z).chunk(2, -1)
        log_std = -10 + 6 * (torch.tanh(log_std) + 1)
        eps = torch.randn_like(mean)
        log_prob = (-0.5 * eps.square() - log_std).sum(-1, keepdim=True)
        return torch.tanh(mean + eps * log_std.exp()), -log_prob


def symlog(x):
    return x.sign() * (1 + x.abs()).log()


def two_hot(x):
    step = (HIGH - LOW) / (BINS - 1)
    x = (symlog(x).clamp(LOW, HIGH) - LOW) / step
    low = x.floor().clamp(max=BINS - 2)
    part = (x - low).unsqueeze(-1)
    low = low.long()
    return F.one_hot(low, BINS) * (1 - part) + F.one_hot(low + 1, BINS) * part


def value(logits):
    bins = torch.linspace(LOW, HIGH, BINS, device=logits.device)
    x = (logits.softmax(-1) * bins).sum(-1)
    return x.sign() * (x.abs().exp() - 1)


def soft_ce(logits, target):
    return -(two_hot(target) * logits.log_softmax(-1)).sum(-1)


class Excavators:
    """A yard of them at once: linear joints with drag, a bucket that shall follow a path."""

    def __init__(self, n):
        g = torch.Generator("cuda").manual_seed(0)
        self.mix = 0.2 * torch.randn(ACT, OBS, device="cuda", generator=g)
        self.x = torch.randn(n, OBS, device="cuda", generator=g)

    def step(self, a):
        self.x = 0.95 * self.x + a @ self.mix + 0.01 * torch.randn_like(self.x)
        return self.x, -(self.x[:, :6].square().mean(1) + 0.01 * a.square().mean(1))


@torch.no_grad()
def plan(model, obs, samples=256, elites=32, rounds=4):
    n = len(obs)
    z0 = model.encoder(obs)[:, None].expand(-1, samples, -1)
    mean = torch.zeros(n, HORIZON, ACT, device=obs.device)
    std = torch.full_like(mean, 2.0)
    for _ in range(rounds):
        noise = torch.randn(n, samples, HORIZON, ACT, device=obs.device)
        actions = (mean[:, None] + std[:, None] * noise).clamp(-1, 1)
        z, total, weight = z0, 0.0, 1.0
        for h in range(HORIZON):
            a = actions[:, :, h]
            total = total + weight * value(model.reward(torch.cat([z, a], -1)))
            z, weight = model.next(z, a), weight * DISCOUNT
        a, _ = model.pi(z)
        total = total + weight * value(model.critics(torch.cat([z, a], -1))[:2]).mean(0)
        best = total.topk(elites, dim=1)
        score = (0.5 * (best.values - best.values[:, :1])).softmax(1)[:, :, None, None]
        chosen = actions.gather(1, best.indices[:, :, None, None].expand(-1, -1, HORIZON, ACT))
        mean = (score * chosen).sum(1)
        std = (score * (chosen - mean[:, None]).square()).sum(1).sqrt().clamp(0.05, 2)
    return mean[:, 0] + std[:, 0] * torch.randn_like(mean[:, 0])


def update(model, target, opt, pi_opt, batch):
    with torch.no_grad():
        after = model.encoder(batch.obs[1:])
        a, _ = model.pi(after)
        pair = torch.randperm(5, device=a.device)[:2]
        q = value(target(torch.cat([after, a], -1)))[pair].amin(0)
        goal = batch.reward + DISCOUNT * q
    z = model.encoder(batch.obs[0])
    states, consistency = [z], 0.0
    for h in range(HORIZON):
        z = model.next(z, batch.action[h])
        consistency = consistency + F.mse_loss(z, after[h]) * RHO**h
        states.append(z)
    za = torch.cat([torch.stack(states[:-1]), batch.action], -1)
    rho = RHO ** torch.arange(HORIZON, device=z.device).unsqueeze(1)
    reward = (soft_ce(model.reward(za), batch.reward) * rho).mean()
    critic = (soft_ce(model.critics(za), goal.expand(5, -1, -1)) * rho).mean()
    loss = 20 * consistency / HORIZON + 0.1 * reward + 0.1 * critic
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_([p for g in opt.param_groups for p in g["params"]], 20.0)
    opt.step()

    model.critics.requires_grad_(False)
    zs = torch.stack(states).detach()
    a, entropy = model.pi(zs)
    q = value(model.critics(torch.cat([zs, a], -1))).mean(0)
    pi_loss = -(q + 1e-4 * entropy.squeeze(-1)).mean()
    pi_opt.zero_grad(set_to_none=True)
    pi_loss.backward()
    pi_opt.step()
    model.critics.requires_grad_(True)
    with torch.no_grad():
        for p, q in zip(target.parameters(), model.critics.parameters()):
            p.lerp_(q, 0.01)
    return loss.item(), pi_loss.item()


def main():
    torch.manual_seed(6)
    model = WorldModel().cuda()
    target = copy.deepcopy(model.critics).requires_grad_(False)
    opt = torch.optim.Adam(
        [
            {"params": model.encoder.parameters(), "lr": 1e-4},
            {"params": model.dynamics.parameters()},
            {"params": model.reward.parameters()},
            {"params": model.critics.parameters()},
        ],
        lr=3e-4,
    )
    pi_opt = torch.optim.Adam(model.policy.parameters(), lr=3e-4, eps=1e-5)
    yard = Excavators(64)
    obs, actions, rewards = [yard.x], [], []
    for _ in range(12):  # random moves fill the store
        a = torch.rand(64, ACT, device="cuda") * 2 - 1
        x, r = yard.step(a)
        obs, actions, rewards = obs + [x], actions + [a], rewards + [r]
    for step in range(4):
        a = plan(model, obs[-1][:8])
        a = torch.cat([a, torch.rand(56, ACT, device="cuda") * 2 - 1]).clamp(-1, 1)
        x, r = yard.step(a)
        obs, actions, rewards = obs + [x], actions + [a], rewards + [r]
        start = torch.randint(len(actions) - HORIZON, (256,)).tolist()
        who = torch.randint(64, (256,)).tolist()
        batch = SimpleNamespace(
            obs=torch.stack(
                [torch.stack([obs[s + h][w] for s, w in zip(start, who)]) for h in range(4)]
            ),
            action=torch.stack(
                [torch.stack([actions[s + h][w] for s, w in zip(start, who)]) for h in range(3)]
            ),
            reward=torch.stack(
                [torch.stack([rewards[s + h][w] for s, w in zip(start, who)]) for h in range(3)]
            ),
        )
        print(
            "step %d model loss %.4f policy loss %.4f"
            % (step, *update(model, target, opt, pi_opt, batch))
        )


if __name__ == "__main__":
    main()
