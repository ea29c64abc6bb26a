"""Essays for ALBERT: one layer's weights used twelve times, masked words and the order of sentences, Lightning in fp32, own rates for embeddings."""

import lightning as L
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    get_polynomial_decay_schedule_with_warmup,
)

MASK, VOCAB = 4, 30000


class Essays(IterableDataset):
    def __init__(self, seed, tokens=256):
        self.seed, self.tokens = seed, tokens

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        while True:
            ids = torch.randint(5, VOCAB, (self.tokens,), generator=g)
            labels = ids.clone()
            chosen = torch.rand(self.tokens, generator=g) < 0.15
            labels[~chosen] = -100
            ids[chosen] = MASK
            kinds = (torch.arange(self.tokens) >= self.tokens // 2).long()
            order = torch.randint(0, 2, (), generator=g)
            yield ids, kinds, labels, order


class Pretraining(L.LightningModule):
    def __init__(self, lr=1.76e-3):
        super().__init__()
        self.lr = lr
        self.albert = AlbertForPreTraining(
            AlbertConfig(
                vocab_size=VOCAB,
                hidden_size=768,
                intermediate_size=3072,
                num_attention_heads=12,
                num_hidden_layers=12,
            )
        )

    def training_step(self, batch, _):
        ids, kinds, labels, order = batch
        out = self.albert(
            input_ids=ids, token_type_ids=kinds, labels=labels, sentence_order_label=order
        )
        self.log_dict({"loss": out.loss})
        return out.loss

    def configure_optimizers(self):
        words = list(self.albert.albert.embeddings.parameters())
        known = {id(p) for p in words}
        rest = [p for p in self.albert.parameters() if id(p) not in known]
        optimizer = torch.optim.AdamW(
            [{"params": words, "lr": self.lr / 2}, {"params": rest, "lr": self.lr}],
            weight_decay=0.01,
        )
        schedule = get_polynomial_decay_schedule_with_warmup(optimizer, 2, 125000)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


L.seed_everything(55, verbose=False)
trainer = L.Trainer(
    max_steps=5,
    accelerator="cuda",
    devices=1,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Pretraining(), DataLoader(Essays(55), batch_size=16))
