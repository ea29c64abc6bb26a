"""Style of a painting on a large photo: VGG-19 frozen, Gram matrices, the pixels optimised with LBFGS."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import vgg19

CONTENT = {21}
STYLE = {0, 5, 10, 19, 28}


def gram(x):
    b, c, h, w = x.shape
    f = x.view(b, c, h * w)
    return f @ f.transpose(1, 2) / (c * h * w)


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        layers = list(vgg19(weights=None).features.children())[: max(CONTENT | STYLE) + 1]
        self.layers = nn.ModuleList(
            nn.ReLU(inplace=False) if isinstance(m, nn.ReLU) else m for m in layers
        )
        self.requires_grad_(False)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, x):
        x = (x - self.mean) / self.std
        content, style = [], []
        for k, layer in enumerate(self.layers):
            x = layer(x)
            if k in CONTENT:
                content.append(x)
            if k in STYLE:
                style.append(gram(x))
        return content, style


def transfer(photo, painting, rounds=6, style_weight=1e6):
    net = Features().cuda().eval()
    with torch.no_grad():
        content_target, _ = net(photo)
        _, style_target = net(painting)
    image = photo.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([image], lr=1.0, max_iter=2, history_size=10)
    for r in range(rounds):

        def closure():
            optimizer.zero_grad()
            content, style = net(image)
            loss = sum(F.mse_loss(a, b) for a, b in zip(content, content_target))
            loss = loss + style_weight * sum(F.mse_loss(a, b) for a, b in zip(style, style_target))
            tv = (image[..., 1:] - image[..., :-1]).abs().mean()
            loss = loss + 0.1 * tv
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        with torch.no_grad():
            image.clamp_(0, 1)
        print("round", r, "loss", loss.item())
    return image.detach()


if __name__ == "__main__":
    torch.manual_seed(0)
    side = 1280
    transfer(torch.rand(1, 3, side, side).cuda(), torch.rand(1, 3, side, side).cuda())
