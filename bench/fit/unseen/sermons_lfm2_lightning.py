"""Sermons by a small LFM2 (short gated convolutions, attention in every third layer) under Lightning: bf16-true, a linear warm-up per step, several sermons packed in a row."""

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import Lfm2Config, Lfm2ForCausalLM


class Packed(Dataset):
    """Rows of 1024 tokens in which several sermons follow each other, each ended by token 2."""

    def __init__(self, rows, vocab):
        self.rows, self.vocab = rows, vocab

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        row = torch.randint(3, self.vocab, (1024,), generator=g)
        row[torch.randint(100, 1023, (3,), generator=g)] = 2
        return row


class Preacher(L.LightningModule):
    def __init__(self, layers=9):
        super().__init__()
        self.save_hyperparameters()
        self.lm = Lfm2ForCausalLM(
            Lfm2Config(
                vocab_size=24_000,
                hidden_size=896,
                intermediate_size=3584,
                num_hidden_layers=layers,
                num_attention_heads=14,
                num_key_value_heads=2,
                full_attn_idxs=list(range(2, layers, 3)),
                max_position_embeddings=2048,
                use_cache=False,
            )
        )

    def training_step(self, row, i):
        logits = self.lm(input_ids=row).logits
        target = row[:, 1:].clone()
        target[row[:, :-1] == 2] = -100
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), target.flatten())
        self.log("nats", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=6e-4, weight_decay=0.05, foreach=True)
        warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 4))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": warm, "interval": "step"}}


trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    precision="bf16-true",
    max_steps=5,
    gradient_clip_val=1.0,
    log_every_n_steps=1,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Preacher(), DataLoader(Packed(64, 24_000), batch_size=7))
