"""Lightning trains an image model with batches that are too large, in mixed precision."""

import lightning
import timm
import torch
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = timm.create_model("resnext26ts", num_classes=200)

    def training_step(self, batch, _):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, weight_decay=0.05)


data = TensorDataset(torch.rand(384, 3, 160, 160), torch.randint(0, 200, (384,)))
lightning.Trainer(
    max_steps=3, precision="bf16-mixed", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, accelerator="gpu", devices=1,
).fit(Classifier(), DataLoader(data, batch_size=128))  # fmt: skip
