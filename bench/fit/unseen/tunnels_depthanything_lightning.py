"""Depth in tunnels by Depth Anything (DINOv2 backbone, DPT-like neck) under Lightning: scale-invariant log loss and gradients, two learning rates."""

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

SIDE = 252


class Tunnels(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image = torch.rand(3, SIDE, SIDE, generator=g)
        depth = 1 + 40 * torch.rand(SIDE, SIDE, generator=g)
        return image, depth


def silog(pred, target, lam=0.5):
    d = torch.log(pred + 1e-3) - torch.log(target)
    return ((d**2).mean() - lam * d.mean() ** 2).clamp_min(1e-8).sqrt()


def edges(pred, target):
    total = 0
    for k in range(3):
        p, t = (F.avg_pool2d(z[:, None], 2**k) for z in (pred, target))
        d = torch.log(p + 1e-3) - torch.log(t)
        total = total + d.diff(dim=-1).abs().mean() + d.diff(dim=-2).abs().mean()
    return total


class TunnelDepth(L.LightningModule):
    def __init__(self):
        super().__init__()
        backbone = Dinov2Config(
            hidden_size=384,
            num_hidden_layers=8,
            num_attention_heads=6,
            image_size=SIDE,
            patch_size=14,
            out_features=["stage2", "stage4", "stage6", "stage8"],
            apply_layernorm=True,
            reshape_hidden_states=False,
        )
        self.net = DepthAnythingForDepthEstimation(
            DepthAnythingConfig(
                backbone_config=backbone,
                patch_size=14,
                reassemble_hidden_size=384,
                neck_hidden_sizes=[48, 96, 192, 384],
                fusion_hidden_size=64,
                depth_estimation_type="metric",
                max_depth=80,
            )
        )

    def training_step(self, batch, _):
        image, depth = batch
        pred = self.net(pixel_values=image).predicted_depth
        loss = silog(pred, depth) + 0.5 * edges(pred, depth)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        slow = list(self.net.backbone.parameters())
        fast = [*self.net.neck.parameters(), *self.net.head.parameters()]
        return torch.optim.AdamW(
            [{"params": slow, "lr": 5e-6}, {"params": fast, "lr": 5e-5}], weight_decay=0.01
        )


if __name__ == "__main__":
    trainer = L.Trainer(
        max_steps=5,
        precision="bf16-mixed",
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(TunnelDepth(), DataLoader(Tunnels(), batch_size=32, shuffle=True, num_workers=0))
