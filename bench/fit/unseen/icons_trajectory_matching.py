# Dataset distillation by matching training trajectories: a few synthetic icons per class are learned such that
# a ConvNet trained on them for 16 steps lands where an expert lands after many steps on the real set. Gradients go
# through the whole inner training (create_graph), into the pixels and into the inner learning rate.
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

device = torch.device("cuda")
CLASSES, PER_CLASS, SIZE = 20, 10, 32
INNER_STEPS, INNER_BATCH = 16, 100
EXPERT_STEPS, OUTER_STEPS = 40, 3


def convnet(width=128, depth=3):
    layers, c = [], 3
    for _ in range(depth):
        layers += [
            nn.Conv2d(c, width, 3, padding=1),
            nn.GroupNorm(width, width),
            nn.ReLU(),
            nn.AvgPool2d(2),
        ]
        c = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * (SIZE // 2**depth) ** 2, CLASSES))


class Flat(nn.Module):
    """Calls a network with one flat vector of weights."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.names = [n for n, _ in net.named_parameters()]
        self.shapes = [p.shape for p in net.parameters()]
        self.sizes = [p.numel() for p in net.parameters()]

    def vector(self):
        return torch.cat([p.detach().reshape(-1) for p in self.net.parameters()])

    def forward(self, x, theta):
        pieces = theta.split(self.sizes)
        params = {n: p.view(s) for n, p, s in zip(self.names, pieces, self.shapes)}
        return functional_call(self.net, params, (x,))


def augment(x):
    """Same random flip, shift and brightness for the batch, differentiable."""
    if torch.rand(()) < 0.5:
        x = x.flip(3)
    dy, dx = torch.randint(-3, 4, (2,)).tolist()
    x = torch.roll(F.pad(x, (4, 4, 4, 4)), (dy, dx), (2, 3))[:, :, 4:-4, 4:-4]
    return x + (torch.rand((), device=x.device) - 0.5) * 0.3


torch.manual_seed(21)
prototypes = torch.randn(CLASSES, 3, 8, 8, device=device)


def real_batch(n):
    y = torch.randint(CLASSES, (n,), device=device)
    x = F.interpolate(prototypes[y], size=SIZE, mode="bilinear")
    return x + 0.5 * torch.randn_like(x), y


def expert():
    net = convnet().to(device)
    start = Flat(net).vector()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for _ in range(EXPERT_STEPS):
        x, y = real_batch(256)
        loss = F.cross_entropy(net(augment(x)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return start, Flat(net).vector(), loss.item()


labels = torch.arange(CLASSES, device=device).repeat_interleave(PER_CLASS)
pixels = torch.randn(CLASSES * PER_CLASS, 3, SIZE, SIZE, device=device, requires_grad=True)
inner_lr = torch.tensor(0.02, device=device, requires_grad=True)
opt_pixels = torch.optim.SGD([pixels], lr=100.0, momentum=0.5)
opt_lr = torch.optim.SGD([inner_lr], lr=1e-6, momentum=0.5)

student = Flat(convnet().to(device))
for step in range(OUTER_STEPS):
    start, target, expert_loss = expert()
    theta = start.clone().requires_grad_(True)
    order = torch.cat([torch.randperm(len(labels), device=device) for _ in range(INNER_STEPS)])
    for inner in range(INNER_STEPS):
        pick = order[inner * INNER_BATCH : (inner + 1) * INNER_BATCH]
        loss = F.cross_entropy(student(augment(pixels[pick]), theta), labels[pick])
        (grad,) = torch.autograd.grad(loss, theta, create_graph=True)
        theta = theta - inner_lr * grad
    match = (theta - target).square().sum() / (start - target).square().sum()
    opt_pixels.zero_grad()
    opt_lr.zero_grad()
    match.backward()
    opt_pixels.step()
    opt_lr.step()
    print(
        f"outer {step} expert loss {expert_loss:.3f} match {match.item():.4f} inner lr {inner_lr.item():.5f}"
    )
    del theta, grad, loss, match
