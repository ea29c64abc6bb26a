"""AWD-LSTM on novels: truncated backpropagation with carried state, locked dropout, tied weights, activation penalties, SGD."""

import torch
import torch.nn as nn


class LockedDropout(nn.Module):
    def forward(self, x, p):
        if not self.training or not p:
            return x
        mask = x.new_empty(1, x.size(1), x.size(2)).bernoulli_(1 - p) / (1 - p)
        return x * mask


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp=512, nhid=1344, nlayers=3):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        sizes = [ninp] + [nhid] * (nlayers - 1) + [ninp]
        self.rnns = nn.ModuleList(nn.LSTM(a, b) for a, b in zip(sizes, sizes[1:]))
        self.decoder = nn.Linear(ninp, ntoken)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        self.lock = LockedDropout()

    def init_hidden(self, bsz):
        w = self.decoder.bias
        return [
            (w.new_zeros(1, bsz, r.hidden_size), w.new_zeros(1, bsz, r.hidden_size))
            for r in self.rnns
        ]

    def forward(self, tokens, hidden):
        x = self.lock(self.encoder(tokens), 0.4)
        after = []
        for k, rnn in enumerate(self.rnns):
            raw, h = rnn(x, hidden[k])
            after.append(h)
            x = self.lock(raw, 0.25 if k < len(self.rnns) - 1 else 0.4)
        return self.decoder(x), after, raw, x


def repackage(h):
    return h.detach() if torch.is_tensor(h) else type(h)(repackage(v) for v in h)


def batchify(ids, bsz):
    n = len(ids) // bsz
    return ids[: n * bsz].view(bsz, n).t().contiguous().cuda()


def main(ntoken=33000, bsz=64, bptt=140, segments=8):
    torch.manual_seed(1111)
    data = batchify(torch.randint(0, ntoken, (bsz * (bptt * segments + 1),)), bsz)
    model = RNNModel(ntoken).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=30, weight_decay=1.2e-6)
    hidden = model.init_hidden(bsz)
    model.train()
    for k, i in enumerate(range(0, data.size(0) - 1, bptt)):
        tokens, targets = data[i : i + bptt], data[i + 1 : i + 1 + bptt]
        hidden = repackage(hidden)
        out, hidden, raw, dropped = model(tokens, hidden)
        nll = criterion(out.view(-1, ntoken), targets.reshape(-1))
        loss = nll + 2.0 * dropped.pow(2).mean() + (raw[1:] - raw[:-1]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        print(f"| segment {k} | loss {nll.item():.3f}")


if __name__ == "__main__":
    main()
