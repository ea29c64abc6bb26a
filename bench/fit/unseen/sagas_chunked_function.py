"""Sagas by a gated convolutional language model: custom autograd Functions for the loss in chunks (gradients made in forward) and for a lean gated unit."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function


class ChunkedLoss(Function):
    """Cross entropy of hidden @ weight.T, never holding all logits."""

    @staticmethod
    def forward(ctx, hidden, weight, target, chunk):
        n = hidden.shape[0]
        grad_h = torch.empty_like(hidden)
        grad_w = torch.zeros_like(weight)
        total = hidden.new_zeros(())
        for h, g, t in zip(hidden.split(chunk), grad_h.split(chunk), target.split(chunk)):
            logits = h @ weight.t()
            lse = logits.logsumexp(-1, keepdim=True)
            total += (lse.squeeze(1) - logits.gather(1, t[:, None]).squeeze(1)).sum()
            logits.sub_(lse).exp_()
            logits.scatter_add_(1, t[:, None], -torch.ones_like(lse))
            logits.div_(n)
            torch.mm(logits, weight, out=g)
            grad_w.addmm_(logits.t(), h)
        ctx.save_for_backward(grad_h, grad_w)
        return total / n

    @staticmethod
    def backward(ctx, up):
        grad_h, grad_w = ctx.saved_tensors
        return up * grad_h, up * grad_w, None, None


class LeanGate(Function):
    """sigmoid(a) * b of one tensor (a | b) along channels, saving the tensor alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a, b = x.chunk(2, 1)
        return a.sigmoid() * b

    @staticmethod
    def backward(ctx, up):
        (x,) = ctx.saved_tensors
        a, b = x.chunk(2, 1)
        s = a.sigmoid()
        out = torch.empty_like(x)
        left, right = out.chunk(2, 1)
        torch.mul(up, s * (1 - s) * b, out=left)
        torch.mul(up, s, out=right)
        return out


class CausalBlock(nn.Module):
    def __init__(self, c, k, dilation):
        super().__init__()
        self.pad = (k - 1) * dilation
        self.norm = nn.GroupNorm(1, c)
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(c, 2 * c, k, dilation=dilation))
        self.mix = nn.Conv1d(c, c, 1)

    def forward(self, x):
        y = self.conv(F.pad(self.norm(x), (self.pad, 0)))
        return x + self.mix(LeanGate.apply(y))


class Saga(nn.Module):
    def __init__(self, vocab, c=512, layers=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, c)
        self.blocks = nn.ModuleList(CausalBlock(c, 4, 2 ** (i % 5)) for i in range(layers))
        self.head = nn.Parameter(torch.randn(vocab, c) * 0.02)

    def forward(self, ids, target):
        x = self.embed(ids).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        hidden = x.transpose(1, 2).reshape(-1, x.shape[1])
        return ChunkedLoss.apply(hidden, self.head, target.reshape(-1), 2048)


def main():
    vocab = 48_000
    model = Saga(vocab).cuda()
    opt = torch.optim.Adamax(model.parameters(), lr=2e-3)
    for i in range(5):
        text = torch.randint(vocab, (16, 1025)).cuda()
        loss = model(text[:, :-1], text[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{i} {loss.item():.3f}")


if __name__ == "__main__":
    main()
