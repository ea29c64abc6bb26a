from __future__ import annotations

import lightning.pytorch as pl
import timm
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import BinaryJaccardIndex


class AerialTiles(Dataset):
    """Tiles of aerial photographs with masks of the roofs on them (here: rectangles on noise)."""

    def __init__(self, n: int = 200, size: int = 512):
        self.n, self.size = n, size

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        rng = torch.Generator().manual_seed(index)
        image = torch.randint(0, 256, (3, self.size, self.size), dtype=torch.uint8, generator=rng)
        mask = torch.zeros(1, self.size, self.size)
        for _ in range(5):
            y, x, h, w = (int(v) for v in torch.randint(20, self.size // 2, (4,), generator=rng))
            mask[:, y : y + h, x : x + w] = 1
        return {"image": image, "mask": mask, "name": f"tile_{index:05d}"}


class ConvBnRelu(nn.Sequential):
    def __init__(self, i: int, o: int):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)
        )


class UpBlock(nn.Module):
    def __init__(self, i: int, skip: int, o: int):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.conv1 = ConvBnRelu(i + skip, o)
        self.conv2 = ConvBnRelu(o, o)

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        x = self.up(x)
        if skip is not None:
            x = torch.cat([x, skip], dim=1)
        return self.conv2(self.conv1(x))


class TimmUnet(nn.Module):
    def __init__(self, encoder: str = "resnet34", widths=(256, 128, 64, 32, 16)):
        super().__init__()
        self.encoder = timm.create_model(encoder, features_only=True, pretrained=False)
        channels = self.encoder.feature_info.channels()[::-1]
        ins = [channels[0], *widths[:-1]]
        skips = [*channels[1:], 0]
        self.decoder = nn.ModuleList(UpBlock(i, s, o) for i, s, o in zip(ins, skips, widths))
        self.head = nn.Conv2d(widths[-1], 1, kernel_size=3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        *skips, x = self.encoder(x)
        for block in self.decoder:
            x = block(x, skips.pop() if skips else None)
        return self.head(x)


class DiceBCE(nn.Module):
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        bce = nn.functional.binary_cross_entropy_with_logits(logits, target)
        prob = logits.sigmoid().flatten(1)
        target = target.flatten(1)
        inter = (prob * target).sum(1)
        dice = 1 - (2 * inter + 1) / (prob.sum(1) + target.sum(1) + 1)
        return bce + dice.mean()


class RoofSegmenter(pl.LightningModule):
    def __init__(self, lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = TimmUnet()
        self.criterion = DiceBCE()
        self.train_iou, self.val_iou = BinaryJaccardIndex(), BinaryJaccardIndex()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        return self.net((image.float() / 255 - self.mean) / self.std)

    def training_step(self, batch, batch_idx):
        logits = self(batch["image"])
        loss = self.criterion(logits, batch["mask"])
        self.train_iou(logits.detach().sigmoid(), batch["mask"].int())
        self.log_dict({"loss": loss, "iou": self.train_iou}, on_step=True)
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self(batch["image"])
        self.val_iou.update(logits.sigmoid(), batch["mask"].int())
        self.log("val_loss", self.criterion(logits, batch["mask"]), batch_size=len(logits))

    def on_validation_epoch_end(self):
        self.log("val_iou", self.val_iou.compute())
        self.val_iou.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-4)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.lr, total_steps=10)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def cli_main():
    pl.seed_everything(2024, workers=True)
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        max_steps=5,
        val_check_interval=4,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    train = DataLoader(AerialTiles(200), batch_size=20, shuffle=True, drop_last=True)
    val = DataLoader(AerialTiles(20), batch_size=20)
    trainer.fit(RoofSegmenter(), train, val)
    print({k: float(v) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    cli_main()
