"""Surnames found in parish registers: letters by a CNN, words by packed BiLSTMs, a conditional random field written out (forward algorithm in log space, Viterbi at the end), SGD."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

TAGS = 11


class CRF(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.move = nn.Parameter(torch.randn(tags, tags) * 0.1)
        self.first = nn.Parameter(torch.zeros(tags))
        self.last = nn.Parameter(torch.zeros(tags))

    def path(self, score, tags, mask):
        total = self.first[tags[:, 0]] + score[:, 0].gather(1, tags[:, :1]).squeeze(1)
        step = self.move[tags[:, :-1], tags[:, 1:]]
        step = step + score[:, 1:].gather(2, tags[:, 1:, None]).squeeze(2)
        total = total + (step * mask[:, 1:]).sum(1)
        end = mask.long().sum(1, keepdim=True) - 1
        return total + self.last[tags.gather(1, end).squeeze(1)]

    def all_paths(self, score, mask):
        alpha = self.first + score[:, 0]
        for t in range(1, score.shape[1]):
            new = torch.logsumexp(alpha[:, :, None] + self.move, dim=1) + score[:, t]
            alpha = torch.where(mask[:, t, None], new, alpha)
        return torch.logsumexp(alpha + self.last, dim=1)

    def forward(self, score, tags, mask):
        return (self.all_paths(score, mask) - self.path(score, tags, mask)).mean()

    @torch.no_grad()
    def decode(self, score):
        best, trail = self.first + score[:, 0], []
        for t in range(1, score.shape[1]):
            value, origin = (best[:, :, None] + self.move).max(1)
            best = value + score[:, t]
            trail.append(origin)
        tag = (best + self.last).argmax(1, keepdim=True)
        path = [tag]
        for origin in reversed(trail):
            path.append(origin.gather(1, path[-1]))
        return torch.cat(path[::-1], 1)


class Tagger(nn.Module):
    def __init__(self, words=60_000, letters=100):
        super().__init__()
        self.word = nn.Embedding(words, 256, padding_idx=0)
        self.letter = nn.Embedding(letters, 48, padding_idx=0)
        self.conv = nn.Conv1d(48, 192, 3, padding=1)
        self.dropout = nn.Dropout(0.4)
        self.lstm = nn.LSTM(
            448, 512, num_layers=3, bidirectional=True, batch_first=True, dropout=0.3
        )
        self.score = nn.Linear(1024, TAGS)
        self.crf = CRF(TAGS)

    def emissions(self, words, letters, lengths):
        b, t, k = letters.shape
        spelled = self.letter(letters.view(b * t, k)).transpose(1, 2)
        spelled = torch.relu(self.conv(spelled)).amax(-1).view(b, t, -1)
        x = self.dropout(torch.cat([self.word(words), spelled], -1))
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.score(self.dropout(out))


def registers(n):
    lengths = torch.randint(15, 60, (n,))
    words = pad_sequence([torch.randint(1, 60_000, (int(k),)) for k in lengths], batch_first=True)
    letters = torch.randint(1, 100, (*words.shape, 18)) * words.ne(0)[..., None]
    return words, letters, lengths, torch.randint(0, TAGS, words.shape)


model = Tagger().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.015, momentum=0.9)
for epoch in range(5):
    for group in optimizer.param_groups:
        group["lr"] = 0.015 / (1 + 0.05 * epoch)
    words, letters, lengths, tags = registers(256)
    words, letters, tags = words.cuda(), letters.cuda(), tags.cuda()
    score = model.emissions(words, letters, lengths)
    loss = model.crf(score, tags, words.ne(0))
    model.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    print(f"epoch {epoch}: {loss.item():.2f}")

model.eval()
with torch.no_grad():
    print(model.crf.decode(model.emissions(words[:32], letters[:32], lengths[:32])).shape)
