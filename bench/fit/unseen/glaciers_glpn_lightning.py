"""Thickness of glaciers from one picture, as depth: GLPN in Lightning, scale-invariant loss plus gradients, checkpoint of the best."""

import os
import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset
from transformers import GLPNConfig, GLPNForDepthEstimation

N = int(os.environ.get("JOB_STEPS", "5"))
HEIGHT, WIDTH = 256, 320


class Glaciers(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        coarse = torch.rand(1, 1, 8, 10, generator=g)
        depth = torch.nn.functional.interpolate(coarse, (HEIGHT, WIDTH), mode="bilinear")[0, 0]
        tint = torch.rand(3, 1, 1, generator=g)
        image = depth * tint + 0.1 * torch.randn(3, HEIGHT, WIDTH, generator=g)
        return image, 0.5 + 9 * depth


class Thickness(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = GLPNForDepthEstimation(
            GLPNConfig(
                depths=[2, 4, 8, 2],
                hidden_sizes=[64, 128, 320, 512],
                decoder_hidden_size=64,
                max_depth=10,
                drop_path_rate=0.1,
            )
        )

    @staticmethod
    def silog(guess, truth):
        d = guess.clamp(min=1e-3).log() - truth.log()
        return (
            (d.square().mean((1, 2)) - 0.5 * d.mean((1, 2)).square()).clamp(min=1e-6).sqrt().mean()
        )

    @staticmethod
    def edges(guess, truth):
        e = guess - truth
        return (e[:, 1:] - e[:, :-1]).abs().mean() + (e[:, :, 1:] - e[:, :, :-1]).abs().mean()

    def step(self, batch, stage):
        image, truth = batch
        guess = self.net(image).predicted_depth.float()
        silog, edges = self.silog(guess, truth), self.edges(guess, truth)
        rmse = (guess - truth).square().mean().sqrt()
        self.log_dict({f"{stage}_silog": silog, f"{stage}_rmse": rmse.detach()}, prog_bar=True)
        return silog + 0.2 * edges

    def training_step(self, batch, _):
        return self.step(batch, "train")

    def validation_step(self, batch, _):
        self.step(batch, "val")

    def configure_optimizers(self):
        decoder = [p for n, p in self.net.named_parameters() if "encoder" not in n]
        encoder = [p for n, p in self.net.named_parameters() if "encoder" in n]
        optimizer = torch.optim.AdamW(
            [{"params": encoder, "lr": 6e-5}, {"params": decoder, "lr": 6e-4}], weight_decay=0.01
        )
        poly = torch.optim.lr_scheduler.PolynomialLR(optimizer, 200, power=0.9)
        return [optimizer], [{"scheduler": poly, "interval": "step"}]


if __name__ == "__main__":
    L.seed_everything(8, verbose=False)
    batch = 16
    with tempfile.TemporaryDirectory() as root:
        trainer = L.Trainer(
            accelerator="gpu",
            devices=1,
            max_epochs=1,
            precision="bf16-mixed",
            gradient_clip_val=1.0,
            log_every_n_steps=1,
            logger=CSVLogger(root),
            callbacks=[ModelCheckpoint(root, monitor="val_silog"), LearningRateMonitor("step")],
            num_sanity_val_steps=1,
            enable_progress_bar=False,
        )
        trainer.fit(
            Thickness(),
            DataLoader(Glaciers(batch * N, 0), batch, shuffle=True),
            DataLoader(Glaciers(batch, 10_000), batch),
        )
        print({k: float(v) for k, v in trainer.callback_metrics.items()})
