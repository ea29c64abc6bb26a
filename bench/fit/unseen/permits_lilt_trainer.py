"""Fields of building permits: LiLT, a text stream and a layout stream that meet in attention, for token classification, Trainer in bf16 with Adafactor."""

import tempfile

import torch
from transformers import (
    LiltConfig,
    LiltForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

TAGS = ["O"] + [f"{p}-{f}" for f in ("OWNER", "LOT", "DATE", "AREA", "FEE", "USE") for p in "BI"]
LENGTH = 512


def permit(index):
    """A page as a token list in reading order: lines of ten words with boxes on a 0-1000 grid."""
    g = torch.Generator().manual_seed(index)
    ids = torch.randint(10, 50000, (LENGTH,), generator=g)
    column = torch.arange(LENGTH) % 10
    row = torch.arange(LENGTH) // 10
    x0, y0 = 50 + column * 90, 20 + row * 18
    bbox = torch.stack([x0, y0, x0 + 80, y0 + 14], dim=1)
    labels = torch.randint(0, len(TAGS), (LENGTH,), generator=g)
    labels[torch.rand(LENGTH, generator=g) < 0.3] = -100  # the later pieces of a word
    return dict(input_ids=ids, bbox=bbox, attention_mask=torch.ones_like(ids), labels=labels)


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"{state.global_step:3d} loss {logs['loss']:.4f} lr {logs['learning_rate']:.2e}")


def main():
    torch.manual_seed(0)
    config = LiltConfig(
        vocab_size=50265,
        num_hidden_layers=4,
        max_position_embeddings=LENGTH + 2,
        num_labels=len(TAGS),
    )
    with torch.device("cuda"):
        model = LiltForTokenClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=5,
            per_device_train_batch_size=14,
            bf16=True,
            optim="adafactor",
            learning_rate=5e-5,
            warmup_steps=2,
            max_grad_norm=1.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(
            model,
            args,
            train_dataset=[permit(i) for i in range(70)],
            data_collator=default_data_collator,
            callbacks=[Say()],
        ).train()


if __name__ == "__main__":
    main()
