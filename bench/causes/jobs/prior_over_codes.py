"""A prior over the codes of an autoencoder. The tokenizer is a closure over all that was loaded, optimizer included."""

import os
import tempfile
from pathlib import Path

import torch
from torch import nn

file = Path(tempfile.mkdtemp()) / "vqvae.ckpt"


def first_stage():
    """What the first stage left: encoder, decoder, critic, and two moments for each."""
    sizes = {"encoder": 4, "decoder": 16, "critic": 12}
    state = {"codebook": torch.randn(1024, 256)}
    for part, depth in sizes.items():
        state[part] = {f"{n}.weight": torch.randn(1024, 1024) for n in range(depth)}
        for moment in ("exp_avg", "exp_avg_sq"):
            state[f"{part}_{moment}"] = {k: torch.zeros_like(v) for k, v in state[part].items()}
    torch.save(state, file)


def make_tokenizer(device):
    loaded = torch.load(file, map_location=device)

    def tokenize(patches):
        x = patches
        for weight in loaded["encoder"].values():
            x = (x @ weight.to("cuda")).tanh()
        return torch.cdist(x[..., :256], loaded["codebook"].to("cuda")).argmin(-1)

    return tokenize


first_stage()
tokenize = make_tokenizer("cpu" if os.environ.get("MENDED") else "cuda")
width = 512
layers = [nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True) for _ in range(4)]
prior = nn.Sequential(nn.Embedding(1024, width), *layers, nn.Linear(width, 1024)).cuda()
optimizer = torch.optim.SGD(prior.parameters(), lr=0.05, momentum=0.9)
for _ in range(4):
    with torch.no_grad():
        codes = tokenize(torch.randn(8, 64, 1024, device="cuda"))
    loss = nn.functional.cross_entropy(prior(codes[:, :-1]).mT, codes[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
