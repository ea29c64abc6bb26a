"""Lines of handwritten homework read by TrOCR (DeiT and an autoregressive decoder) with Seq2SeqTrainer: fp16, evaluation and checkpoints in between, accuracy by letters."""

import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    DeiTConfig,
    DeiTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrOCRConfig,
    TrOCRForCausalLM,
    VisionEncoderDecoderModel,
    default_data_collator,
)


class HomeworkDataset(Dataset):
    def __init__(self, n, max_target_length=64, vocab=12_000, seed=0):
        self.rng = np.random.default_rng(seed)
        self.lines = [self.rng.integers(4, vocab, self.rng.integers(10, 60)) for _ in range(n)]
        self.max_target_length = max_target_length

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, idx):
        ink = np.ones((3, 384, 384), dtype=np.float32)
        for x in self.lines[idx] % 380:
            ink[:, 170:210, x : x + 3] = -1
        labels = np.full(self.max_target_length, -100)
        labels[: len(self.lines[idx])] = self.lines[idx]
        return {"pixel_values": torch.from_numpy(ink), "labels": torch.from_numpy(labels)}


encoder = DeiTModel(
    DeiTConfig(
        image_size=384,
        patch_size=16,
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        intermediate_size=1536,
        qkv_bias=False,
    ),
    add_pooling_layer=False,
)
decoder = TrOCRForCausalLM(
    TrOCRConfig(
        vocab_size=12_000,
        d_model=256,
        decoder_layers=6,
        decoder_attention_heads=8,
        decoder_ffn_dim=1024,
        cross_attention_hidden_size=384,
        max_position_embeddings=128,
        use_cache=False,
    )
)
model = VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
model.config.decoder_start_token_id = 2
model.config.pad_token_id = 1
model.config.vocab_size = 12_000


def compute_metrics(pred):
    answers = np.argmax(pred.predictions[0], -1)
    known = pred.label_ids != -100
    return {"letters": float((answers == pred.label_ids)[known].mean())}


with tempfile.TemporaryDirectory() as folder:
    training_args = Seq2SeqTrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=20,
        per_device_eval_batch_size=10,
        max_steps=6,
        fp16=True,
        learning_rate=5e-5,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        save_total_limit=1,
        logging_steps=1,
        report_to=[],
        dataloader_num_workers=0,
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        compute_metrics=compute_metrics,
        train_dataset=HomeworkDataset(120),
        eval_dataset=HomeworkDataset(20, seed=1),
        data_collator=default_data_collator,
    )
    trainer.train()
