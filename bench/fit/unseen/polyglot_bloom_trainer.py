"""BLOOM with its 250,880 words on many languages: Trainer in fp32 with AdamW, clipping, packed texts."""

import itertools
import tempfile

import torch
from torch.utils.data import IterableDataset
from transformers import BloomConfig, BloomForCausalLM, Trainer, TrainingArguments


class Packed(IterableDataset):
    """Token ids packed to blocks, as if they came from shards."""

    def __init__(self, block, vocab):
        self.block, self.vocab = block, vocab

    def __iter__(self):
        for shard in itertools.count():
            gen = torch.Generator().manual_seed(shard)
            stream = torch.randint(0, self.vocab, (8 * self.block,), generator=gen)
            for piece in stream.split(self.block):
                yield {"input_ids": piece, "labels": piece.clone()}


def main():
    config = BloomConfig(hidden_size=768, n_layer=6, n_head=12, vocab_size=250_880, use_cache=False)
    with torch.device("cuda"):
        model = BloomForCausalLM(config)
    args = TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=2,
        learning_rate=2e-4,
        weight_decay=0.1,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        lr_scheduler_type="cosine",
        logging_steps=2,
        save_strategy="no",
        report_to="none",
    )
    Trainer(model=model, args=args, train_dataset=Packed(512, config.vocab_size)).train()


if __name__ == "__main__":
    main()
