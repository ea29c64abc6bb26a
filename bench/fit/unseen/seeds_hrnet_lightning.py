"""Outlines of seeds by timm's HRNet as a pyramid of features under Lightning: hardest pixels only, a boundary branch, batches accumulated on a schedule, averaged weights at the end."""

import lightning as L
import timm
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class OutlineNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.pyramid = timm.create_model("hrnet_w18_small_v2", pretrained=False, features_only=True)
        width = sum(self.pyramid.feature_info.channels()[1:])
        self.fuse = nn.Sequential(
            nn.Conv2d(width, 256, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(inplace=True)
        )
        self.inside = nn.Conv2d(256, classes, 1)
        self.edge = nn.Conv2d(256, 1, 1)

    def forward(self, x):
        _, *maps = self.pyramid(x)
        size = maps[0].shape[-2:]
        up = [maps[0], *(F.interpolate(m, size, mode="bilinear") for m in maps[1:])]
        z = self.fuse(torch.cat(up, 1))
        return [
            F.interpolate(b(z), x.shape[-2:], mode="bilinear") for b in (self.inside, self.edge)
        ]


class Seeds(L.LightningModule):
    def __init__(self, classes=14, hardest=0.3):
        super().__init__()
        self.net = OutlineNet(classes)
        self.hardest = hardest

    def training_step(self, batch, _):
        image, label = batch
        inside, edge = self.net(image)
        loss = F.cross_entropy(inside, label, reduction="none").flatten(1)
        loss = loss.topk(int(self.hardest * loss.shape[1]), dim=1).values.mean()
        boundary = (label[:, 1:, 1:] != label[:, :-1, :-1]).float()
        boundary = F.pad(boundary, (1, 0, 1, 0))[:, None]
        extra = F.binary_cross_entropy_with_logits(edge, boundary, pos_weight=edge.new_tensor(4.0))
        self.log_dict({"inside": loss, "edge": extra}, prog_bar=True)
        return loss + 0.4 * extra

    def configure_optimizers(self):
        return torch.optim.SGD(
            self.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True
        )


def main():
    L.seed_everything(31)
    data = TensorDataset(torch.rand(84, 3, 320, 320), torch.randint(0, 14, (84, 320, 320)))
    trainer = L.Trainer(
        max_epochs=2,
        precision="16-mixed",
        accelerator="gpu",
        devices=1,
        callbacks=[
            GradientAccumulationScheduler({0: 3, 1: 1}),
            StochasticWeightAveraging(swa_lrs=0.005, swa_epoch_start=1),
        ],
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Seeds(), DataLoader(data, batch_size=28, shuffle=True))


if __name__ == "__main__":
    main()
