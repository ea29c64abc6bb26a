"""Cranberry bogs from above: FocalNet learns by masked image modelling (SimMIM), Trainer in TF32 with evaluation at the end."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    FocalNetConfig,
    FocalNetForMaskedImageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

SIZE, CELL, RATIO = 192, 32, 0.6


class Bogs(Dataset):
    """Blobs of red on green, with grain."""

    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100_000 + i)
        coarse = torch.rand(1, 3, 12, 12, generator=g)
        image = torch.nn.functional.interpolate(
            coarse, size=SIZE, mode="bicubic", align_corners=False
        )[0]
        image = image + 0.05 * torch.randn(3, SIZE, SIZE, generator=g)
        return {"pixel_values": (image - 0.45) / 0.25}


class MaskGenerator:
    """Hides whole cells of 32 pixels, given as a mask over the patches of 4 pixels."""

    def __init__(self, patch):
        self.side, self.repeat = SIZE // CELL, CELL // patch
        self.hidden = round(RATIO * self.side**2)

    def __call__(self, items):
        images = torch.stack([item["pixel_values"] for item in items])
        masks = []
        for _ in items:
            cells = torch.zeros(self.side**2, dtype=torch.bool)
            cells[torch.randperm(self.side**2)[: self.hidden]] = True
            grid = cells.view(self.side, self.side)
            grid = grid.repeat_interleave(self.repeat, 0).repeat_interleave(self.repeat, 1)
            masks.append(grid.flatten())
        return {"pixel_values": images, "bool_masked_pos": torch.stack(masks)}


class LossReport(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


def main():
    torch.manual_seed(0)
    config = FocalNetConfig(
        image_size=SIZE,
        patch_size=4,
        embed_dim=128,
        depths=[2, 2, 18, 2],
        focal_levels=[2, 2, 2, 2],
        focal_windows=[3, 3, 3, 3],
        drop_path_rate=0.1,
        encoder_stride=32,
    )
    model = FocalNetForMaskedImageModeling(config)
    args = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=20,
        per_device_eval_batch_size=20,
        max_steps=5,
        learning_rate=2e-4,
        weight_decay=0.05,
        adam_beta2=0.999,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        max_grad_norm=5.0,
        tf32=True if torch.cuda.is_available() else None,
        logging_steps=1,
        eval_strategy="no",
        prediction_loss_only=True,
        label_names=["bool_masked_pos"],
        save_strategy="no",
        report_to="none",
        dataloader_drop_last=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Bogs(160, 1),
        eval_dataset=Bogs(40, 2),
        data_collator=MaskGenerator(config.patch_size),
        callbacks=[LossReport()],
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
