"""Avalanche or not, from clips of slopes: ViViT with tubelets, Trainer subclass with a focal loss, layer-wise learning rates."""

import os
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments, VivitConfig, VivitForVideoClassification

CLASSES = ["calm", "cornice", "slab", "powder", "wet", "glide"]


class Clips(torch.utils.data.Dataset):
    """A bright front that runs down the picture; its speed tells the class."""

    def __init__(self, n, frames, side):
        self.n, self.frames, self.side = n, frames, side

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        label = int(torch.randint(len(CLASSES), (), generator=g))
        row = torch.arange(self.side).view(1, 1, -1, 1)
        front = (torch.arange(self.frames) * (label + 1) * 3).view(-1, 1, 1, 1)
        video = ((row - front).abs() < 12).float().expand(-1, 3, -1, self.side)
        noise = torch.randn(self.frames, 3, self.side // 8, self.side // 8, generator=g)
        noise = noise.repeat_interleave(8, 2).repeat_interleave(8, 3)
        return {"pixel_values": video + 0.3 * noise, "labels": torch.tensor(label)}


class FocalTrainer(Trainer):
    gamma, decay = 2.0, 0.75

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        logp = out.logits.float().log_softmax(-1).gather(1, labels[:, None]).squeeze(1)
        loss = (-((1 - logp.exp()) ** self.gamma) * logp).mean()
        return (loss, out) if return_outputs else loss

    def create_optimizer(self, *unused):
        if self.optimizer is None:
            depth = self.model.config.num_hidden_layers
            groups = {}
            for name, p in self.model.named_parameters():
                level = depth
                if "embeddings" in name:
                    level = 0
                elif ".layer." in name:
                    level = int(name.split(".layer.")[1].split(".")[0]) + 1
                key = (level, p.ndim > 1)
                groups.setdefault(key, []).append(p)
            self.optimizer = torch.optim.AdamW(
                [
                    {
                        "params": ps,
                        "lr": self.args.learning_rate * self.decay ** (depth - level),
                        "weight_decay": 0.05 if matrix else 0.0,
                    }
                    for (level, matrix), ps in groups.items()
                ]
            )
        return self.optimizer


def main():
    steps = int(os.environ.get("JOB_STEPS", "5"))
    torch.manual_seed(0)
    config = VivitConfig(
        image_size=160,
        num_frames=16,
        tubelet_size=[2, 16, 16],
        hidden_size=512,
        num_hidden_layers=10,
        num_attention_heads=8,
        intermediate_size=2048,
        hidden_dropout_prob=0.1,
        num_labels=len(CLASSES),
    )
    model = VivitForVideoClassification(config)
    batch = 12
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="vivit-"),
        per_device_train_batch_size=batch,
        max_steps=steps,
        learning_rate=1e-4,
        lr_scheduler_type="cosine",
        max_grad_norm=1.0,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
    )
    trainer = FocalTrainer(model=model, args=args, train_dataset=Clips(batch * steps, 16, 160))
    trainer.train()
    nn.Module.eval(model)
    with torch.no_grad():
        item = Clips(1, 16, 160)[0]
        print(model(item["pixel_values"][None].to(model.device)).logits.shape)


if __name__ == "__main__":
    main()
