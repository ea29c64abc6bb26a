"""PPO in one file in the manner of CleanRL: rollouts kept on the GPU, several epochs of minibatches, a shared CNN."""

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical

NUM_ENVS, NUM_STEPS, MINIBATCHES, EPOCHS, UPDATES = 64, 64, 2, 2, 3


class Envs:
    def reset(self):
        return np.zeros((NUM_ENVS, 4, 84, 84), np.uint8)

    def step(self, action):
        return self.reset(), np.random.rand(NUM_ENVS), np.random.rand(NUM_ENVS) < 0.01


def layer_init(layer, std=np.sqrt(2), bias=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.network = nn.Sequential(
            layer_init(nn.Conv2d(4, 64, 8, stride=4)),
            nn.ReLU(),
            layer_init(nn.Conv2d(64, 128, 4, stride=2)),
            nn.ReLU(),
            layer_init(nn.Conv2d(128, 128, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(128 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.actor = layer_init(nn.Linear(512, actions), std=0.01)
        self.critic = layer_init(nn.Linear(512, 1), std=1)

    def get_value(self, x):
        return self.critic(self.network(x / 255.0))

    def get_action_and_value(self, x, action=None):
        hidden = self.network(x / 255.0)
        probs = Categorical(logits=self.actor(hidden), validate_args=False)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)


device = torch.device("cuda")
envs, agent = Envs(), Agent().to(device)
optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros((NUM_STEPS, NUM_ENVS, 4, 84, 84)).to(device)
actions = torch.zeros((NUM_STEPS, NUM_ENVS)).to(device)
logprobs, rewards, dones, values = (torch.zeros((NUM_STEPS, NUM_ENVS)).to(device) for _ in range(4))
next_obs = torch.Tensor(envs.reset()).to(device)
next_done = torch.zeros(NUM_ENVS).to(device)

for update in range(UPDATES):
    for step in range(NUM_STEPS):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step], logprobs[step] = action, logprob
        o, r, d = envs.step(None)
        rewards[step] = torch.tensor(r, dtype=torch.float32).to(device)
        next_obs, next_done = torch.Tensor(o).to(device), torch.Tensor(d).to(device)
    with torch.no_grad():
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages = torch.zeros_like(rewards)
        lastgaelam = 0
        for t in reversed(range(NUM_STEPS)):
            last = t == NUM_STEPS - 1
            alive = 1.0 - (next_done if last else dones[t + 1])
            after = next_value if last else values[t + 1]
            delta = rewards[t] + 0.99 * after * alive - values[t]
            advantages[t] = lastgaelam = delta + 0.99 * 0.95 * alive * lastgaelam
        returns = advantages + values
    b_obs = obs.reshape((-1, 4, 84, 84))
    b_logprobs, b_actions = logprobs.reshape(-1), actions.reshape(-1)
    b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
    b_inds = np.arange(NUM_STEPS * NUM_ENVS)
    size = len(b_inds) // MINIBATCHES
    for epoch in range(EPOCHS):
        np.random.shuffle(b_inds)
        for start in range(0, len(b_inds), size):
            mb = b_inds[start : start + size]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                b_obs[mb], b_actions.long()[mb]
            )
            ratio = (newlogprob - b_logprobs[mb]).exp()
            adv = b_advantages[mb]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg_loss = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 0.9, 1.1)).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
            loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(update, loss.item())
