"""Sounds of trams by contrastive predictive coding: a strided encoder of the waveform, a GRU, twelve predictors."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 20480
AHEAD, NEGATIVES = 12, 64


class Recordings(Dataset):
    """Windows of 1.28 s with a hum, wheels on rail joints, and noise."""

    def __len__(self):
        return 36 * 2 * 5

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        t = torch.arange(WINDOW) / 16000
        pitch = 50 + 150 * torch.rand(1, generator=g)
        beat = (torch.sin(2 * torch.pi * 3 * t) > 0.98).float()
        wave = 0.3 * torch.sin(2 * torch.pi * pitch * t) + 0.5 * beat
        return (wave + 0.05 * torch.randn(WINDOW, generator=g)).unsqueeze(0)


class ChannelNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels, 1))
        self.bias = nn.Parameter(torch.zeros(1, channels, 1))

    def forward(self, x):
        mean, var = x.mean(1, keepdim=True), x.var(1, keepdim=True)
        return (x - mean) * torch.rsqrt(var + 1e-5) * self.weight + self.bias


class CPC(L.LightningModule):
    def __init__(self, hidden=512, context=256, lr=2e-4):
        super().__init__()
        self.save_hyperparameters()
        layers, width = [], 1
        for kernel, stride, padding in [(10, 5, 3), (8, 4, 2), (4, 2, 1), (4, 2, 1), (4, 2, 1)]:
            conv = nn.Conv1d(width, hidden, kernel, stride, padding, bias=False)
            layers += [conv, ChannelNorm(hidden), nn.ReLU(inplace=True)]
            width = hidden
        self.encoder = nn.Sequential(*layers)
        self.memory = nn.GRU(hidden, context, batch_first=True)
        self.predictors = nn.ModuleList(
            nn.Linear(context, hidden, bias=False) for _ in range(AHEAD)
        )

    def forward(self, wave):
        z = self.encoder(wave).transpose(1, 2)
        return z, self.memory(z)[0]

    def training_step(self, wave, index):
        z, c = self(wave)
        batch, time, width = z.shape
        steps = time - AHEAD
        pool = z.reshape(batch * time, width)
        other = torch.randint(batch * time, (batch, NEGATIVES, steps), device=z.device)
        negatives = pool[other]
        losses, right = [], []
        for k, predictor in enumerate(self.predictors, 1):
            guess = predictor(c[:, :steps])
            good = (guess * z[:, k : k + steps]).sum(-1, keepdim=True) / width
            bad = torch.einsum("btd,bntd->btn", guess, negatives) / width
            scores = torch.cat([good, bad], -1).flatten(0, 1)
            target = scores.new_zeros(len(scores), dtype=torch.long)
            losses.append(F.cross_entropy(scores, target))
            right.append((scores.argmax(1) == 0).float().mean())
        loss = torch.stack(losses).mean()
        self.log("accuracy", torch.stack(right).mean())
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        if (index + 1) % self.trainer.accumulate_grad_batches == 0:
            print(f"step {self.global_step} loss {outputs['loss'].item():.4f}")

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1000)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def main():
    L.seed_everything(13)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=1,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(CPC(), DataLoader(Recordings(), 36, shuffle=True, drop_last=True))


if __name__ == "__main__":
    main()
