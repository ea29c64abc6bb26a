"""Handwriting after Graves: three LSTM layers step by step, a sliding window over letters, a mixture of twenty Gaussians for the pen, RMSprop, clipped by value."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Scribe(nn.Module):
    def __init__(self, letters=78, hidden=900, windows=10, mixtures=20):
        super().__init__()
        self.hidden, self.K, self.M, self.letters = hidden, windows, mixtures, letters
        self.cell1 = nn.LSTMCell(3 + letters, hidden)
        self.cell2 = nn.LSTMCell(3 + letters + hidden, hidden)
        self.cell3 = nn.LSTMCell(3 + letters + hidden, hidden)
        self.window = nn.Linear(hidden, 3 * windows)
        self.pen = nn.Linear(3 * hidden, 1 + 6 * mixtures)

    def forward(self, strokes, text):
        """strokes: T x B x 3 (end of stroke, dx, dy); text: B x U as numbers."""
        T, B, _ = strokes.shape
        zero = lambda n: strokes.new_zeros(B, n)
        s1 = s2 = s3 = (zero(self.hidden), zero(self.hidden))
        kappa, w = zero(self.K), zero(self.letters)
        onehot = F.one_hot(text, self.letters).to(strokes.dtype)
        place = torch.arange(text.shape[1], device=text.device, dtype=strokes.dtype)
        seen = []
        for x in strokes:
            s1 = self.cell1(torch.cat([x, w], 1), s1)
            alpha, beta, step = self.window(s1[0]).exp().chunk(3, 1)
            kappa = kappa + step / 25
            phi = (
                alpha[..., None] * torch.exp(-beta[..., None] * (kappa[..., None] - place) ** 2)
            ).sum(1)
            w = torch.bmm(phi[:, None], onehot).squeeze(1)
            s2 = self.cell2(torch.cat([x, s1[0], w], 1), s2)
            s3 = self.cell3(torch.cat([x, s2[0], w], 1), s3)
            seen.append(torch.cat([s1[0], s2[0], s3[0]], 1))
        return self.pen(torch.stack(seen))


def negative_log_likelihood(raw, target, M):
    end, pi, mu1, mu2, ls1, ls2, rho = raw.split([1, M, M, M, M, M, M], -1)
    rho = torch.tanh(rho) * 0.99
    z1 = (target[..., 1:2] - mu1) / ls1.exp()
    z2 = (target[..., 2:3] - mu2) / ls2.exp()
    z = z1**2 + z2**2 - 2 * rho * z1 * z2
    log_n = -z / (2 * (1 - rho**2)) - ls1 - ls2 - 0.5 * torch.log(1 - rho**2) - 1.8379
    density = torch.logsumexp(F.log_softmax(pi, -1) + log_n, -1)
    stroke = F.binary_cross_entropy_with_logits(end.squeeze(-1), target[..., 0], reduction="none")
    return stroke - density


def lines(count, batch, T, U):
    g = torch.Generator().manual_seed(2013)
    for _ in range(count):
        strokes = torch.randn(T + 1, batch, 3, generator=g)
        strokes[..., 0] = (strokes[..., 0] > 1.8).float()
        lengths = torch.randint(T // 2, T + 1, (batch,), generator=g)
        mask = (torch.arange(T)[:, None] < lengths).float()
        text = torch.randint(0, 78, (batch, U), generator=g)
        yield strokes.cuda(), text.cuda(), mask.cuda()


torch.manual_seed(2013)
net = Scribe().cuda()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-4, alpha=0.95, momentum=0.9, centered=True)
for number, (strokes, text, mask) in enumerate(lines(4, 96, 160, 50)):
    raw = net(strokes[:-1], text)
    nll = negative_log_likelihood(raw, strokes[1:], net.M)
    loss = (nll * mask).sum() / mask.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(net.parameters(), 10)
    opt.step()
    print(number, round(loss.item(), 4))
