"""A small Phi on diaries with Trainer: bf16 weights from the start, packed blocks, a callback that prints."""

import os
import tempfile

import torch
from torch.utils.data import IterableDataset
from transformers import PhiConfig, PhiForCausalLM, Trainer, TrainerCallback, TrainingArguments

os.environ["TOKENIZERS_PARALLELISM"] = "false"


class Packed(IterableDataset):
    def __init__(self, block):
        self.block = block

    def __iter__(self):
        buffer = torch.empty(0, dtype=torch.long)
        while True:
            while len(buffer) < self.block:
                entry = torch.randint(5, 51000, (int(torch.randint(40, 900, ())),))
                buffer = torch.cat([buffer, entry])
            ids, buffer = buffer[: self.block], buffer[self.block :]
            yield {"input_ids": ids, "labels": ids.clone()}


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            print(state.global_step, logs["loss"])


def main():
    torch.set_default_dtype(torch.bfloat16)
    model = PhiForCausalLM(
        PhiConfig(
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=10,
            num_attention_heads=16,
            max_position_embeddings=2048,
        )
    )
    torch.set_default_dtype(torch.float32)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        max_steps=6,
        learning_rate=2e-4,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=model, args=args, train_dataset=Packed(1024), callbacks=[Printer()]).train()


if __name__ == "__main__":
    main()
