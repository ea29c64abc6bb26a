"""Accents by HuBERT: frozen feature encoder, weighted cross entropy, Lightning with accumulate_grad_batches."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import HubertConfig, HubertModel


class AccentModel(pl.LightningModule):
    def __init__(self, n_classes=14):
        super().__init__()
        config = HubertConfig(num_hidden_layers=8, mask_time_prob=0.0, layerdrop=0.0)
        self.hubert = HubertModel(config)
        self.hubert.feature_extractor._freeze_parameters()
        self.head = nn.Sequential(
            nn.Linear(768, 256), nn.Tanh(), nn.Dropout(0.1), nn.Linear(256, n_classes)
        )
        self.loss = nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2.0, n_classes))

    def forward(self, wave):
        return self.head(self.hubert(wave).last_hidden_state.mean(1))

    def training_step(self, batch, batch_idx):
        wave, accent = batch
        loss = self.loss(self(wave), accent)
        self.log("train_loss", loss)
        print(f"{batch_idx}: {loss.item():.3f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(
            (p for p in self.parameters() if p.requires_grad), lr=3e-5, weight_decay=0.01
        )


pl.seed_everything(7)
seconds, batch = 8, 12
waves = TensorDataset(
    torch.randn(batch * 8, 16_000 * seconds) * 0.1, torch.randint(0, 14, (batch * 8,))
)
trainer = pl.Trainer(
    accelerator="gpu",
    devices=1,
    max_epochs=1,
    accumulate_grad_batches=2,
    gradient_clip_val=0.5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(AccentModel(), DataLoader(waves, batch_size=batch, shuffle=True))
