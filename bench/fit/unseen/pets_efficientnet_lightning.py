"""Breeds of pets: timm EfficientNet-B4 at 380 px in Lightning, 16-mixed, OneCycle per step, validation at the end."""

import lightning as L
import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


class PetNet(L.LightningModule):
    def __init__(self, arch="efficientnet_b4", classes=37, lr=2e-3, total_steps=8):
        super().__init__()
        self.save_hyperparameters()
        self.net = timm.create_model(arch, num_classes=classes, drop_rate=0.4, drop_path_rate=0.2)
        self.accuracy = MulticlassAccuracy(classes)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y, label_smoothing=0.1)
        self.log("train_loss", loss, on_step=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        self.accuracy(out, y)
        self.log("val_loss", F.cross_entropy(out, y), prog_bar=True)
        self.log("val_acc", self.accuracy)

    def configure_optimizers(self):
        opt = torch.optim.RMSprop(
            self.parameters(),
            lr=self.hparams.lr,
            alpha=0.9,
            eps=1e-3,
            momentum=0.9,
            weight_decay=1e-5,
        )
        sched = torch.optim.lr_scheduler.OneCycleLR(
            opt, max_lr=self.hparams.lr, total_steps=self.hparams.total_steps
        )
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def photos(n):
    return TensorDataset(torch.randn(n, 3, 380, 380), torch.randint(0, 37, (n,)))


def main():
    L.seed_everything(11, verbose=False)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=1,
        precision="16-mixed",
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        PetNet(total_steps=6),
        DataLoader(photos(96), batch_size=16, shuffle=True),
        DataLoader(photos(32), batch_size=16),
    )
    print({k: v.item() for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
