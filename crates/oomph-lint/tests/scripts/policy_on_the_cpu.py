"""A policy gradient without a word about another place than main memory."""
import torch
from torch import optim


class Policy(torch.nn.Module):
    def forward(self, x):
        return x


def finish(policy, log_probs, returns):
    for log_prob, value in zip(log_probs, returns):
        optimizer = optim.Adam(policy.parameters())
        optimizer.zero_grad()
        loss = -log_prob * value
        loss.backward(retain_graph=True)
        optimizer.step()


if __name__ == "__main__":
    finish(Policy(), [], [])
