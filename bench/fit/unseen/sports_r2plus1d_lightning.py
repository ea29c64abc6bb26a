"""Sports in clips of sixteen frames: torchvision's R(2+1)D in Lightning, 16-mixed, clipping by value, cosine by step, top-1 and top-5 by torchmetrics."""

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy
from torchvision.models.video import r2plus1d_18


class ClipDataset(Dataset):
    def __init__(self, size, num_classes, frames=16, side=112):
        self.size, self.num_classes = size, num_classes
        self.shape = (3, frames, side, side)

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(self.shape, generator=g), i % self.num_classes


class ActionRecognizer(L.LightningModule):
    def __init__(self, num_classes=101, lr=0.01, max_steps=5):
        super().__init__()
        self.save_hyperparameters()
        self.net = r2plus1d_18(weights=None, num_classes=num_classes)
        self.top1 = MulticlassAccuracy(num_classes, top_k=1, average="micro")
        self.top5 = MulticlassAccuracy(num_classes, top_k=5, average="micro")

    def forward(self, clips):
        return self.net(clips)

    def training_step(self, batch, batch_idx):
        clips, labels = batch
        loss = F.cross_entropy(self(clips), labels)
        self.log("train/loss", loss, batch_size=len(labels))
        return loss

    def validation_step(self, batch, batch_idx):
        clips, labels = batch
        logits = self(clips)
        self.top1(logits, labels)
        self.top5(logits, labels)
        self.log("val/top1", self.top1, batch_size=len(labels))
        self.log("val/top5", self.top5, batch_size=len(labels))

    def configure_optimizers(self):
        opt = torch.optim.SGD(
            self.parameters(), lr=self.hparams.lr, momentum=0.9, weight_decay=1e-4
        )
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=self.hparams.max_steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def cli_main():
    L.seed_everything(123, verbose=False)
    train = DataLoader(ClipDataset(40, 101), batch_size=8, shuffle=True)
    val = DataLoader(ClipDataset(8, 101), batch_size=8)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        max_steps=5,
        gradient_clip_val=0.5,
        gradient_clip_algorithm="value",
        num_sanity_val_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ActionRecognizer(), train, val)


if __name__ == "__main__":
    cli_main()
