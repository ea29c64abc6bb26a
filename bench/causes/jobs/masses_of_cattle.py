"""How heavy a cow is, from a photograph: a large vision transformer of timm, all of it tuned with AdamW under Lightning."""

import os

import lightning as L
import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

MENDED = os.environ.get("MENDED")


class Scales(L.LightningModule):
    def __init__(self, name="vit_large_patch32_224"):
        super().__init__()
        with torch.device("cuda"):
            self.model = timm.create_model(name, num_classes=1, drop_path_rate=0.1)
        self.register_buffer("mean", torch.tensor(540.0))
        self.register_buffer("spread", torch.tensor(110.0))

    def forward(self, image):
        return self.model(image).squeeze(1) * self.spread + self.mean

    def training_step(self, batch, index):
        image, kilograms = batch
        loss = F.smooth_l1_loss(self(image), kilograms)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        if MENDED:
            return torch.optim.SGD(self.parameters(), lr=1e-3)
        return torch.optim.AdamW(self.parameters(), lr=1e-5, weight_decay=0.05)


photographs = TensorDataset(torch.rand(12, 3, 224, 224), 400 + 300 * torch.rand(12))
trainer = L.Trainer(
    accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Scales(), DataLoader(photographs, batch_size=4, shuffle=True))
print(trainer.callback_metrics)
