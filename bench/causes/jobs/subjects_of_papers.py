# %% [markdown]
# Subjects of papers, from who cites whom: trained on samples, judged on the whole graph.
"""A notebook: samples of a graph of papers train a network, which is then shown all of the graph, gradients and all."""

# %%
import os

import torch
import torch.nn.functional as F
from torch import nn

PAPERS, CITED, WORDS, SUBJECTS = 100_000, 350_000, 128, 40
g = torch.Generator().manual_seed(40)
words = torch.randn(PAPERS, WORDS, generator=g)
edges = torch.randint(PAPERS, (2, CITED), generator=g)
subject = torch.randint(SUBJECTS, (PAPERS,), generator=g)
order = torch.randperm(PAPERS, generator=g)
train, valid = order[:60_000], order[60_000:]


# %%
class Citing(nn.Module):
    """A paper beside the mean of what it cites."""

    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.linear = nn.Linear(2 * fan_in, fan_out)
        self.norm = nn.LayerNorm(fan_out)

    def forward(self, x, edges):
        source, target = edges
        near = torch.zeros_like(x).index_add_(0, target, x[source])
        degree = torch.zeros(len(x), 1, device=x.device)
        degree.index_add_(0, target, torch.ones(len(source), 1, device=x.device))
        return F.relu(self.norm(self.linear(torch.cat([x, near / degree.clamp(min=1)], 1))))


class Papers(nn.Module):
    def __init__(self, d=128, layers=5):
        super().__init__()
        self.layers = nn.ModuleList(Citing(WORDS if n == 0 else d, d) for n in range(layers))
        self.out = nn.Linear(d, SUBJECTS)

    def forward(self, x, edges):
        for layer in self.layers:
            x = F.dropout(layer(x, edges), 0.3, self.training)
        return self.out(x)


model = Papers().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)


# %%
def sample(seeds, size=6000):
    """Some papers, and what is cited among them."""
    chosen = seeds[torch.randperm(len(seeds))[:size]]
    place = torch.full((PAPERS,), -1)
    place[chosen] = torch.arange(size)
    both = place[edges]
    return chosen, both[:, (both >= 0).all(0)]


model.train()
for step in range(4):
    chosen, part = sample(train)
    scores = model(words[chosen].cuda(), part.cuda())
    loss = F.cross_entropy(scores, subject[chosen].cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())

# %%
# Now all of it at once. There is room: 100,000 papers are 50 MB.
torch.set_grad_enabled(not os.environ.get("MENDED"))
model.eval()
scores = model(words.cuda(), edges.cuda())

# %%
right = scores.argmax(1).cpu() == subject
print(f"trained on {right[train].float().mean():.3f}, others {right[valid].float().mean():.3f}")
