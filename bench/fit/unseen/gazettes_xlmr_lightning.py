"""Names in old gazettes by XLM-RoBERTa with its 250,002 words under Lightning: token classes, Adam in fp32, linear warmup by steps."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader
from transformers import (
    XLMRobertaConfig,
    XLMRobertaForTokenClassification,
    get_linear_schedule_with_warmup,
)

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]


def gazette(length):
    return {
        "ids": torch.randint(5, 250_002, (length,)),
        "tags": torch.randint(len(TAGS), (length,)),
    }


def pad(rows):
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence([r["ids"] for r in rows], True, 1),
        "labels": torch.nn.utils.rnn.pad_sequence([r["tags"] for r in rows], True, -100),
    }


class Tagger(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = XLMRobertaForTokenClassification(
            XLMRobertaConfig(
                vocab_size=250_002,
                hidden_size=768,
                num_hidden_layers=6,
                num_attention_heads=12,
                intermediate_size=3072,
                max_position_embeddings=514,
                type_vocab_size=1,
                num_labels=len(TAGS),
            )
        )

    def training_step(self, batch, i):
        mask = batch["input_ids"].ne(1).long()
        loss = self.model(**batch, attention_mask=mask).loss
        self.log("train/loss", loss, on_step=True)
        return loss

    def configure_optimizers(self):
        bare = ("bias", "LayerNorm.weight")
        named = list(self.model.named_parameters())
        groups = [
            {"params": [p for n, p in named if not n.endswith(bare)], "weight_decay": 0.01},
            {"params": [p for n, p in named if n.endswith(bare)], "weight_decay": 0.0},
        ]
        opt = torch.optim.AdamW(groups, lr=2e-5)
        schedule = get_linear_schedule_with_warmup(opt, 2, 20)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    torch.manual_seed(1848)
    pages = [gazette(60 + 37 * i % 130) for i in range(96)]
    trainer = pl.Trainer(
        max_steps=6,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Tagger(), DataLoader(pages, batch_size=16, collate_fn=pad))


main()
