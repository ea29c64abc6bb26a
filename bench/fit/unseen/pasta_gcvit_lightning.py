"""Pasta shapes: timm's GC ViT under Lightning, fp32, random erasing, label smoothing, cosine over steps."""

import os

import lightning as L
import timm
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from timm.data.random_erasing import RandomErasing
from timm.loss import LabelSmoothingCrossEntropy
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("JOB_STEPS", "5"))
SHAPES = 64


class PastaData(L.LightningDataModule):
    def __init__(self, batch_size=64, side=224):
        super().__init__()
        self.batch_size, self.side = batch_size, side

    def setup(self, stage=None):
        # A small pool of plates that is gone through again and again.
        plates = torch.randint(0, 256, (256, 3, self.side, self.side), dtype=torch.uint8)
        self.train_set = TensorDataset(plates, torch.randint(0, SHAPES, (256,)))
        self.val_set = TensorDataset(plates[:64], torch.randint(0, SHAPES, (64,)))

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, self.batch_size)


class PastaClassifier(L.LightningModule):
    def __init__(self, lr=5e-4):
        super().__init__()
        self.save_hyperparameters()
        self.net = timm.create_model("gcvit_tiny", num_classes=SHAPES, drop_path_rate=0.2)
        self.criterion = LabelSmoothingCrossEntropy(0.1)
        self.erase = RandomErasing(probability=0.25, mode="pixel", device="cuda")
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def prepare(self, pictures):
        return (pictures.float() / 255 - self.mean) / self.std

    def training_step(self, batch, i):
        pictures, shape = batch
        logits = self.net(self.erase(self.prepare(pictures)))
        loss = self.criterion(logits, shape)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, i):
        pictures, shape = batch
        logits = self.net(self.prepare(pictures))
        self.log("val_loss", F.cross_entropy(logits, shape))
        self.log("val_top1", (logits.argmax(1) == shape).float().mean())

    def configure_optimizers(self):
        decay = [p for p in self.net.parameters() if p.ndim > 1]
        rest = [p for p in self.net.parameters() if p.ndim <= 1]
        opt = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
            lr=self.hparams.lr,
        )
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=max(STEPS, 2), eta_min=1e-6)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


class Say(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, i):
        print(f"step {trainer.global_step} loss {outputs['loss'].item():.4f}")


def main():
    L.seed_everything(3)
    trainer = L.Trainer(
        max_steps=STEPS,
        max_epochs=-1,
        accelerator="gpu",
        devices=1,
        precision="32-true",
        gradient_clip_val=5.0,
        limit_val_batches=1,
        val_check_interval=4,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
        callbacks=[Say()],
    )
    trainer.fit(PastaClassifier(), datamodule=PastaData())


if __name__ == "__main__":
    main()
