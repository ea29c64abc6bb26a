"""RLHF with PPO: a GPT-2 policy with a value head, a frozen reference and a frozen reward model, advantages per token, two epochs over the rollout."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

PROMPT, ANSWER, BATCH = 128, 256, 12


class ActorCritic(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.lm = GPT2LMHeadModel(config)
        self.value = nn.Linear(config.n_embd, 1)

    def forward(self, ids):
        hidden = self.lm.transformer(ids).last_hidden_state
        return self.lm.lm_head(hidden), self.value(hidden).squeeze(-1)


class RewardModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.body = GPT2Model(config)
        self.score = nn.Linear(config.n_embd, 1)

    def forward(self, ids):
        return self.score(self.body(ids).last_hidden_state[:, -1]).squeeze(-1)


def token_logp(logits, ids):
    logp = F.log_softmax(logits[:, PROMPT - 1 : -1].float(), -1)
    return logp.gather(-1, ids[:, PROMPT:, None]).squeeze(-1)


@torch.no_grad()
def rollout(policy, reference, reward_model, device, beta=0.05, gamma=1.0, lam=0.95):
    # Answers come from an inference server; here they are random tokens.
    ids = torch.randint(0, 50257, (BATCH, PROMPT + ANSWER), device=device)
    logits, values = policy(ids)
    old = token_logp(logits, ids)
    ref = token_logp(reference(ids)[0], ids)
    values = values[:, PROMPT - 1 : -1]
    rewards = -beta * (old - ref)
    rewards[:, -1] += reward_model(ids)
    advantages, last = torch.zeros_like(rewards), 0
    for t in range(ANSWER - 1, -1, -1):
        following = values[:, t + 1] if t + 1 < ANSWER else 0.0
        last = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * last
        advantages[:, t] = last
    returns = advantages + values
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return ids, old, values, advantages, returns


def main():
    device = "cuda"
    cfg = GPT2Config(n_layer=6, n_embd=768, n_head=12, use_cache=False)
    cfg.resid_pdrop = cfg.embd_pdrop = cfg.attn_pdrop = 0.0
    policy = ActorCritic(cfg).to(device)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    reward_model = RewardModel(cfg).to(device).eval().requires_grad_(False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-5, eps=1e-5)

    ids, old, old_values, advantages, returns = rollout(policy, reference, reward_model, device)
    for epoch in range(2):
        for rows in torch.randperm(BATCH).split(BATCH // 2):
            rows = rows.to(device)
            logits, values = policy(ids[rows])
            logp, values = token_logp(logits, ids[rows]), values[:, PROMPT - 1 : -1]
            ratio = (logp - old[rows]).exp()
            adv = advantages[rows]
            surrogate = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
            clipped = old_values[rows] + (values - old_values[rows]).clamp(-0.2, 0.2)
            value_loss = torch.max(
                (values - returns[rows]) ** 2, (clipped - returns[rows]) ** 2
            ).mean()
            loss = surrogate + 0.05 * value_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            print(epoch, surrogate.item(), value_loss.item())


main()
