"""PPO from frames of a toy environment, in minibatches of the rollout."""

import torch
import torch.nn as nn
from torch.distributions import Categorical

device = "cuda"
num_envs, num_steps, minibatches, epochs = 32, 64, 2, 3
gamma, lam, clip_coef, ent_coef, vf_coef = 0.99, 0.95, 0.1, 0.01, 0.5


class ToyEnv:
    """Frames of noise; the reward depends on the action."""

    def __init__(self, n):
        self.n = n

    def reset(self):
        return torch.randint(0, 256, (self.n, 4, 84, 84), dtype=torch.uint8)

    def step(self, action):
        return self.reset(), (action.cpu() == 1).float(), torch.rand(self.n) < 0.01


def layer_init(layer, std=2**0.5):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.network = nn.Sequential(
            layer_init(nn.Conv2d(4, 64, 8, 4)), nn.ReLU(),
            layer_init(nn.Conv2d(64, 128, 4, 2)), nn.ReLU(),
            layer_init(nn.Conv2d(128, 128, 3, 1)), nn.ReLU(),
            nn.Flatten(), layer_init(nn.Linear(128 * 7 * 7, 512)), nn.ReLU(),
        )  # fmt: skip
        self.actor = layer_init(nn.Linear(512, actions), 0.01)
        self.critic = layer_init(nn.Linear(512, 1), 1)

    def get_value(self, x):
        return self.critic(self.network(x / 255.0))

    def get_action_and_value(self, x, action=None):
        hidden = self.network(x / 255.0)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)


agent, envs = Agent().to(device), ToyEnv(num_envs)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros((num_steps, num_envs, 4, 84, 84), device=device)
actions = torch.zeros((num_steps, num_envs), device=device)
logprobs, rewards, dones, values = (torch.zeros_like(actions) for _ in range(4))

next_obs = envs.reset().to(device)
next_done = torch.zeros(num_envs, device=device)
for step in range(num_steps):
    obs[step], dones[step] = next_obs, next_done
    with torch.no_grad():
        action, logprob, _, value = agent.get_action_and_value(next_obs)
        values[step] = value.flatten()
    actions[step], logprobs[step] = action, logprob
    next_obs, reward, done = envs.step(action)
    rewards[step] = reward.to(device)
    next_obs, next_done = next_obs.to(device), done.float().to(device)

with torch.no_grad():
    next_value = agent.get_value(next_obs).reshape(1, -1)
    advantages, last = torch.zeros_like(rewards), 0
    for t in reversed(range(num_steps)):
        alive = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
        after = next_value if t == num_steps - 1 else values[t + 1]
        delta = rewards[t] + gamma * after * alive - values[t]
        advantages[t] = last = delta + gamma * lam * alive * last
    returns = advantages + values

b_obs = obs.reshape((-1, 4, 84, 84))
b_actions, b_logprobs, b_adv, b_returns = (
    x.reshape(-1) for x in (actions, logprobs, advantages, returns)
)
batch_size = num_envs * num_steps
for epoch in range(epochs):
    order = torch.randperm(batch_size, device=device)
    for part in order.chunk(minibatches):
        _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[part], b_actions[part])
        ratio = (newlogprob - b_logprobs[part]).exp()
        adv = b_adv[part]
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        pg = torch.max(-adv * ratio, -adv * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()
        v_loss = 0.5 * ((newvalue.view(-1) - b_returns[part]) ** 2).mean()
        loss = pg - ent_coef * entropy.mean() + vf_coef * v_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
    print("epoch", epoch, loss.item())
