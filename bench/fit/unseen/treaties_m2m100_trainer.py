"""Treaties between languages by M2M100: transformers' Trainer, label smoothing, lengths vary."""

import os

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

STEPS = int(os.environ.get("JOB_STEPS", "5"))
BATCH = 40
PAD, EOS, VOCAB = 1, 2, 64_000
LANGUAGES = list(range(VOCAB - 24, VOCAB))


class Treaties(Dataset):
    """Pairs of articles, the second a noisy permutation of the first."""

    def __init__(self, n, seed=11):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng((self.seed, i))
        length = int(rng.integers(110, 190))
        source_language, target_language = rng.choice(LANGUAGES, 2, replace=False)
        source = rng.integers(4, VOCAB - 24, length)
        target = (source * 31 + 7) % (VOCAB - 28) + 4
        target = target[: length - int(rng.integers(0, 20))]
        return {
            "input_ids": np.r_[source_language, source, EOS],
            "labels": np.r_[target_language, target, EOS],
        }


def collate(pairs, multiple=8):
    def pad(rows, value):
        width = max(len(r) for r in rows)
        width = -(-width // multiple) * multiple
        out = torch.full((len(rows), width), value, dtype=torch.long)
        for i, row in enumerate(rows):
            out[i, : len(row)] = torch.from_numpy(row)
        return out

    source = pad([p["input_ids"] for p in pairs], PAD)
    decoder = pad([np.r_[EOS, p["labels"][:-1]] for p in pairs], PAD)
    return {
        "input_ids": source,
        "attention_mask": (source != PAD).long(),
        "decoder_input_ids": decoder,
        "labels": pad([p["labels"] for p in pairs], -100),
    }


class TranslationTrainer(Trainer):
    def training_step(self, model, inputs, *args, **kwargs):
        loss = super().training_step(model, inputs, *args, **kwargs)
        print(f"step {self.state.global_step + 1}: loss {loss.item():.4f}", flush=True)
        return loss


class Rate(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "learning_rate" in logs:
            print(f"  lr {logs['learning_rate']:.2e} |g| {float(logs['grad_norm']):.2f}")


set_seed(11)
config = M2M100Config(
    vocab_size=VOCAB,
    d_model=1024,
    encoder_layers=12,
    decoder_layers=12,
    encoder_ffn_dim=4096,
    decoder_ffn_dim=4096,
    encoder_layerdrop=0.0,
    decoder_layerdrop=0.0,
    max_position_embeddings=512,
    use_cache=False,
)
model = M2M100ForConditionalGeneration(config)
print(f"{model.num_parameters() / 1e6:.0f} M parameters")

trainer = TranslationTrainer(
    model=model,
    args=TrainingArguments(
        output_dir="/tmp/treaties",
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=3e-4,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=4000,
        weight_decay=0.01,
        label_smoothing_factor=0.1,
        max_grad_norm=1.0,
        bf16=True,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
    ),
    train_dataset=Treaties(BATCH * 200),
    data_collator=collate,
    callbacks=[Rate()],
)
trainer.train()
