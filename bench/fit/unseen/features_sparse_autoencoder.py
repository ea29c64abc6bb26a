"""What a language model knows: a gated sparse autoencoder of 49,152 features on activations of a frozen GPT-2, caught by a hook, unit-norm decoder."""

import torch
import torch.nn as nn
from transformers import GPT2Config, GPT2Model


class SparseAutoencoder(nn.Module):
    def __init__(self, width, features, k):
        super().__init__()
        self.k = k
        self.encoder = nn.Linear(width, features, device="cuda")
        self.decoder = nn.Linear(features, width, device="cuda")
        self.decoder.weight.data = self.encoder.weight.data.T.clone()
        self.unit()

    @torch.no_grad()
    def unit(self):
        self.decoder.weight.div_(self.decoder.weight.norm(dim=0, keepdim=True) + 1e-8)

    @torch.no_grad()
    def drop_parallel(self):
        w, g = self.decoder.weight, self.decoder.weight.grad
        g.sub_((g * w).sum(0, keepdim=True) * w)

    def forward(self, x):
        pre = torch.relu(self.encoder(x - self.decoder.bias))
        top = pre.topk(self.k, dim=-1)
        code = torch.zeros_like(pre).scatter(-1, top.indices, top.values)
        return self.decoder(code), code


class Activations:
    """Keeps what one block of the model writes to the residual stream."""

    def __init__(self, block):
        self.value = None
        block.register_forward_hook(self.keep)

    def keep(self, module, args, output):
        self.value = (output[0] if isinstance(output, tuple) else output).detach()


def main():
    with torch.device("cuda"):
        lm = GPT2Model(GPT2Config(n_layer=6, n_embd=1024, n_head=16)).half().eval()
    lm.requires_grad_(False)
    caught = Activations(lm.h[4])
    sae = SparseAutoencoder(1024, 49_152, k=64)
    optimizer = torch.optim.Adam(sae.parameters(), lr=3e-4, eps=6.25e-10)
    fired = torch.zeros(49_152, device="cuda")
    for step in range(5):
        with torch.no_grad():
            lm(torch.randint(0, 50257, (8, 512), device="cuda"))
        x = caught.value.float().flatten(0, 1)
        x = x[torch.randperm(len(x), device="cuda")[:3072]]
        rebuilt, code = sae(x)
        loss = (rebuilt - x).pow(2).sum(-1).mean() + 1e-4 * code.abs().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        sae.drop_parallel()
        optimizer.step()
        sae.unit()
        fired += (code > 0).float().sum(0)
        print(step, loss.item(), "dead", int((fired == 0).sum()))


if __name__ == "__main__":
    main()
