"""Crops from satellite tiles: DINOv2-B frozen, LoRA by hand on queries and values, a linear head on CLS and mean tokens."""

import argparse

import torch
from torch import nn
from transformers import Dinov2Config, Dinov2Model


class LoRA(nn.Module):
    def __init__(self, linear: nn.Linear, rank: int):
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.normal_(self.down.weight, std=0.02)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


class CropClassifier(nn.Module):
    def __init__(self, backbone, rank, classes):
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        for name, module in list(backbone.named_modules()):
            for key in ("query", "value", "q_proj", "v_proj"):
                child = getattr(module, key, None)
                if isinstance(child, nn.Linear):
                    setattr(module, key, LoRA(child, rank))
        self.head = nn.Linear(2 * backbone.config.hidden_size, classes)

    def forward(self, pixels):
        tokens = self.backbone(pixel_values=pixels).last_hidden_state
        return self.head(torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], -1))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--rank", type=int, default=8)
    ap.add_argument("--batch", type=int, default=28)
    ap.add_argument("--steps", type=int, default=6)
    opt = ap.parse_args()

    torch.manual_seed(0)
    config = Dinov2Config(
        hidden_size=768, num_hidden_layers=12, num_attention_heads=12, image_size=224, patch_size=14
    )
    model = CropClassifier(Dinov2Model(config), opt.rank, 42).cuda()
    wanted = [p for p in model.parameters() if p.requires_grad]
    assert len(wanted) > 2
    optimizer = torch.optim.AdamW(wanted, lr=1e-3, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for step in range(opt.steps):
        tiles = torch.randn(opt.batch, 3, 224, 224, device="cuda")
        crops = torch.randint(0, 42, (opt.batch,), device="cuda")
        loss = criterion(model(tiles), crops)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step %d loss %.4f" % (step, loss.item()))


if __name__ == "__main__":
    main()
