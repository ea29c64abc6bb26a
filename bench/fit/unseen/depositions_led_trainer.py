"""Summaries of court depositions with LED (encoder of 4,096 tokens, sliding window), Seq2SeqTrainer, bf16."""

import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    LEDConfig,
    LEDForConditionalGeneration,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)

STEPS = int(os.environ.get("JOB_STEPS", "5"))
VOCAB, SOURCE, TARGET = 50_265, 4096, 384


class Depositions(Dataset):
    """Question and answer in turn; the summary repeats some of the words said."""

    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100_003 + i)
        length = int(torch.randint(2600, SOURCE - 2, (1,), generator=g))
        spoken = torch.randint(10, VOCAB, (length,), generator=g)
        spoken[:: int(torch.randint(40, 90, (1,), generator=g))] = 4
        n = int(torch.randint(160, TARGET - 2, (1,), generator=g))
        summary = spoken[torch.randint(0, length, (n,), generator=g).sort().values]
        return {"input_ids": spoken.tolist(), "labels": summary.tolist() + [2]}


class Collate:
    def __init__(self, pad):
        self.pad = pad

    def __call__(self, rows):
        width = SOURCE  # whole windows
        longest = max(len(r["labels"]) for r in rows)
        longest = (longest + 63) // 64 * 64
        ids = torch.full((len(rows), width), self.pad)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full((len(rows), longest), -100)
        for k, r in enumerate(rows):
            n = len(r["input_ids"])
            ids[k, :n] = torch.tensor(r["input_ids"])
            mask[k, :n] = 1
            labels[k, : len(r["labels"])] = torch.tensor(r["labels"])
        look_everywhere = torch.zeros_like(mask)
        look_everywhere[:, 0] = 1
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "global_attention_mask": look_everywhere,
            "labels": labels,
        }


class Tell(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step}: loss {logs['loss']:.4f}")


def main():
    set_seed(11)
    config = LEDConfig(
        vocab_size=VOCAB,
        max_encoder_position_embeddings=SOURCE,
        max_decoder_position_embeddings=512,
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        attention_window=512,
        dropout=0.1,
        use_cache=False,
    )
    model = LEDForConditionalGeneration(config)
    with tempfile.TemporaryDirectory() as folder:
        args = Seq2SeqTrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            learning_rate=5e-5,
            warmup_steps=2,
            lr_scheduler_type="linear",
            weight_decay=0.01,
            max_grad_norm=1.0,
            bf16=True,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_num_workers=0,
        )
        trainer = Seq2SeqTrainer(
            model=model,
            args=args,
            train_dataset=Depositions(4096, seed=1),
            data_collator=Collate(config.pad_token_id),
            callbacks=[Tell()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
