"""T5 with Adafactor from transformers' pieces; inputs padded on the fly."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

device = "cuda" if torch.cuda.is_available() else "cpu"
cfg = T5Config(
    vocab_size=32128,
    d_model=512,
    d_kv=64,
    d_ff=1024,
    num_layers=6,
    num_heads=6,
    feed_forward_proj="gated-gelu",
    tie_word_embeddings=False,
    decoder_start_token_id=0,
)
model = T5ForConditionalGeneration(cfg).to(device)
opt = torch.optim.Adafactor(model.parameters(), lr=1e-3)


def pad_to(seqs, value, multiple=64):
    width = -(-max(map(len, seqs)) // multiple) * multiple
    out = torch.full((len(seqs), width), value)
    for row, s in zip(out, seqs):
        row[: len(s)] = s
    return out


def batch(seed, size=10):
    g = torch.Generator().manual_seed(seed)
    docs = [
        torch.randint(2, 32000, (int(torch.randint(330, 440, (), generator=g)),), generator=g)
        for _ in range(size)
    ]
    sums = [
        torch.randint(2, 32000, (int(torch.randint(70, 120, (), generator=g)),), generator=g)
        for _ in range(size)
    ]
    ids = pad_to(docs, 0)
    return {
        "input_ids": ids.to(device),
        "attention_mask": (ids != 0).long().to(device),
        "labels": pad_to(sums, -100).to(device),
    }


model.train()
for epoch in range(1):
    for k in range(5):
        output = model(**batch(k))
        output["loss"].backward()
        opt.step()
        opt.zero_grad()
        print(f"epoch {epoch} batch {k}: {output['loss'].detach().item():.3f}")
