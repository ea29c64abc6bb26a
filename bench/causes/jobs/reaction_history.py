"""A reaction and its diffusion are simulated without a network; each state stays for a film."""

import os

import torch
import torch.nn.functional as F

MENDED = os.environ.get("MENDED")
side = 2048
kernel = torch.tensor([[0.05, 0.2, 0.05], [0.2, -1.0, 0.2], [0.05, 0.2, 0.05]], device="cuda")
kernel = kernel.expand(2, 1, 3, 3)
rates = torch.tensor([0.16, 0.08], device="cuda").view(1, 2, 1, 1)
state = torch.rand(1, 2, side, side, device="cuda")


def advance(state, feed=0.055, kill=0.062):
    spread = rates * F.conv2d(F.pad(state, (1, 1, 1, 1), "circular"), kernel, groups=2)
    u, v = state[:, :1], state[:, 1:]
    reaction = u * v * v
    return state + spread + torch.cat((feed * (1 - u) - reaction, reaction - (feed + kill) * v), 1)


film = {}
with torch.no_grad():
    for moment in range(120):
        state = advance(state)
        film[moment] = state.cpu() if MENDED else state
