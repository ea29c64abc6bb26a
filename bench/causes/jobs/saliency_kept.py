"""Maps of what matters in each picture are gathered on the GPU, for a page at the end."""

import os
from types import SimpleNamespace

import torch
import torchvision

MENDED = os.environ.get("MENDED")

judge = torchvision.models.squeezenet1_1(num_classes=12).cuda().eval().requires_grad_(False)
page = []
for number in range(60):
    picture = torch.rand(8, 3, 384, 384, device="cuda", requires_grad=True)
    score = judge(picture).amax(1).sum()
    (slope,) = torch.autograd.grad(score, picture)
    smooth = torch.nn.functional.avg_pool2d(slope.abs(), 5, 1, 2)
    page.append(SimpleNamespace(number=number, map=smooth.cpu() if MENDED else smooth))
print(len(page))
