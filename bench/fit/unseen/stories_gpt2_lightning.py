"""GPT-2 on stories with Lightning: bf16-mixed, clipping, accumulation over two batches, a DataModule."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM, GPT2Config


class Stories(pl.LightningDataModule):
    def __init__(self, batch_size=8, block=768):
        super().__init__()
        self.batch_size, self.block = batch_size, block

    def setup(self, stage=None):
        self.train = TensorDataset(torch.randint(0, 50257, (self.batch_size * 10, self.block)))

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)


class LM(pl.LightningModule):
    def __init__(self, **config):
        super().__init__()
        self.config = config

    def configure_model(self):
        if not hasattr(self, "model"):
            self.model = AutoModelForCausalLM.from_config(GPT2Config(**self.config))

    def training_step(self, batch, _):
        (ids,) = batch
        loss = self.model(input_ids=ids, labels=ids).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=6e-4, betas=(0.9, 0.95))


def main():
    pl.seed_everything(1)
    trainer = pl.Trainer(
        max_steps=5,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        accelerator="cuda",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(LM(n_layer=10, n_embd=640, n_head=10), datamodule=Stories())


if __name__ == "__main__":
    main()
