"""A Lightning module keeps a perceptual distance of every step, for a curve, with its graph."""

import lightning
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Deblur(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.PReLU(), nn.Conv2d(32, 32, 3, padding=1),
            nn.PReLU(), nn.Conv2d(32, 3, 3, padding=1),
        )  # fmt: skip
        self.vgg = torchvision.models.vgg11().features[:11].requires_grad_(False)
        self.curve = []

    def training_step(self, batch, batch_idx):
        blurred, sharp = batch
        restored = self.net(blurred)
        distance = (self.vgg(restored) - self.vgg(sharp)).abs().mean()
        self.curve.append(distance)
        return nn.functional.l1_loss(restored, sharp)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-4)


images = TensorDataset(torch.rand(256, 3, 96, 96), torch.rand(256, 3, 96, 96))
trainer = lightning.Trainer(
    max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, accelerator="gpu", devices=1,
)  # fmt: skip
trainer.fit(Deblur(), DataLoader(images, batch_size=8))
