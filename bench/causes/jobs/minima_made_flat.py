"""Mushrooms are told apart by a tuned vision transformer. Flat minima are looked for: a second copy of all weights waits meanwhile."""

import os

import timm
import torch

RHO = 0.0 if os.environ.get("MENDED") else 0.05


class SharpnessAware(torch.optim.Optimizer):
    """Climbs to the worst weights nearby, and descends with the gradient from there."""

    def __init__(self, params, base, rho, **options):
        super().__init__(params, dict(rho=rho, **options))
        self.base = base(self.param_groups, **options)

    @torch.no_grad()
    def climb(self):
        norms = [p.grad.norm() for group in self.param_groups for p in group["params"]]
        norm = torch.stack(norms).norm() + 1e-12
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["before"] = p.clone()
                p.addcmul_(p.grad, group["rho"] / norm)
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["before"])
        self.base.step()
        self.zero_grad()

    def step(self, closure=None):
        raise RuntimeError("climb() and descend()")


def photographs(count, size=64):
    g = torch.Generator().manual_seed(2)
    for _ in range(count):
        yield torch.rand(4, 3, size, size, generator=g), torch.randint(0, 90, (4,), generator=g)


def main():
    model = timm.create_model("vit_base_patch32_224", img_size=64, num_classes=90).cuda()
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    if RHO:
        optimizer = SharpnessAware(model.parameters(), torch.optim.SGD, RHO, lr=1e-3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for image, kind in photographs(3):
        image, kind = image.cuda(), kind.cuda()
        loss = criterion(model(image), kind)
        loss.backward()
        if RHO:
            optimizer.climb()
            criterion(model(image), kind).backward()
            optimizer.descend()
        else:
            optimizer.step()
            optimizer.zero_grad()
        print(loss.item())


main()
