"""A small language model with a batch that is too large."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

WORDS, LENGTH, WIDTH = 8000, 256, 512
layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)
model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 6), nn.Linear(WIDTH, WORDS)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(torch.randint(WORDS, (192 * 8, LENGTH + 1)), batch_size=192):
    batch = batch.cuda()
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
