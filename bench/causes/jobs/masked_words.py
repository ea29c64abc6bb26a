"""A multilingual masked language model scores every word at every place, masked or not."""

import os

import torch
from torch import nn
from transformers import XLMRobertaConfig, XLMRobertaModel

MENDED = os.environ.get("MENDED")
WORDS = 250002


class MaskedWords(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.encoder = XLMRobertaModel(
            XLMRobertaConfig(
                vocab_size=WORDS, hidden_size=width, num_hidden_layers=4, num_attention_heads=4,
                intermediate_size=1024,
            ),
            add_pooling_layer=False,
        )  # fmt: skip
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.words = nn.Linear(width, WORDS)
        self.words.weight = self.encoder.embeddings.word_embeddings.weight

    def forward(self, ids, labels):
        x = self.encoder(ids).last_hidden_state.flatten(0, 1)
        labels = labels.flatten()
        if MENDED:
            masked = torch.arange(0, len(labels), 7, device=labels.device)
            x, labels = x[masked], labels[masked]
        scores = self.words(self.norm(nn.functional.gelu(self.dense(x))))
        return nn.functional.cross_entropy(scores, labels)


model = MaskedWords().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    ids = torch.randint(5, WORDS, (16, 128), device="cuda")
    labels = torch.where(torch.rand(ids.shape, device="cuda") < 0.15, ids, -100)
    loss = model(ids, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
