"""Steps of cookery videos: TimeSformer with divided attention over eight frames, Lightning in bf16-mixed, layers below the third frozen."""

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy
from transformers import TimesformerConfig, TimesformerForVideoClassification


class CookeryClips(Dataset):
    def __init__(self, n=72, frames=8):
        self.n, self.frames = n, frames
        self.kitchen = torch.rand(3, 224, 224)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        clip = torch.stack([self.kitchen.roll(i + 4 * t, dims=-1) for t in range(self.frames)])
        return clip, i % 174


class ClipClassifier(L.LightningModule):
    def __init__(self, frozen=2, lr=5e-5):
        super().__init__()
        self.save_hyperparameters()
        config = TimesformerConfig(num_frames=8, num_labels=174, num_hidden_layers=6)
        self.net = TimesformerForVideoClassification(config)
        for layer in self.net.timesformer.encoder.layer[:frozen]:
            layer.requires_grad_(False)
        self.net.timesformer.embeddings.requires_grad_(False)
        self.train_acc = MulticlassAccuracy(174, average="micro")

    def training_step(self, batch, batch_idx):
        clip, label = batch
        out = self.net(pixel_values=clip, labels=label)
        self.train_acc(out.logits, label)
        self.log_dict({"loss": out.loss, "acc": self.train_acc}, prog_bar=False)
        return out.loss

    def configure_optimizers(self):
        trained = [p for p in self.parameters() if p.requires_grad]
        opt = torch.optim.AdamW(trained, lr=self.hparams.lr, weight_decay=0.05)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=100)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(3)
    trainer = L.Trainer(
        max_steps=5,
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(ClipClassifier(), DataLoader(CookeryClips(), batch_size=12, shuffle=True))
