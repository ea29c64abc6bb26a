"""Dense retrieval: one BERT for questions and passages in Lightning, hard negatives, in-batch negatives, bf16-mixed."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel, get_linear_schedule_with_warmup


class Triples(Dataset):
    """A question, its passage and three hard negatives."""

    def __init__(self, n, vocab):
        self.n, self.vocab = n, vocab

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.randint(1, self.vocab, (48,)), torch.randint(1, self.vocab, (4, 224))


class Retriever(pl.LightningModule):
    def __init__(self, config, temperature=0.02, lr=1e-5):
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)
        self.temperature, self.lr = temperature, lr

    def encode(self, ids):
        hidden = self.bert(input_ids=ids, attention_mask=(ids > 0).long()).last_hidden_state
        return F.normalize(hidden[:, 0].float(), dim=-1)

    def training_step(self, batch, _):
        questions, passages = batch
        q = self.encode(questions)
        p = self.encode(passages.flatten(0, 1))
        scores = q @ p.T / self.temperature
        target = torch.arange(len(q), device=self.device) * passages.shape[1]
        loss = F.cross_entropy(scores, target)
        self.log("loss", loss)
        if self.global_step % 2 == 0:
            print(self.global_step, loss.item())
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.lr)
        sched = get_linear_schedule_with_warmup(opt, 2, 50)
        return [opt], [{"scheduler": sched, "interval": "step"}]


if __name__ == "__main__":
    pl.seed_everything(0, verbose=False)
    config = BertConfig(num_hidden_layers=10, hidden_size=768)
    trainer = pl.Trainer(
        max_steps=6,
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(Triples(16 * 6, config.vocab_size), batch_size=16)
    trainer.fit(Retriever(config), loader)
