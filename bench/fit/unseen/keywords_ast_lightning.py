"""Spoken keywords by the Audio Spectrogram Transformer: masks in time and frequency, Lightning in 16-mixed, cosine."""

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy
from transformers import ASTConfig, ASTForAudioClassification


class Spectrograms(Dataset):
    def __init__(self, n, frames):
        self.n, self.frames = n, frames

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        x = torch.randn(self.frames, 128)
        start = int(torch.randint(0, self.frames - 40, ()))
        x[start : start + 40] = 0
        band = int(torch.randint(0, 100, ()))
        x[:, band : band + 24] = 0
        return x, torch.tensor(i % 35)


class Keywords(L.LightningModule):
    def __init__(self, frames=798):
        super().__init__()
        self.model = ASTForAudioClassification(
            ASTConfig(
                hidden_size=768,
                num_hidden_layers=6,
                num_attention_heads=12,
                max_length=frames,
                num_labels=35,
                hidden_dropout_prob=0.1,
            )
        )
        self.accuracy = MulticlassAccuracy(35)

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.model(input_values=x, labels=y)
        self.accuracy(out.logits, y)
        self.log("loss", out.loss)
        self.log("accuracy", self.accuracy)
        return out.loss

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=5e-5, betas=(0.95, 0.999), weight_decay=5e-7)
        return [opt], [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)]


if __name__ == "__main__":
    L.seed_everything(1)
    data = DataLoader(Spectrograms(24 * 5, 798), batch_size=24, shuffle=True)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cuda",
        devices=1,
        precision="16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Keywords(), data)
