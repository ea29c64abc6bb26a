"""Titles for patents: bidirectional LSTM, a decoder that attends step by step, teacher forcing, large vocabulary."""

import random

import torch
import torch.nn as nn

VOCAB, EMB, HID = 30_000, 300, 512


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, EMB, padding_idx=0)
        self.rnn = nn.LSTM(
            EMB, HID, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3
        )
        self.bridge_h, self.bridge_c = nn.Linear(2 * HID, HID), nn.Linear(2 * HID, HID)

    def forward(self, src):
        out, (h, c) = self.rnn(self.embedding(src))
        h, c = torch.cat([h[-2], h[-1]], 1), torch.cat([c[-2], c[-1]], 1)
        return out, torch.tanh(self.bridge_h(h)), torch.tanh(self.bridge_c(c))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys = nn.Linear(2 * HID, HID, bias=False)
        self.query = nn.Linear(HID, HID)
        self.v = nn.Linear(HID, 1, bias=False)

    def forward(self, h, memory, keys):
        scores = self.v(torch.tanh(keys + self.query(h)[:, None])).squeeze(-1)
        return torch.bmm(scores.softmax(-1)[:, None], memory).squeeze(1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, EMB, padding_idx=0)
        self.attention = Attention()
        self.cell = nn.LSTMCell(EMB + 2 * HID, HID)
        self.out = nn.Linear(3 * HID + EMB, VOCAB)

    def forward(self, tgt, memory, h, c, teacher=0.9):
        keys = self.attention.keys(memory)
        token, outputs = tgt[:, 0], []
        for t in range(1, tgt.shape[1]):
            e = self.embedding(token)
            ctx = self.attention(h, memory, keys)
            h, c = self.cell(torch.cat([e, ctx], 1), (h, c))
            logits = self.out(torch.cat([h, ctx, e], 1))
            outputs.append(logits)
            token = tgt[:, t] if random.random() < teacher else logits.argmax(1)
        return torch.stack(outputs, 1)


def main():
    random.seed(0)
    encoder, decoder = Encoder().cuda(), Decoder().cuda()
    params = [*encoder.parameters(), *decoder.parameters()]
    opt = torch.optim.Adam(params, lr=1e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    for step in range(8):
        src = torch.randint(1, VOCAB, (64, 200), device="cuda")
        tgt = torch.randint(1, VOCAB, (64, 25), device="cuda")
        opt.zero_grad()
        memory, h, c = encoder(src)
        logits = decoder(tgt, memory, h, c)
        loss = criterion(logits.reshape(-1, VOCAB), tgt[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(params, 5.0)
        opt.step()
        print(f"step {step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
