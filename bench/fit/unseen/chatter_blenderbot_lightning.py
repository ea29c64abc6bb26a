"""Small talk by BlenderbotSmall in Lightning: 16-mixed, two batches accumulated, clipped by norm, validation, ModelCheckpoint that keeps the best, ReduceLROnPlateau."""

import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import BlenderbotSmallConfig, BlenderbotSmallForConditionalGeneration


class ChatData(pl.LightningDataModule):
    def __init__(self, batch_size=24, vocab=30_000):
        super().__init__()
        self.batch_size, self.vocab = batch_size, vocab

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(31)

        def turn(low, high):
            n = int(torch.randint(low, high, (1,), generator=g))
            return torch.randint(4, self.vocab, (n,), generator=g)

        chats = [(turn(40, 200), turn(20, 128)) for _ in range(24 * 13)]
        self.train, self.val = chats[24:], chats[:24]

    @staticmethod
    def collate(rows):
        said = pad_sequence([a for a, _ in rows], batch_first=True)
        reply = pad_sequence([b for _, b in rows], batch_first=True, padding_value=-100)
        return {"input_ids": said, "attention_mask": (said != 0).long(), "labels": reply}

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size, collate_fn=self.collate)


class ChatBot(pl.LightningModule):
    def __init__(self, lr=7e-5):
        super().__init__()
        self.save_hyperparameters()
        self.model = BlenderbotSmallForConditionalGeneration(
            BlenderbotSmallConfig(
                vocab_size=30_000,
                d_model=512,
                encoder_layers=8,
                decoder_layers=8,
                encoder_attention_heads=16,
                decoder_attention_heads=16,
                encoder_ffn_dim=2048,
                decoder_ffn_dim=2048,
                max_position_embeddings=512,
            )
        )

    def forward(self, batch):
        return self.model(**batch)

    def training_step(self, batch, batch_idx):
        loss = self(batch).loss
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self(batch).loss, prog_bar=True, batch_size=24)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"},
        }


if __name__ == "__main__":
    pl.seed_everything(31)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="gpu",
            devices=1,
            precision="16-mixed",
            max_epochs=1,
            accumulate_grad_batches=2,
            gradient_clip_val=0.1,
            num_sanity_val_steps=1,
            log_every_n_steps=1,
            logger=CSVLogger(folder),
            callbacks=[
                ModelCheckpoint(folder, monitor="val_loss", save_top_k=1, save_weights_only=True),
                LearningRateMonitor("step"),
            ],
        )
        trainer.fit(ChatBot(), datamodule=ChatData())
        print({k: round(v.item(), 4) for k, v in trainer.callback_metrics.items()})
