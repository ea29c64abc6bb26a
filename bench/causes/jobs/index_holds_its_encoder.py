"""Answers from a company's papers. A large encoder makes the index, and then a generator is loaded; the index could still encode, so the encoder is there."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class Stack(nn.Module):
    """Layers of gated mixing, for the encoder and the generator."""

    def __init__(self, words, d, layers):
        super().__init__()
        self.embed = nn.Embedding(words, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))
        self.wide = nn.ModuleList(nn.Linear(d, 6 * d, bias=False) for _ in range(layers))
        self.back = nn.ModuleList(nn.Linear(3 * d, d, bias=False) for _ in range(layers))

    def forward(self, ids):
        x = self.embed(ids)
        for norm, wide, back in zip(self.norms, self.wide, self.back):
            h = norm(x)
            mean = h.cumsum(1) / torch.arange(1, h.shape[1] + 1, device=h.device)[:, None]
            x = x + back(F.glu(wide(mean + h)))
        return x


class Index:
    """Vectors of papers, and how they were made."""

    def __init__(self, encode):
        self.encode = encode
        self.vectors = None

    def add(self, papers):
        rows = torch.cat([self.encode(batch) for batch in papers])
        self.vectors = rows if self.vectors is None else torch.cat([self.vectors, rows])
        return self

    def nearest(self, vectors, count=3):
        return (vectors @ self.vectors.T).topk(count).indices


def build(papers, questions):
    with torch.device("cuda"):
        encoder = Stack(8000, 1280, 18).eval()

    @torch.inference_mode()
    def encode(ids):
        return F.normalize(encoder(ids.cuda()).mean(1), dim=1).cpu()

    index = Index(encode).add(papers)
    asked = encode(questions)
    if MENDED:
        index.encode = None
    return index, asked


papers = [torch.randint(0, 8000, (16, 200)) for _ in range(3)]
questions = torch.randint(0, 8000, (4, 20))
index, asked = build(papers, questions)
with torch.device("cuda"):
    generator = Stack(8000, 1536, 14).eval()
with torch.inference_mode():
    for question, found in zip(questions, index.nearest(asked)):
        context = torch.cat([*papers])[found].flatten()
        text = torch.cat([context, question])[None].cuda()
        for _ in range(4):
            word = (generator(text)[:, -1] @ generator.embed.weight.T).argmax(1, keepdim=True)
            text = torch.cat([text, word], 1)
        print(text[0, -4:].tolist())
