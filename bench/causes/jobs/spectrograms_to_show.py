"""Lightning validates a denoiser of speech; what it made of each batch is kept until the epoch ends."""

import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        clean = torch.full((64000,), i * 1e-3)
        return clean + 0.1, clean


class Denoiser(L.LightningModule):
    def __init__(self, bins=257):
        super().__init__()
        self.save_hyperparameters()
        self.mask = nn.GRU(bins, 96, 2, batch_first=True)
        self.out = nn.Linear(96, bins)
        self.validation_step_outputs = []

    def spectrum(self, wave):
        window = torch.hann_window(512, device=wave.device)
        return torch.stft(wave, 512, 128, window=window, return_complex=True).transpose(1, 2)

    def forward(self, noisy):
        spec = self.spectrum(noisy)
        return spec * self.out(self.mask(spec.abs())[0]).sigmoid()

    def training_step(self, batch, _):
        noisy, clean = batch
        return (self(noisy) - self.spectrum(clean)).abs().mean()

    def validation_step(self, batch, _):
        noisy, clean = batch
        made = self(noisy)
        loss = (made - self.spectrum(clean)).abs().mean()
        pictures = {"noisy": self.spectrum(noisy).abs().log1p(), "made": made.abs().log1p()}
        if os.environ.get("MENDED"):
            pictures = {name: picture.cpu() for name, picture in pictures.items()}
        self.validation_step_outputs.append({"loss": loss, **pictures})
        return loss

    def on_validation_epoch_end(self):
        worst = max(self.validation_step_outputs, key=lambda out: out["loss"].item())
        self.print("worst", worst["made"].shape)
        self.validation_step_outputs.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = L.Trainer(
    accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
)  # fmt: skip
trainer.fit(Denoiser(), DataLoader(Noisy(32), 16), DataLoader(Noisy(512), 16))
