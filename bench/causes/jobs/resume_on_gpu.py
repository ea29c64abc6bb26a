"""A checkpoint is loaded to the GPU, and the dictionary is kept."""
import os
import tempfile

import torch
from transformers import BloomConfig, BloomForCausalLM

config = BloomConfig(vocab_size=16000, hidden_size=640, n_layer=6, n_head=8)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "last.pt")
    torch.save(dict(model=BloomForCausalLM(config).state_dict(), step=1000), path)
    checkpoint = torch.load(path, map_location="cuda")
model = BloomForCausalLM(config).cuda()
model.load_state_dict(checkpoint["model"])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(3):
    ids = torch.randint(0, 16000, (1, 64), device="cuda")
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
