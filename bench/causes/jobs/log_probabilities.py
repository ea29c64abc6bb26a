"""Policy gradients: the list of log probabilities is never emptied."""
import torch
from torch import nn

policy = nn.Sequential(
    nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten(),
    nn.LazyLinear(512), nn.ReLU(), nn.Linear(512, 6),
).cuda()  # fmt: skip
policy(torch.zeros(1, 4, 84, 84, device="cuda"))
optimizer = torch.optim.RMSprop(policy.parameters())
saved, rewards = [], []
for episode in range(80):
    for _ in range(4):
        frames = torch.randn(128, 4, 84, 84, device="cuda")
        logits = policy(frames)
        action = torch.randint(0, 6, (128, 1), device="cuda")
        saved.append(logits.log_softmax(-1).gather(1, action))
        rewards.append(1.0)
    loss = -torch.stack(saved[-4:]).mean() * sum(rewards[-4:])
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
