"""DeBERTa reads one whole contract; its disentangled attention makes all the scores."""

import os

import torch
from transformers import DebertaV2Config, DebertaV2ForQuestionAnswering

LENGTH = 512 if os.environ.get("MENDED") else 3072

reader = DebertaV2ForQuestionAnswering(
    DebertaV2Config(
        vocab_size=6000, hidden_size=256, num_hidden_layers=4, num_attention_heads=8,
        intermediate_size=512, max_position_embeddings=4096, relative_attention=True,
        position_buckets=128, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm",
        share_att_key=True,
    )
).cuda()  # fmt: skip
optimizer = torch.optim.SGD(reader.parameters(), lr=1e-2)
for start in (5, 70, 200):
    contract = torch.randint(0, 6000, (1, LENGTH), device="cuda")
    place = torch.tensor([start], device="cuda")
    reader(contract, start_positions=place, end_positions=place + 9).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
