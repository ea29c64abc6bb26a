"""Each task's adapted weights are kept with the graph that made them (MAML without a reset)."""
import torch
import torch.nn.functional as F
from torch import nn

net = nn.Sequential(
    nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 5),
).cuda()  # fmt: skip
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
adapted = []
for task in range(60):
    x = torch.randn(100, 1, 28, 28, device="cuda")
    y = torch.randint(0, 5, (100,), device="cuda")
    inner = F.cross_entropy(net(x), y)
    grads = torch.autograd.grad(inner, list(net.parameters()), create_graph=True)
    fast = {n: p - 0.1 * g for (n, p), g in zip(net.named_parameters(), grads)}
    adapted.append(fast)
    outer = F.cross_entropy(torch.func.functional_call(net, fast, x), y)
    optimizer.zero_grad()
    outer.backward(retain_graph=True)
    optimizer.step()
