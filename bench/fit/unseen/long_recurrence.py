"""Truncated backpropagation through a long text by a wide LSTM; the state is carried on, detached."""

import torch
import torch.nn as nn


class CharRNN(nn.Module):
    def __init__(self, vocab=256, emb=256, hidden=1024, layers=3, dropout=0.3):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocab, emb)
        self.rnn = nn.LSTM(emb, hidden, layers, dropout=dropout)
        self.decoder = nn.Linear(hidden, vocab)
        self.layers, self.hidden = layers, hidden

    def forward(self, ids, state):
        out, state = self.rnn(self.drop(self.encoder(ids)), state)
        return self.decoder(self.drop(out)), state

    def init_state(self, bsz):
        w = next(self.parameters())
        zero = w.new_zeros(self.layers, bsz, self.hidden)
        return zero, zero.clone()


def repackage(h):
    return tuple(v.detach() for v in h)


def batchify(data, bsz):
    n = data.size(0) // bsz
    return data[: n * bsz].view(bsz, -1).t().contiguous()


bptt, bsz = 500, 48
train_data = batchify(torch.randint(0, 256, (bsz * (5 * bptt + 1),)), bsz).to("cuda")
model = CharRNN().to("cuda")
criterion = nn.CrossEntropyLoss()
lr = 20.0
optimizer = torch.optim.ASGD(model.parameters(), lr=lr, t0=0, lambd=0.0)
state = model.init_state(bsz)
model.train()
for batch, i in enumerate(range(0, train_data.size(0) - 1, bptt)):
    data, targets = train_data[i : i + bptt], train_data[i + 1 : i + 1 + bptt].reshape(-1)
    model.zero_grad()
    state = repackage(state)
    output, state = model(data, state)
    loss = criterion(output.view(-1, 256), targets)
    # Activation regularisation, as AWD-LSTM does it.
    (loss + 1e-6 * output.pow(2).mean()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(f"| batch {batch} | loss {loss.item():5.2f}")
