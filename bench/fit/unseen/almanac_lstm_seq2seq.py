"""Almanac entries from one language to another: a packed bidirectional LSTM reads, an LSTM with input feeding and Luong attention writes, logits for 32,000 words, SGD halved."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

SRC_VOCAB, TGT_VOCAB = 32000, 32000
PAD, BOS, EOS = 0, 1, 2


class Reader(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(SRC_VOCAB, dim, padding_idx=PAD)
        self.rnn = nn.LSTM(dim, dim // 2, num_layers=2, bidirectional=True, dropout=0.2)

    def forward(self, src, lengths):
        packed = pack_padded_sequence(self.embed(src), lengths)
        out, (h, c) = self.rnn(packed)
        out, _ = pad_packed_sequence(out, total_length=src.shape[0])

        def join(state):  # (layers * 2, B, dim / 2) -> (layers, B, dim)
            return torch.cat([state[0::2], state[1::2]], dim=-1)

        return out, (join(h), join(c))


class Writer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(TGT_VOCAB, dim, padding_idx=PAD)
        self.cells = nn.ModuleList([nn.LSTMCell(2 * dim, dim), nn.LSTMCell(dim, dim)])
        self.score = nn.Linear(dim, dim, bias=False)
        self.mix = nn.Linear(2 * dim, dim)
        self.vocab = nn.Linear(dim, TGT_VOCAB, bias=False)

    def forward(self, tgt, memory, state, mask):
        hs, cs = list(state[0].unbind(0)), list(state[1].unbind(0))
        keys = self.score(memory)
        feed = torch.zeros_like(hs[0])
        outputs = []
        for word in self.embed(tgt):
            x = torch.cat([word, feed], dim=-1)
            for k, cell in enumerate(self.cells):
                hs[k], cs[k] = cell(x, (hs[k], cs[k]))
                x = F.dropout(hs[k], 0.2, self.training)
            energy = torch.einsum("sbd,bd->sb", keys, x).masked_fill(mask, -1e9)
            context = torch.einsum("sb,sbd->bd", energy.softmax(0), memory)
            feed = torch.tanh(self.mix(torch.cat([context, x], dim=-1)))
            outputs.append(feed)
        return self.vocab(torch.stack(outputs))


def entries(batch, rng):
    """Sorted by length, longest first, as packing wants them."""
    sizes = sorted((rng.randint(15, 45) for _ in range(batch)), reverse=True)
    src = pad_sequence([torch.randint(3, SRC_VOCAB, (n,)) for n in sizes])
    tgt = pad_sequence(
        [
            torch.cat([torch.tensor([BOS]), torch.randint(3, TGT_VOCAB, (n,)), torch.tensor([EOS])])
            for n in (min(40, s + rng.randint(-4, 4)) for s in sizes)
        ]
    )
    return src.cuda(), torch.tensor(sizes), tgt.cuda()


def main():
    rng = random.Random(1)
    torch.manual_seed(1)
    reader, writer = Reader(512).cuda(), Writer(512).cuda()
    parameters = list(reader.parameters()) + list(writer.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    halve = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    for it in range(4):
        src, lengths, tgt = entries(224, rng)
        memory, state = reader(src, lengths)
        logits = writer(tgt[:-1], memory, state, mask=src == PAD)
        loss = F.cross_entropy(
            logits.flatten(0, 1), tgt[1:].flatten(), ignore_index=PAD, reduction="sum"
        ) / len(lengths)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        halve.step()
        print(f"{it} loss per entry {loss.item():.2f}")


main()
