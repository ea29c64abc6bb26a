"""Tree species from the air: Swin V2 at 256 px with Trainer, fp16, polynomial decay, soft labels in compute_loss."""

import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import (
    Swinv2Config,
    Swinv2ForImageClassification,
    Trainer,
    TrainingArguments,
)


class Trees(Dataset):
    classes = 60

    def __len__(self):
        return 400

    def __getitem__(self, i):
        return torch.randn(3, 256, 256), i % self.classes


class SoftTrainer(Trainer):
    smoothing = 0.1

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        target = torch.full_like(outputs.logits, self.smoothing / Trees.classes)
        target.scatter_(1, labels[:, None], 1 - self.smoothing)
        loss = -(target * F.log_softmax(outputs.logits.float(), -1)).sum(-1).mean()
        return (loss, outputs) if return_outputs else loss


def stack(items):
    images, labels = zip(*items)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


def run():
    cfg = Swinv2Config(
        image_size=256,
        embed_dim=96,
        depths=[2, 2, 4, 2],
        num_heads=[3, 6, 12, 24],
        window_size=8,
        drop_path_rate=0.1,
        num_labels=Trees.classes,
    )
    net = Swinv2ForImageClassification(cfg)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=32,
        max_steps=5,
        learning_rate=1e-4,
        lr_scheduler_type="polynomial",
        fp16=True,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
    )
    SoftTrainer(net, args, train_dataset=Trees(), data_collator=stack).train()


run()
