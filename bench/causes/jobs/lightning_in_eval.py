"""Weights that were read from a file are in eval mode, Lightning leaves them so, and checkpointing does nothing."""

import os
import tempfile

import lightning
import torch
from torch.utils.data import DataLoader
from transformers import MistralConfig, MistralForSequenceClassification


def pretrained():
    config = MistralConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=1536, num_hidden_layers=12,
        num_attention_heads=8, num_key_value_heads=4, num_labels=3, pad_token_id=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        MistralForSequenceClassification(config).save_pretrained(folder)
        return MistralForSequenceClassification.from_pretrained(folder)


class Entailment(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = pretrained()
        self.model.config.use_cache = False
        self.model.gradient_checkpointing_enable()
        if os.environ.get("MENDED"):
            self.model.train()

    def training_step(self, batch, batch_idx):
        return self.model(input_ids=batch, labels=batch[:, 0] % 3).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-5)


pairs = [torch.randint(1, 4096, (256,)) for _ in range(96)]
lightning.Trainer(
    accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Entailment(), DataLoader(pairs, batch_size=24))  # fmt: skip
