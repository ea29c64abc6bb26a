"""Receipts to JSON: Donut's Swin encoder at 960x720 and an MBart decoder, Lightning in bf16-mixed, two pages accumulated."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import (
    DonutSwinConfig,
    DonutSwinModel,
    MBartConfig,
    MBartForCausalLM,
    VisionEncoderDecoderModel,
)


class Receipts(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        tokens = torch.randint(4, 57525, (320,))
        tokens[int(torch.randint(120, 320, ())) :] = -100
        return torch.rand(3, 960, 720), tokens


class Reader(pl.LightningModule):
    def __init__(self):
        super().__init__()
        encoder = DonutSwinModel(
            DonutSwinConfig(
                image_size=[960, 720],
                patch_size=4,
                embed_dim=128,
                depths=[2, 2, 4, 2],
                num_heads=[4, 8, 16, 32],
                window_size=10,
            )
        )
        decoder = MBartForCausalLM(
            MBartConfig(
                vocab_size=57525,
                d_model=1024,
                decoder_layers=4,
                decoder_ffn_dim=4096,
                decoder_attention_heads=16,
                max_position_embeddings=768,
                is_decoder=True,
                add_cross_attention=True,
                scale_embedding=True,
                add_final_layer_norm=True,
                use_cache=False,
            )
        )
        self.model = VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
        self.model.config.decoder_start_token_id = 2
        self.model.config.pad_token_id = 1

    def training_step(self, batch, _):
        pixels, labels = batch
        loss = self.model(pixel_values=pixels, labels=labels).loss
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-5)


trainer = pl.Trainer(
    max_steps=4,
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Reader(), DataLoader(Receipts(), batch_size=2))
