"""Recipes as chats: all of a small Qwen3 tuned by Trainer in bf16 weights, prompts masked out, padded to multiples of 64, NEFTune noise."""

import random
import tempfile
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM, Trainer, TrainingArguments, set_seed

IGNORE = -100


class RecipeDataset(Dataset):
    """Ingredients as the prompt, steps as the answer."""

    def __init__(self, n, vocab):
        rng = random.Random(11)
        self.rows = []
        for _ in range(n):
            prompt = [rng.randrange(5, vocab) for _ in range(rng.randint(40, 160))]
            answer = [rng.randrange(5, vocab) for _ in range(rng.randint(160, 480))]
            self.rows.append((prompt, answer))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, idx):
        prompt, answer = self.rows[idx]
        return dict(input_ids=prompt + answer, labels=[IGNORE] * len(prompt) + answer)


@dataclass
class SFTCollator:
    pad_id: int = 0
    multiple: int = 64

    def __call__(self, features):
        longest = max(len(f["input_ids"]) for f in features)
        longest = -(-longest // self.multiple) * self.multiple
        batch = {"input_ids": [], "labels": [], "attention_mask": []}
        for f in features:
            n = longest - len(f["input_ids"])
            batch["input_ids"].append(f["input_ids"] + [self.pad_id] * n)
            batch["labels"].append(f["labels"] + [IGNORE] * n)
            batch["attention_mask"].append([1] * len(f["input_ids"]) + [0] * n)
        return {k: torch.tensor(v) for k, v in batch.items()}


def main():
    set_seed(2024)
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=640,
        intermediate_size=1792,
        num_hidden_layers=10,
        num_attention_heads=10,
        num_key_value_heads=5,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)

    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="recipes"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        max_steps=4,
        bf16=True,
        learning_rate=2e-5,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        max_grad_norm=1.0,
        neftune_noise_alpha=5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=2024,
    )
    Trainer(
        model=model,
        args=training_args,
        train_dataset=RecipeDataset(48, config.vocab_size),
        data_collator=SFTCollator(),
    ).train()


if __name__ == "__main__":
    main()
