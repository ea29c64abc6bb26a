"""SegFormer-B2 on indoor scenes with 150 classes: HF Trainer, 512 px, a metric callback that keeps the running loss."""

import torch
from transformers import (
    SegformerConfig,
    SegformerForSemanticSegmentation,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Scenes(torch.utils.data.Dataset):
    def __init__(self, n=64, side=512, classes=150):
        self.n, self.side, self.classes = n, side, classes

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        labels = torch.randint(0, self.classes, (self.side // 16, self.side // 16))
        labels = labels.repeat_interleave(16, 0).repeat_interleave(16, 1)
        labels[:4] = 255
        return {"pixel_values": torch.randn(3, self.side, self.side), "labels": labels}


class Smooth(TrainerCallback):
    value = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            new = float(logs["loss"])
            self.value = new if self.value is None else 0.9 * self.value + 0.1 * new
            print(state.global_step, f"{self.value:.4f}")


def main():
    config = SegformerConfig(
        depths=[3, 4, 6, 3],
        hidden_sizes=[64, 128, 320, 512],
        decoder_hidden_size=768,
        num_labels=150,
        semantic_loss_ignore_index=255,
    )
    args = TrainingArguments(
        output_dir="/tmp/scenes",
        per_device_train_batch_size=6,
        max_steps=6,
        learning_rate=6e-5,
        lr_scheduler_type="polynomial",
        bf16=True,
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    Trainer(
        model=SegformerForSemanticSegmentation(config),
        args=args,
        train_dataset=Scenes(),
        callbacks=[Smooth()],
    ).train()


if __name__ == "__main__":
    main()
