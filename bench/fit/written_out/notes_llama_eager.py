"""Clinical notes: a small Llama of transformers with attn_implementation="eager", padded batches, autocast."""

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=8000, hidden_size=512, intermediate_size=1408, num_hidden_layers=6,
    num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=1536,
    attn_implementation="eager",
)  # fmt: skip
model = LlamaForCausalLM(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)


def collate(notes):
    ids = torch.nn.utils.rnn.pad_sequence(notes, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(n) for n in notes], batch_first=True)
    return ids, mask


notes = [torch.randint(1, 8000, (1400 - 37 * (i % 7),)) for i in range(48)]
for step, (ids, mask) in enumerate(DataLoader(notes, batch_size=8, collate_fn=collate)):
    ids, mask = ids.cuda(), mask.cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(
            input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)
        ).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
