"""Helmets on building sites: torchvision's SSD300 in Lightning, 16-mixed, two losses logged."""

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import ssd300_vgg16


class Sites(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        corner = torch.rand(5, 2) * 200
        boxes = torch.cat([corner, corner + 20 + torch.rand(5, 2) * 70], 1)
        return torch.rand(3, 300, 300), dict(boxes=boxes, labels=torch.randint(1, 4, (5,)))


class Detector(pl.LightningModule):
    def __init__(self, classes=4, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.net = ssd300_vgg16(weights=None, weights_backbone=None, num_classes=classes)

    def training_step(self, batch, _):
        images, targets = batch
        losses = self.net(list(images), list(targets))
        self.log_dict(losses, batch_size=len(images))
        loss = sum(losses.values())
        self.print(float(loss))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, weight_decay=5e-4)


def main():
    pl.seed_everything(0, verbose=False)
    loader = DataLoader(Sites(20 * 6), 20, collate_fn=lambda rows: tuple(zip(*rows)))
    trainer = pl.Trainer(
        max_epochs=1,
        precision="16-mixed",
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Detector(), loader)


if __name__ == "__main__":
    main()
