"""Lightning with a ViT by configuration, two optimizers' worth of groups and an own schedule."""

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification


class Leaves(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return torch.rand(3, 192, 192), torch.tensor(i % 38)


class PlantModule(L.LightningModule):
    def __init__(self, lr=3e-4, smoothing=0.1):
        super().__init__()
        self.save_hyperparameters()
        config = ViTConfig(
            hidden_size=480, num_hidden_layers=10, num_attention_heads=8, intermediate_size=1920,
            image_size=192, patch_size=16, num_labels=38,
        )  # fmt: skip
        self.model = ViTForImageClassification(config)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.model(pixel_values=x).logits
        loss = F.cross_entropy(logits, y, label_smoothing=self.hparams.smoothing)
        self.log("train/loss", loss, prog_bar=False)
        self.log("train/acc", (logits.argmax(-1) == y).float().mean())
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/loss", F.cross_entropy(self.model(pixel_values=x).logits, y))

    def configure_optimizers(self):
        head = list(self.model.classifier.parameters())
        body = list(self.model.vit.parameters())
        opt = torch.optim.AdamW(
            [{"params": body, "lr": self.hparams.lr / 10}, {"params": head}], lr=self.hparams.lr
        )
        sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.95)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


L.seed_everything(11)
trainer = L.Trainer(
    max_steps=5, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
    limit_val_batches=1, num_sanity_val_steps=1,
)  # fmt: skip
trainer.fit(
    PlantModule(),
    DataLoader(Leaves(320), batch_size=40, shuffle=True),
    DataLoader(Leaves(64), batch_size=40),
)
