"""Kerbs and pavements by torchvision's LR-ASPP on MobileNetV3, wrapped so that transformers' Trainer can train it: Lovász-like Dice loss, evaluation each epoch, fp32, RMSprop."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from torchvision.models.segmentation import lraspp_mobilenet_v3_large
from transformers import Trainer, TrainingArguments


class ForTrainer(nn.Module):
    """What Trainer expects of a model: named inputs, a dictionary with the loss first."""

    def __init__(self, classes):
        super().__init__()
        self.classes = classes
        self.net = lraspp_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=classes
        )

    def forward(self, pixel_values, labels=None):
        logits = self.net(pixel_values)["out"]
        if labels is None:
            return {"logits": logits}
        ce = F.cross_entropy(logits, labels)
        share = logits.softmax(1)
        truth = F.one_hot(labels, self.classes).permute(0, 3, 1, 2)
        both = (share * truth).sum((0, 2, 3))
        dice = 1 - (2 * both + 1) / (share.sum((0, 2, 3)) + truth.sum((0, 2, 3)) + 1)
        return {"loss": ce + dice.mean(), "logits": logits}


class Streets(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        coarse = torch.randint(0, 9, (12, 16), generator=g)
        label = coarse.repeat_interleave(32, 0).repeat_interleave(32, 1)
        return {"pixel_values": torch.rand(3, 384, 512, generator=g), "labels": label}


def shrink(logits, labels):
    return logits.argmax(1)


def score(prediction):
    return {"accuracy": float((prediction.predictions == prediction.label_ids).mean())}


args = TrainingArguments(
    output_dir="kerbs",
    num_train_epochs=2,
    per_device_train_batch_size=24,
    per_device_eval_batch_size=24,
    learning_rate=1e-3,
    eval_strategy="epoch",
    save_strategy="no",
    logging_steps=1,
    remove_unused_columns=False,
    report_to=[],
)
model = ForTrainer(9)
rmsprop = partial(torch.optim.RMSprop, alpha=0.9, momentum=0.9, weight_decay=4e-5)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=Streets(48, 0),
    eval_dataset=Streets(24, 1000),
    optimizers=(rmsprop(model.parameters(), lr=1e-3), None),
    compute_metrics=score,
    preprocess_logits_for_metrics=shrink,
)
trainer.train()
print(trainer.evaluate())
