"""Badgers and other camera-trap animals: timm's CAFormer under Lightning, mixup, warmup then cosine, clipped gradients, an EMA as a callback."""

import copy
import math
import os

import lightning as L
import timm
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("JOB_STEPS", "5"))
SPECIES = 48
BATCH = 128


class TrapNights(Dataset):
    """One item is a whole batch, as our sharded reader gives it."""

    def __init__(self, batches):
        self.images = torch.randint(0, 256, (BATCH, 3, 224, 224), dtype=torch.uint8)
        self.batches = batches

    def __len__(self):
        return self.batches

    def __getitem__(self, i):
        return self.images, (torch.arange(BATCH) * 7 + i) % SPECIES


class AverageWeights(Callback):
    def __init__(self, decay=0.9995):
        self.decay = decay
        self.shadow = None

    def on_train_start(self, trainer, module):
        self.shadow = copy.deepcopy(module.net).eval().requires_grad_(False)

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        decay = min(self.decay, (1 + trainer.global_step) / (10 + trainer.global_step))
        mine, live = list(self.shadow.parameters()), list(module.net.parameters())
        torch._foreach_lerp_(mine, live, 1 - decay)


class TrapClassifier(L.LightningModule):
    def __init__(self, lr=1e-3, warmup=20, total=2000):
        super().__init__()
        self.save_hyperparameters()
        self.net = timm.create_model(
            "caformer_s18", pretrained=False, num_classes=SPECIES, drop_path_rate=0.15
        )
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        images = (images.float() / 255 - self.mean) / self.std
        lam = float(torch.distributions.Beta(0.8, 0.8).sample())
        images = lam * images + (1 - lam) * images.flip(0)
        logits = self.net(images)
        loss = lam * F.cross_entropy(logits, labels, label_smoothing=0.1)
        loss = loss + (1 - lam) * F.cross_entropy(logits, labels.flip(0), label_smoothing=0.1)
        self.log("train/loss", loss)
        print(f"batch {batch_idx} lam {lam:.2f} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.ndim > 1]
        plain = [p for p in self.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
        opt = torch.optim.AdamW(groups, lr=self.hparams.lr)

        def shape(step):
            if step < self.hparams.warmup:
                return (step + 1) / self.hparams.warmup
            done = (step - self.hparams.warmup) / (self.hparams.total - self.hparams.warmup)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

        sched = torch.optim.lr_scheduler.LambdaLR(opt, shape)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(11)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=1,
        limit_train_batches=STEPS,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        callbacks=[AverageWeights()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TrapClassifier(), DataLoader(TrapNights(STEPS), batch_size=None, num_workers=0))
