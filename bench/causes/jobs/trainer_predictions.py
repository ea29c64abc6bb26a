"""Trainer evaluates a language model and gathers the logits of the whole set on the GPU."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        ids = torch.randint(0, 8000, (128,), generator=torch.Generator().manual_seed(index))
        return dict(input_ids=ids, labels=ids)


model = GPT2LMHeadModel(
    GPT2Config(vocab_size=8000, n_embd=256, n_layer=4, n_head=4, n_positions=128)
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, per_device_eval_batch_size=8, report_to=[])
    trainer = Trainer(
        model=model, args=arguments, eval_dataset=Texts(),
        compute_metrics=lambda outputs: {"right": (outputs.predictions[0].argmax(-1) == 0).mean()},
    )  # fmt: skip
    trainer.evaluate()
