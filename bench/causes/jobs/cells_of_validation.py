"""A notebook: cells train a network of volumes and then validate it on whole volumes, without no_grad."""

import os

MENDED = os.environ.get("MENDED")
CELLS = [
    """
import torch, torch.nn as nn, torch.nn.functional as F
def block(i, o): return nn.Sequential(nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o), nn.LeakyReLU())
net = nn.Sequential(block(1, 16), block(16, 16), block(16, 16), nn.Conv3d(16, 2, 1)).cuda()
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.99)
""",
    """
for i in range(4):
    x = torch.randn(2, 1, 40, 40, 40, device="cuda")
    y = torch.randint(0, 2, (2, 40, 40, 40), device="cuda")
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
""",
    """
net.eval()
dice = []
for i in range(2):
    volume = torch.randn(1, 1, 112, 128, 112, device="cuda")
    mask = net(volume).argmax(1)
    dice.append(mask.float().mean().item())
""",
]
if MENDED:
    CELLS[2] = "with torch.inference_mode():\n" + "".join(
        f"    {line}\n" for line in CELLS[2].strip().splitlines()
    )
space = {}
for number, cell in enumerate(CELLS, 1):
    exec(compile(cell, f"<cell {number}>", "exec"), space)
