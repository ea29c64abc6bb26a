"""Lightning and torchvision's DeepLabV3 with an auxiliary head: poly schedule, validation at the end of an epoch."""

import lightning as L
import torch
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader, Dataset


class Streets(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        image = torch.zeros(3, 384, 512).add_(i)
        mask = torch.full((384, 512), i % 19)
        mask[:20] = 255
        return image, mask


class Segmenter(L.LightningModule):
    def __init__(self, classes=19, lr=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.net = torchvision.models.segmentation.deeplabv3_resnet50(
            weights=None, weights_backbone=None, num_classes=classes, aux_loss=True
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        loss = F.cross_entropy(out["out"], y, ignore_index=255)
        loss = loss + 0.4 * F.cross_entropy(out["aux"], y, ignore_index=255)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x)["out"], y, ignore_index=255))

    def configure_optimizers(self):
        groups = [
            {"params": self.net.backbone.parameters(), "lr": self.hparams.lr},
            {"params": self.net.classifier.parameters(), "lr": self.hparams.lr * 10},
            {"params": self.net.aux_classifier.parameters(), "lr": self.hparams.lr * 10},
        ]
        optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=1e-4)
        scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=100, power=0.9)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


if __name__ == "__main__":
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
    )
    trainer.fit(
        Segmenter(),
        DataLoader(Streets(40), batch_size=8, shuffle=True, num_workers=0),
        DataLoader(Streets(8), batch_size=8, num_workers=0),
    )
