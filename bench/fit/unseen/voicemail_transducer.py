"""
Streaming recogniser for voicemail: an RNN transducer (LSTM encoder, LSTM label predictor, additive joint) with the
lattice loss written out in PyTorch. The joint makes a (batch, frames, labels, vocabulary) tensor.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

BLANK = 0
VOCAB = 1000
NEG = -1e30


class Voicemail(Dataset):
    """Log-mel frames at 100 Hz and word pieces; length of both varies from call to call."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(17)
        self.frames = torch.randint(560, 960, (n,), generator=g).tolist()
        self.labels = [max(8, f // 18) for f in self.frames]

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        mel = torch.randn(self.frames[i], 80, generator=g)
        return mel, torch.randint(1, VOCAB, (self.labels[i],), generator=g)


def collate(items):
    items = sorted(items, key=lambda x: -len(x[0]))
    mels, labels = zip(*items)
    return (
        pad_sequence(mels, batch_first=True),
        torch.tensor([len(m) for m in mels]),
        pad_sequence(labels, batch_first=True, padding_value=BLANK),
        torch.tensor([len(y) for y in labels]),
    )


class Encoder(nn.Module):
    def __init__(self, hidden=768, out=640, stack=4):
        super().__init__()
        self.stack = stack
        self.norm = nn.LayerNorm(80 * stack)
        self.lstm = nn.LSTM(80 * stack, hidden, num_layers=5, batch_first=True, dropout=0.1)
        self.proj = nn.Linear(hidden, out)

    def forward(self, mel, length):
        b, t, d = mel.shape
        t = t // self.stack * self.stack
        x = self.norm(mel[:, :t].reshape(b, t // self.stack, d * self.stack))
        length = length // self.stack
        packed = pack_padded_sequence(x, length, batch_first=True)
        x, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.proj(x), length


class Predictor(nn.Module):
    def __init__(self, hidden=640, out=640):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, batch_first=True)
        self.proj = nn.Linear(hidden, out)

    def forward(self, labels):
        # a blank in front stands for the beginning
        return self.proj(self.lstm(self.embed(F.pad(labels, (1, 0))))[0])


def transducer_loss(logits, labels, frames, lengths):
    logp = logits.log_softmax(-1)
    blank = logp[..., BLANK]  # B T U+1
    target = labels[:, None, :, None].expand(-1, logp.size(1), -1, -1)
    emit = logp[:, :, :-1].gather(3, target).squeeze(3)  # B T U
    # alpha[t, u] = logsum over v <= u of (alpha[t-1, v] + blank[t-1, v] + the labels v .. u at frame t)
    run = F.pad(emit.cumsum(2), (1, 0))
    alpha = run[:, 0]
    rows = [alpha]
    for t in range(1, logp.size(1)):
        alpha = run[:, t] + torch.logcumsumexp(alpha + blank[:, t - 1] - run[:, t], dim=1)
        rows.append(alpha)
    rows = torch.stack(rows, 1)
    i = torch.arange(len(labels), device=logits.device)
    return -(rows[i, frames - 1, lengths] + blank[i, frames - 1, lengths]).mean()


class Transducer(nn.Module):
    def __init__(self, joint=640):
        super().__init__()
        self.encoder, self.predictor = Encoder(out=joint), Predictor(out=joint)
        self.out = nn.Linear(joint, VOCAB)

    def forward(self, mel, mel_len, labels):
        enc, frames = self.encoder(mel, mel_len)
        hidden = torch.tanh(enc[:, :, None] + self.predictor(labels)[:, None])
        return self.out(hidden), frames


def main():
    torch.manual_seed(0)
    device = "cuda"
    loader = DataLoader(Voicemail(3 * 16), batch_size=16, collate_fn=collate)
    model = Transducer().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.98), weight_decay=1e-3)
    warmup = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 1000))
    for step, (mel, mel_len, labels, label_len) in enumerate(loader):
        mel, labels, label_len = mel.to(device), labels.to(device), label_len.to(device)
        logits, frames = model(mel, mel_len, labels)
        loss = transducer_loss(logits, labels, frames.to(device), label_len)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        warmup.step()
        print(f"step {step} nll {loss.item():.2f} grad {norm.item():.2f} {tuple(logits.shape)}")


if __name__ == "__main__":
    main()
