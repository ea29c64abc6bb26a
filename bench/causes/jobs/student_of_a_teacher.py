"""Words of a teacher are learned by Trainer with a loss of its own: a divergence over the whole vocabulary."""

import os
import tempfile

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

PART = 32 if os.environ.get("MENDED") else None
WORDS = 50_000


def small(width):
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_embd=width, n_layer=2, n_head=2, n_positions=256)
    )


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, n):
        return dict(input_ids=torch.randint(0, WORDS, (256,)))


class Distilled(Trainer):
    teacher = None

    def divergence(self, ours, theirs):
        student = self.model.lm_head(ours) / 2
        with torch.no_grad():
            teacher = self.teacher.lm_head(theirs) / 2
        return F.kl_div(
            student.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="sum"
        )

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        ours = model.transformer(inputs["input_ids"]).last_hidden_state.flatten(0, 1)
        with torch.no_grad():
            theirs = self.teacher.transformer(inputs["input_ids"]).last_hidden_state.flatten(0, 1)
        if PART is None:
            return self.divergence(ours, theirs) / len(ours)
        parts = zip(ours.split(PART), theirs.split(PART))
        kept = [
            torch.utils.checkpoint.checkpoint(self.divergence, *p, use_reentrant=False)
            for p in parts
        ]
        return sum(kept) / len(ours)


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        max_steps=2,
        report_to=[],
        optim="sgd",
        save_strategy="no",
    )
    trainer = Distilled(model=small(128), args=arguments, train_dataset=Texts())
    trainer.teacher = small(128).cuda().eval()
    trainer.train()
