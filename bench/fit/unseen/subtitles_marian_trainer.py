"""Subtitles from one language to another: Marian from scratch with Seq2SeqTrainer in fp16."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

VOCAB = 32_000


class Subtitles(Dataset):
    def __init__(self, n=512, source=128, target=128):
        g = torch.Generator().manual_seed(3)
        self.src = torch.randint(3, VOCAB - 1, (n, source), generator=g)
        self.tgt = torch.randint(3, VOCAB - 1, (n, target), generator=g)

    def __len__(self):
        return len(self.src)

    def __getitem__(self, i):
        return {
            "input_ids": self.src[i],
            "attention_mask": torch.ones_like(self.src[i]),
            "labels": self.tgt[i],
        }


def main():
    config = MarianConfig(
        vocab_size=VOCAB,
        pad_token_id=VOCAB - 1,
        decoder_start_token_id=VOCAB - 1,
        eos_token_id=0,
        encoder_layers=6,
        decoder_layers=6,
        d_model=512,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
    )
    model = MarianMTModel(config)
    with tempfile.TemporaryDirectory() as out:
        args = Seq2SeqTrainingArguments(
            output_dir=out,
            per_device_train_batch_size=48,
            max_steps=8,
            learning_rate=5e-4,
            fp16=True,
            logging_steps=4,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Seq2SeqTrainer(model=model, args=args, train_dataset=Subtitles())
        print(trainer.train().training_loss)


if __name__ == "__main__":
    main()
