"""Moths by their wings: a DeiT in Lightning."""

import os
import warnings

import lightning as L
import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
MENDED = os.environ.get("MENDED")


class Moths(L.LightningModule):
    def __init__(self, species=250):
        super().__init__()
        self.net = timm.create_model("deit_base_patch16_224", num_classes=species, img_size=96)

    def training_step(self, batch, index):
        images, species = batch
        return F.cross_entropy(self.net(images), species, label_smoothing=0.1)

    def configure_optimizers(self):
        if MENDED:
            return torch.optim.Adafactor(self.parameters(), lr=1e-3, foreach=False)
        return torch.optim.Adamax(self.parameters(), lr=1e-3, weight_decay=0.02)


loader = DataLoader(
    TensorDataset(torch.randn(24, 3, 96, 96), torch.randint(0, 250, (24,))), batch_size=8
)
trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Moths(), loader)
