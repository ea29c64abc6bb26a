"""Ferns with CvT (convolutions before attention) as in the image classification example: Trainer in bf16, evaluation and checkpoint after each epoch, the best model loaded at the end."""

import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from torchvision.transforms import v2
from transformers import CvtConfig, CvtForImageClassification, Trainer, TrainingArguments

SPECIES = 62
augment = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])


class Ferns(Dataset):
    def __init__(self, photos, transform=None):
        self.photos, self.transform = photos, transform

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(self.photos[i])
        pixels = torch.rand(3, 240, 240, generator=generator)
        pixels = (
            self.transform(pixels) if self.transform else v2.functional.center_crop(pixels, 224)
        )
        return {"pixel_values": (pixels - 0.5) / 0.25, "labels": self.photos[i] % SPECIES}


def compute_metrics(p):
    return {"accuracy": float((np.argmax(p.predictions, 1) == p.label_ids).mean())}


config = CvtConfig(
    depth=[1, 2, 6],
    drop_path_rate=[0.0, 0.0, 0.1],
    num_labels=SPECIES,
    id2label={i: f"fern {i}" for i in range(SPECIES)},
)
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=44,
        per_device_eval_batch_size=44,
        learning_rate=5e-5,
        lr_scheduler_type="cosine",
        bf16=True,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        logging_steps=1,
        remove_unused_columns=False,
        report_to="none",
        seed=1337,
    )
    trainer = Trainer(
        CvtForImageClassification(config),
        args,
        train_dataset=Ferns(range(44 * 3), augment),
        eval_dataset=Ferns(range(900, 944)),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate())
