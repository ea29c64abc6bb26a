"""Reinforcement learning on the GPU: log-probabilities, targets, buffers."""
import copy
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return F.softmax(self.fc(x), dim=1)


policy = Policy().to(device)
optimizer = torch.optim.Adam(policy.parameters())


def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0).to(device)
    probs = policy(state)
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode(returns):
    policy_loss = []
    for log_prob, R in zip(policy.saved_log_probs, returns):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


class PPO:
    def __init__(self):
        self.policy = Policy().to(device)
        self.policy_old = Policy().to(device)
        self.policy_old.load_state_dict(self.policy.state_dict())
        self.optimizer = torch.optim.Adam(self.policy.parameters())

    def select_action(self, state):
        with torch.no_grad():
            probs = self.policy_old(state)
        return probs

    def update(self, states, old_log_probs, advantages):
        for _ in range(10):
            log_probs = torch.log(self.policy(states))
            ratios = torch.exp(log_probs - old_log_probs.detach())
            loss = -torch.min(ratios * advantages, torch.clamp(ratios, 0.8, 1.2) * advantages)
            self.optimizer.zero_grad()  # OOM416
            loss.mean().backward()
            self.optimizer.step()
        self.policy_old.load_state_dict(self.policy.state_dict())


class DQN:
    def __init__(self):
        self.policy_net = nn.Linear(4, 2).to(device)
        self.target_net = nn.Linear(4, 2).to(device)
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.target_net.eval()
        self.optimizer = torch.optim.Adam(self.policy_net.parameters())
        self.memory = deque(maxlen=10000)

    def learn_detached(self):
        state, next_state, reward = random.choice(self.memory)
        q = self.policy_net(state)
        next_q = self.target_net(next_state).max(1)[0].detach()  # OOM207
        loss = F.smooth_l1_loss(q, reward + 0.99 * next_q)
        self.optimizer.zero_grad()  # OOM416
        loss.backward()
        self.optimizer.step()

    def learn(self):
        state, next_state, reward = random.choice(self.memory)
        q = self.policy_net(state)
        next_q = self.target_net(next_state).max(1)[0]  # OOM206
        loss = F.smooth_l1_loss(q, reward + 0.99 * next_q)
        self.optimizer.zero_grad()  # OOM416
        loss.backward()
        self.optimizer.step()

    def learn_without(self):
        state, next_state, reward = random.choice(self.memory)
        with torch.no_grad():
            target = reward + 0.99 * self.target_net(next_state).max(1)[0]
        loss = F.smooth_l1_loss(self.policy_net(state), target)
        self.optimizer.zero_grad()  # OOM416
        loss.backward()
        self.optimizer.step()


class DDPG:
    def __init__(self):
        self.actor = nn.Linear(4, 2).to(device)
        self.actor_target = copy.deepcopy(self.actor)
        self.critic = nn.Linear(6, 1).to(device)
        self.critic_target = copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters())
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters())

    def train(self, buffer):
        state, action, next_state, reward = buffer.sample(256)
        target_q = self.critic_target(next_state, self.actor_target(next_state))
        target_q = reward + (0.99 * target_q).detach()
        critic_loss = F.mse_loss(self.critic(state, action), target_q)
        self.critic_optimizer.zero_grad()  # OOM416
        critic_loss.backward()
        self.critic_optimizer.step()
        actor_loss = -self.critic(state, self.actor(state)).mean()
        self.actor_optimizer.zero_grad()  # OOM416
        actor_loss.backward()
        self.actor_optimizer.step()
