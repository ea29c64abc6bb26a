"""Captions of theatre posters by Pix2Struct: posters of any shape as rows of patches, Trainer with Adafactor, bf16."""

import torch
from torch.utils.data import Dataset
from transformers import (
    Pix2StructConfig,
    Pix2StructForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

PATCH, MAX_PATCHES = 16, 1024
VOCAB = 50244


class Posters(Dataset):
    """Portrait and landscape posters, cut into at most MAX_PATCHES patches, with captions of 16 to 96 tokens."""

    def __len__(self):
        return 200

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        aspect = float(torch.empty(1).uniform_(0.5, 1.6, generator=g))
        rows = min(int((MAX_PATCHES / aspect) ** 0.5), MAX_PATCHES)
        cols = MAX_PATCHES // rows
        pixels = torch.randn(rows * cols, 3 * PATCH * PATCH, generator=g)
        row = torch.arange(1, rows + 1).repeat_interleave(cols)
        col = torch.arange(1, cols + 1).repeat(rows)
        length = int(torch.randint(16, 97, (1,), generator=g))
        caption = torch.randint(2, VOCAB, (length,), generator=g)
        caption[-1] = 1
        return torch.cat([row[:, None], col[:, None], pixels], 1), caption


def collate(items):
    patches = torch.zeros(len(items), MAX_PATCHES, 2 + 3 * PATCH * PATCH)
    mask = torch.zeros(len(items), MAX_PATCHES)
    for i, (poster, _) in enumerate(items):
        patches[i, : len(poster)] = poster
        mask[i, : len(poster)] = 1
    captions = [caption for _, caption in items]
    labels = torch.nn.utils.rnn.pad_sequence(captions, batch_first=True, padding_value=-100)
    return {"flattened_patches": patches, "attention_mask": mask, "labels": labels}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step}: loss {logs['loss']}")


def main():
    set_seed(21)
    config = Pix2StructConfig(
        vision_config={"num_hidden_layers": 8, "seq_len": MAX_PATCHES},
        text_config={"num_layers": 4, "vocab_size": VOCAB},
    )
    with torch.device("cuda"):
        model = Pix2StructForConditionalGeneration(config)
    args = TrainingArguments(
        output_dir="posters",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=4,
        optim="adafactor",
        learning_rate=1e-5,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Posters(),
        data_collator=collate,
        callbacks=[PrintLoss()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
