"""Learning to reweight examples with noisy labels: a differentiable step on a ResNet through functional_call, then the real one."""

import torch
import torch.nn.functional as F
import torchvision
from torch.func import functional_call


def weights_for(model, params, buffers, x, y, clean_x, clean_y, lr):
    """The weight of each example: how far a virtual step on it lowers the loss on the clean ones."""
    eps = torch.zeros(len(x), device=x.device, requires_grad=True)
    cost = F.cross_entropy(functional_call(model, (params, buffers), (x,)), y, reduction="none")
    grads = torch.autograd.grad((cost * eps).sum(), list(params.values()), create_graph=True)
    virtual = {name: p - lr * g for (name, p), g in zip(params.items(), grads)}
    meta = F.cross_entropy(functional_call(model, (virtual, buffers), (clean_x,)), clean_y)
    (g,) = torch.autograd.grad(meta, eps)
    w = torch.clamp(-g, min=0)
    return w / (w.sum() + (w.sum() == 0))


def main(steps=6, batch=96, clean=32, lr=0.05):
    torch.manual_seed(0)
    model = torchvision.models.resnet18(
        num_classes=14, norm_layer=lambda c: torch.nn.GroupNorm(16, c)
    )
    model = model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    buffers = dict(model.named_buffers())
    for step in range(steps):
        x = torch.randn(batch, 3, 128, 128).cuda()
        y = torch.randint(0, 14, (batch,)).cuda()
        clean_x = torch.randn(clean, 3, 128, 128).cuda()
        clean_y = torch.randint(0, 14, (clean,)).cuda()
        params = dict(model.named_parameters())
        w = weights_for(model, params, buffers, x, y, clean_x, clean_y, lr)
        loss = (F.cross_entropy(model(x), y, reduction="none") * w.detach()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item(), "kept", int((w > 0).sum()))


if __name__ == "__main__":
    main()
