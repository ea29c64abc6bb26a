"""Jingles as four streams of codes: MusicGen's decoder from a config, delayed codebooks, accelerate with bf16."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import MusicgenDecoderConfig, MusicgenForCausalLM

CODEBOOKS, VOCAB, FRAMES = 4, 2048, 1000


class Codes(Dataset):
    """Codes as an audio tokenizer gives them, each codebook one frame later than the one before."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        codes = torch.randint(0, VOCAB, (CODEBOOKS, FRAMES))
        delayed = torch.full((CODEBOOKS, FRAMES + CODEBOOKS), VOCAB)
        for k in range(CODEBOOKS):
            delayed[k, k + 1 : k + 1 + FRAMES - 1] = codes[k, :-1]
        return delayed


def collate(items):
    delayed = torch.stack(items)
    labels = delayed.masked_fill(delayed == VOCAB, -100).transpose(1, 2)
    return {"input_ids": delayed.flatten(0, 1), "labels": labels}


def main():
    accelerator = Accelerator(mixed_precision="bf16")
    config = MusicgenDecoderConfig(
        vocab_size=VOCAB,
        hidden_size=1024,
        ffn_dim=4096,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_codebooks=CODEBOOKS,
        dropout=0.1,
        use_cache=False,
        pad_token_id=VOCAB,
        bos_token_id=VOCAB,
    )
    model = MusicgenForCausalLM(config)
    loader = DataLoader(Codes(8 * 5), batch_size=8, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for number, batch in enumerate(loader):
        out = model(**batch)
        accelerator.backward(out.loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(number, out.loss.item())


main()
