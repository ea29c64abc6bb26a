"""A callback of Lightning draws many samples at the end of each epoch, where gradients are still recorded."""

import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Faces(L.LightningModule):
    """A variational autoencoder."""

    def __init__(self, latent=64, c=48):
        super().__init__()
        self.latent = latent
        self.encoder = nn.Sequential(
            nn.Conv2d(3, c, 4, 2, 1), nn.ELU(), nn.Conv2d(c, c, 4, 2, 1), nn.ELU(), nn.Flatten(),
            nn.Linear(c * 256, 2 * latent),
        )  # fmt: skip
        self.start = nn.Linear(latent, c * 64)
        self.decoder = nn.Sequential(
            nn.Unflatten(1, (c, 8, 8)), nn.ELU(), nn.ConvTranspose2d(c, c, 4, 2, 1), nn.ELU(),
            nn.ConvTranspose2d(c, c, 4, 2, 1), nn.ELU(), nn.Conv2d(c, c, 3, 1, 1), nn.ELU(),
            nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def decode(self, z):
        return self.decoder(self.start(z))

    def training_step(self, batch, index):
        (x,) = batch
        mean, spread = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        loss = (self.decode(z) - x).square().sum() / len(x)
        return loss + 0.5 * (mean.square() + spread.exp() - spread - 1).sum() / len(x)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Samples(L.Callback):
    def __init__(self, count):
        self.count = count

    def draw(self, module):
        z = torch.randn(self.count, module.latent, device=module.device)
        return module.decode(z).mean((2, 3)).std(0).tolist()

    def on_train_epoch_end(self, trainer, module):
        module.eval()
        if os.environ.get("MENDED"):
            with torch.no_grad():
                print(self.draw(module))
        else:
            print(self.draw(module))
        module.train()


trainer = L.Trainer(
    max_epochs=2, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[Samples(2048)],
)  # fmt: skip
trainer.fit(Faces(), DataLoader(TensorDataset(torch.rand(96, 3, 64, 64)), 32))
