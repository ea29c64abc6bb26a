"""A particle simulator is trained through its whole trajectory, whose state is never detached."""

import torch
from torch import nn


def messages(edge_net, node_net, state, source, target):
    sent = edge_net(torch.cat((state[source], state[target]), 1))
    received = torch.zeros_like(state).index_add_(0, target, sent)
    return state + node_net(torch.cat((state, received), 1))


device = torch.device("cuda")
edge_net = nn.Sequential(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 64)).to(device)
node_net = nn.Sequential(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 64)).to(device)
weights = [*edge_net.parameters(), *node_net.parameters()]
optimizer = torch.optim.AdamW(weights, lr=1e-3)
source, target = torch.randint(0, 4000, (2, 24000), device=device)
for trajectory in range(2):
    state = torch.randn(4000, 64, device=device)
    error = 0
    for time in range(120):
        state = messages(edge_net, node_net, state, source, target)
        error = error + state.square().mean()
    optimizer.zero_grad()
    error.backward()
    optimizer.step()
