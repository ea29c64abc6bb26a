"""Swimmers' joints: ViTPose with its simple decoder, heat maps under a visibility mask, layer-wise rates, bf16 autocast, two batches of crops for a step."""

import math

import torch
from torch import nn
from transformers import VitPoseBackboneConfig, VitPoseConfig, VitPoseForPoseEstimation

JOINTS = 17
HEAT = (64, 48)


class Swimmers:
    """Crops of 256 x 192 with joints in heat-map coordinates; some are under water (visibility 0)."""

    def __init__(self, batch_size, device):
        self.batch_size, self.device = batch_size, device
        ys = torch.arange(HEAT[0], device=device).float()
        xs = torch.arange(HEAT[1], device=device).float()
        self.grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij"), -1)

    def __iter__(self):
        return self

    def __next__(self):
        b = self.batch_size
        crops = torch.rand(b, 3, 256, 192, device=self.device)
        joints = torch.rand(b, JOINTS, 2, device=self.device) * torch.tensor(HEAT).to(self.device)
        visible = (torch.rand(b, JOINTS, device=self.device) > 0.3).float()
        distance = (self.grid - joints[:, :, None, None]).square().sum(-1)
        return crops, torch.exp(-distance / (2 * 2.0**2)), visible


def build():
    backbone = VitPoseBackboneConfig(
        image_size=[256, 192],
        hidden_size=768,
        num_hidden_layers=8,
        num_attention_heads=12,
        out_features=["stage8"],
        drop_path_rate=0.1,
    )
    config = VitPoseConfig(backbone_config=backbone, num_labels=JOINTS, use_simple_decoder=True)
    return VitPoseForPoseEstimation(config)


def rates(model, base=5e-4, factor=0.75, layers=8):
    """One group for each depth, as in ViTPose's own recipe."""
    depth_of = {}
    for name, p in model.named_parameters():
        if ".layer." in name:
            depth = int(name.split(".layer.")[1].split(".")[0]) + 1
        else:
            depth = 0 if "embeddings" in name else layers + 1
        depth_of.setdefault(depth, []).append(p)
    return [
        {"params": ps, "lr": base * math.pow(factor, layers + 1 - d)} for d, ps in depth_of.items()
    ]


def main():
    device = torch.device("cuda")
    torch.manual_seed(21)
    with device:
        model = build()
    optimizer = torch.optim.AdamW(rates(model), betas=(0.9, 0.999), weight_decay=0.1)
    mse = nn.MSELoss(reduction="none")
    data = Swimmers(batch_size=56, device=device)
    model.train()
    for step in range(4):
        optimizer.zero_grad()
        total = torch.zeros((), device=device)
        for _ in range(2):
            crops, target, visible = next(data)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                heat = model(pixel_values=crops).heatmaps
            per_joint = mse(heat.float(), target).mean(dim=(2, 3))
            loss = (per_joint * visible).sum() / visible.sum().clamp(min=1) / 2
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step}  heat-map loss {total.item():.6f}")


main()
