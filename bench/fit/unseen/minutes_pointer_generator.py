"""Minutes of meetings in short: pointer-generator with coverage, LSTMs step by step, words copied by scatter, Adagrad as in the paper."""

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, EMB, HID, OOV = 30000, 128, 256, 50
ARTICLE, SUMMARY, BATCH = 400, 40, 40


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, EMB)
        self.lstm = nn.LSTM(EMB, HID, batch_first=True, bidirectional=True)
        self.features = nn.Linear(2 * HID, 2 * HID, bias=False)
        self.reduce_h, self.reduce_c = nn.Linear(2 * HID, HID), nn.Linear(2 * HID, HID)

    def forward(self, article):
        outputs, (h, c) = self.lstm(self.embedding(article))
        h = F.relu(self.reduce_h(torch.cat([h[0], h[1]], -1)))
        c = F.relu(self.reduce_c(torch.cat([c[0], c[1]], -1)))
        return outputs, self.features(outputs), (h, c)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, EMB)
        self.context = nn.Linear(2 * HID + EMB, EMB)
        self.cell = nn.LSTMCell(EMB, HID)
        self.query = nn.Linear(2 * HID, 2 * HID)
        self.coverage = nn.Linear(1, 2 * HID, bias=False)
        self.v = nn.Linear(2 * HID, 1, bias=False)
        self.p_gen = nn.Linear(4 * HID + EMB, 1)
        self.out = nn.Sequential(nn.Linear(3 * HID, HID), nn.Linear(HID, VOCAB))

    def forward(self, word, state, memory, features, context, coverage, extended):
        x = self.context(torch.cat([context, self.embedding(word)], -1))
        h, c = self.cell(x, state)
        both = torch.cat([h, c], -1)
        energy = features + self.query(both)[:, None] + self.coverage(coverage[..., None])
        attention = self.v(torch.tanh(energy)).squeeze(-1).softmax(-1)
        context = torch.bmm(attention[:, None], memory).squeeze(1)
        p = torch.sigmoid(self.p_gen(torch.cat([context, both, x], -1)))
        words = self.out(torch.cat([h, context], -1)).softmax(-1) * p
        final = F.pad(words, (0, OOV)).scatter_add(1, extended, attention * (1 - p))
        return final, (h, c), context, attention


encoder, decoder = Encoder().cuda(), Decoder().cuda()
params = [*encoder.parameters(), *decoder.parameters()]
optimizer = torch.optim.Adagrad(params, lr=0.15, initial_accumulator_value=0.1)

for batch in range(4):
    extended = torch.randint(4, VOCAB + OOV, (BATCH, ARTICLE), device="cuda")
    article = extended.clamp(max=VOCAB - 1)
    summary = torch.randint(4, VOCAB + OOV, (BATCH, SUMMARY + 1), device="cuda")
    memory, features, state = encoder(article)
    context = memory.new_zeros(BATCH, 2 * HID)
    coverage = memory.new_zeros(BATCH, ARTICLE)
    losses = []
    for t in range(SUMMARY):
        word = summary[:, t].clamp(max=VOCAB - 1)
        final, state, context, attention = decoder(
            word, state, memory, features, context, coverage, extended
        )
        gold = final.gather(1, summary[:, t + 1, None]).squeeze(1)
        covered = torch.min(attention, coverage).sum(-1)
        losses.append(-torch.log(gold + 1e-12) + covered)
        coverage = coverage + attention
    loss = torch.stack(losses, 1).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 2.0)
    optimizer.step()
    print(f"batch {batch} loss {loss.item():.3f}")
