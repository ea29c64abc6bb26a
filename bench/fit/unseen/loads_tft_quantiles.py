"""Loads of substations by a Temporal Fusion Transformer: variable selection, LSTMs, interpretable attention, seven quantiles, two weeks in, two days out, Adam."""

import torch
from torch import nn
from torch.nn import functional as F

QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)


class GLU(nn.Module):
    def __init__(self, d_in, d, dropout):
        super().__init__()
        self.drop, self.fc = nn.Dropout(dropout), nn.Linear(d_in, 2 * d)

    def forward(self, x):
        return F.glu(self.fc(self.drop(x)))


class GRN(nn.Module):
    """Gated residual network; a context, if given, is added before the nonlinearity."""

    def __init__(self, d_in, d, d_out=None, context=0, dropout=0.1):
        super().__init__()
        d_out = d_out or d
        self.skip = nn.Linear(d_in, d_out) if d_in != d_out else nn.Identity()
        self.a = nn.Linear(d_in, d)
        self.c = nn.Linear(context, d, bias=False) if context else None
        self.b = nn.Linear(d, d)
        self.gate, self.norm = GLU(d, d_out, dropout), nn.LayerNorm(d_out)

    def forward(self, x, context=None):
        h = self.a(x)
        if self.c is not None:
            h = h + self.c(context)
        return self.norm(self.skip(x) + self.gate(self.b(F.elu(h))))


class VariableSelection(nn.Module):
    def __init__(self, variables, d, dropout):
        super().__init__()
        self.embed = nn.ModuleList([nn.Linear(1, d) for _ in range(variables)])
        self.each = nn.ModuleList([GRN(d, d, dropout=dropout) for _ in range(variables)])
        self.weights = GRN(variables * d, d, variables, context=d, dropout=dropout)

    def forward(self, x, context):
        e = [f(x[..., i : i + 1]) for i, f in enumerate(self.embed)]
        context = context[:, None].expand(-1, x.shape[1], -1)
        w = self.weights(torch.cat(e, -1), context).softmax(-1)
        h = torch.stack([g(v) for g, v in zip(self.each, e)], -1)
        return (h * w[..., None, :]).sum(-1), w


class InterpretableAttention(nn.Module):
    def __init__(self, d, heads, dropout):
        super().__init__()
        self.h, self.dk = heads, d // heads
        self.q, self.k = nn.Linear(d, d), nn.Linear(d, d)
        self.v, self.o = nn.Linear(d, self.dk), nn.Linear(self.dk, d, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, q, kv, mask):
        b, n, m = len(q), q.shape[1], kv.shape[1]
        Q = self.q(q).view(b, n, self.h, self.dk).transpose(1, 2)
        K = self.k(kv).view(b, m, self.h, self.dk).transpose(1, 2)
        scores = (Q @ K.mT / self.dk**0.5).masked_fill(mask, -1e9).softmax(-1)
        return self.o((self.drop(scores) @ self.v(kv)[:, None]).mean(1)), scores.mean(1)


class TFT(nn.Module):
    def __init__(self, stations=500, past=12, future=6, d=160, heads=4, dropout=0.1):
        super().__init__()
        self.station = nn.Embedding(stations, d)
        self.contexts = nn.ModuleDict({k: GRN(d, d) for k in ("select", "enrich", "h", "c")})
        self.past, self.future = (
            VariableSelection(past, d, dropout),
            VariableSelection(future, d, dropout),
        )
        self.encoder, self.decoder = (
            nn.LSTM(d, d, batch_first=True),
            nn.LSTM(d, d, batch_first=True),
        )
        self.gate1, self.norm1 = GLU(d, d, dropout), nn.LayerNorm(d)
        self.enrich = GRN(d, d, context=d, dropout=dropout)
        self.attention = InterpretableAttention(d, heads, dropout)
        self.gate2, self.norm2 = GLU(d, d, dropout), nn.LayerNorm(d)
        self.feed = GRN(d, d, dropout=dropout)
        self.gate3, self.norm3 = GLU(d, d, dropout), nn.LayerNorm(d)
        self.head = nn.Linear(d, len(QUANTILES))

    def forward(self, station, past, future):
        s = self.station(station)
        c = {k: f(s) for k, f in self.contexts.items()}
        p, _ = self.past(past, c["select"])
        f, weights = self.future(future, c["select"])
        hp, state = self.encoder(p, (c["h"][None].contiguous(), c["c"][None].contiguous()))
        hf, _ = self.decoder(f, state)
        x = self.norm1(torch.cat([p, f], 1) + self.gate1(torch.cat([hp, hf], 1)))
        e = self.enrich(x, c["enrich"][:, None].expand(-1, x.shape[1], -1))
        n, m = f.shape[1], e.shape[1]
        mask = torch.ones(n, m, device=e.device).triu(m - n + 1).bool()
        a, _ = self.attention(e[:, -n:], e, mask)
        a = self.norm2(e[:, -n:] + self.gate2(a))
        return self.head(self.norm3(x[:, -n:] + self.gate3(self.feed(a)))), weights


def quantile_loss(pred, y):
    error = y[..., None] - pred
    q = torch.tensor(QUANTILES, device=y.device)
    return torch.max(q * error, (q - 1) * error).sum(-1).mean()


def main():
    torch.manual_seed(48)
    tft = TFT().cuda()
    adam = torch.optim.Adam(tft.parameters(), lr=1e-3)
    for it in range(5):
        station = torch.randint(0, 500, (96,)).cuda()
        past, future = torch.randn(96, 336, 12).cuda(), torch.randn(96, 48, 6).cuda()
        load = torch.randn(96, 48).cuda()
        tft.train()
        pred, weights = tft(station, past, future)
        loss = quantile_loss(pred, load)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tft.parameters(), 0.01)
        adam.step()
        inside = ((load > pred[..., 1]) & (load < pred[..., -2])).float().mean()
        print(f"{it} loss {loss.item():.3f} coverage {inside.item():.2f}")


if __name__ == "__main__":
    main()
