"""Spam and its kinds: ModernBERT in a LightningModule, bf16-mixed, OneCycle, accuracy by torchmetrics."""

import lightning as L
import torch
import torchmetrics
from torch.utils.data import DataLoader, Dataset
from transformers import ModernBertConfig, ModernBertForSequenceClassification


class Emails(Dataset):
    def __init__(self, count, length):
        self.ids = torch.randint(5, 50000, (count, length))
        self.labels = torch.randint(0, 6, (count,))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return dict(
            input_ids=self.ids[i],
            attention_mask=torch.ones_like(self.ids[i]),
            labels=self.labels[i],
        )


class Classifier(L.LightningModule):
    def __init__(self, lr=8e-5, steps=6):
        super().__init__()
        self.save_hyperparameters()
        self.model = ModernBertForSequenceClassification(
            ModernBertConfig(
                num_hidden_layers=9,
                hidden_size=768,
                intermediate_size=1152,
                num_labels=6,
                attn_implementation="sdpa",
            )
        )
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=6)

    def training_step(self, batch, batch_idx):
        out = self.model(**batch)
        self.accuracy(out.logits.softmax(-1), batch["labels"])
        self.log("acc", self.accuracy)
        if batch_idx % 2 == 0:
            self.print("loss", out.loss.item())
        return out.loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-5)
        sched = torch.optim.lr_scheduler.OneCycleLR(
            opt, self.hparams.lr, total_steps=self.hparams.steps
        )
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(5)
    loader = DataLoader(Emails(16 * 6, 512), batch_size=16, shuffle=True)
    trainer = L.Trainer(
        max_steps=6,
        precision="bf16-mixed",
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader)
