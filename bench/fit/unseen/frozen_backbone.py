"""Depth from one picture: a frozen ConvNeXt below, a decoder that is trained above, in channels_last."""

import timm
import torch
import torch.nn.functional as F
from torch import nn


class DepthDecoder(nn.Module):
    def __init__(self, channels, width=128):
        super().__init__()
        self.lateral = nn.ModuleDict(
            {f"l{i}": nn.Conv2d(c, width, 1) for i, c in enumerate(channels)}
        )
        self.smooth = nn.ModuleDict(
            {
                f"s{i}": nn.Sequential(
                    nn.Conv2d(width, width, 3, padding=1),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                )
                for i in range(len(channels))
            }
        )
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, feats):
        x = None
        for i in reversed(range(len(feats))):
            y = self.lateral[f"l{i}"](feats[f"f{i}"])
            if x is not None:
                y = y + F.interpolate(x, size=y.shape[-2:], mode="bilinear", align_corners=False)
            x = self.smooth[f"s{i}"](y)
        x = F.interpolate(x, scale_factor=4, mode="bilinear", align_corners=False)
        return F.softplus(self.out(x))


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model("convnext_small", features_only=True, pretrained=False)
        self.backbone.requires_grad_(False)
        self.decoder = DepthDecoder(self.backbone.feature_info.channels())

    def forward(self, x):
        feats = {f"f{i}": f for i, f in enumerate(self.backbone(x))}
        return {"depth": self.decoder(feats), "features": feats}


def scale_invariant(pred, target, mask, lam=0.85):
    d = (torch.log(pred) - torch.log(target))[mask]
    return torch.sqrt((d**2).mean() - lam * d.mean() ** 2)


model = DepthNet().to("cuda", memory_format=torch.channels_last)
model.backbone.eval()
optimizer = torch.optim.Adam(model.decoder.parameters(), lr=1e-4)
for step in range(5):
    image = torch.rand(8, 3, 256, 352, device="cuda").to(memory_format=torch.channels_last)
    target = torch.rand(8, 1, 256, 352, device="cuda") * 10 + 0.1
    output = model(image)
    loss = scale_invariant(output["depth"] + 1e-3, target, target > 0.2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
