"""Captions by Show, Attend and Tell as in the tutorials: a ResNet-101 with its last stages tuned, an LSTMCell that attends at each word, batches that shrink, two Adams, clipped by value."""

import time

import torch
import torchvision
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
emb_dim = attention_dim = decoder_dim = 512
vocab_size = 9490
max_len = 26
batch_size = 24
grad_clip = 5.0
alpha_c = 1.0


class CaptionDataset(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        length = int(torch.randint(8, max_len, (1,), generator=g))
        caption = torch.zeros(max_len, dtype=torch.long)
        caption[:length] = torch.randint(1, vocab_size, (length,), generator=g)
        return torch.rand(3, 256, 256, generator=g), caption, torch.LongTensor([length])


class Encoder(nn.Module):
    def __init__(self, encoded_image_size=14):
        super().__init__()
        resnet = torchvision.models.resnet101(weights=None)
        self.resnet = nn.Sequential(*list(resnet.children())[:-2])
        self.adaptive_pool = nn.AdaptiveAvgPool2d((encoded_image_size, encoded_image_size))
        self.fine_tune()

    def forward(self, images):
        return self.adaptive_pool(self.resnet(images)).permute(0, 2, 3, 1)

    def fine_tune(self, fine_tune=True):
        for p in self.resnet.parameters():
            p.requires_grad = False
        for c in list(self.resnet.children())[5:]:
            for p in c.parameters():
                p.requires_grad = fine_tune


class Attention(nn.Module):
    def __init__(self, encoder_dim, decoder_dim, attention_dim):
        super().__init__()
        self.encoder_att = nn.Linear(encoder_dim, attention_dim)
        self.decoder_att = nn.Linear(decoder_dim, attention_dim)
        self.full_att = nn.Linear(attention_dim, 1)
        self.relu = nn.ReLU()
        self.softmax = nn.Softmax(dim=1)

    def forward(self, encoder_out, decoder_hidden):
        att1 = self.encoder_att(encoder_out)
        att2 = self.decoder_att(decoder_hidden)
        att = self.full_att(self.relu(att1 + att2.unsqueeze(1))).squeeze(2)
        alpha = self.softmax(att)
        return (encoder_out * alpha.unsqueeze(2)).sum(dim=1), alpha


class DecoderWithAttention(nn.Module):
    def __init__(self, encoder_dim=2048, dropout=0.5):
        super().__init__()
        self.attention = Attention(encoder_dim, decoder_dim, attention_dim)
        self.embedding = nn.Embedding(vocab_size, emb_dim)
        self.dropout = nn.Dropout(p=dropout)
        self.decode_step = nn.LSTMCell(emb_dim + encoder_dim, decoder_dim, bias=True)
        self.init_h = nn.Linear(encoder_dim, decoder_dim)
        self.init_c = nn.Linear(encoder_dim, decoder_dim)
        self.f_beta = nn.Linear(decoder_dim, encoder_dim)
        self.fc = nn.Linear(decoder_dim, vocab_size)

    def forward(self, encoder_out, encoded_captions, caption_lengths):
        n = encoder_out.size(0)
        encoder_out = encoder_out.reshape(n, -1, encoder_out.size(-1))
        caption_lengths, sort_ind = caption_lengths.squeeze(1).sort(dim=0, descending=True)
        encoder_out = encoder_out[sort_ind]
        encoded_captions = encoded_captions[sort_ind]
        embeddings = self.embedding(encoded_captions)
        mean = encoder_out.mean(dim=1)
        h, c = self.init_h(mean), self.init_c(mean)
        decode_lengths = (caption_lengths - 1).tolist()
        predictions = torch.zeros(n, max(decode_lengths), vocab_size).to(device)
        alphas = torch.zeros(n, max(decode_lengths), encoder_out.size(1)).to(device)
        for t in range(max(decode_lengths)):
            b = sum(length > t for length in decode_lengths)
            awe, alpha = self.attention(encoder_out[:b], h[:b])
            awe = torch.sigmoid(self.f_beta(h[:b])) * awe
            h, c = self.decode_step(torch.cat([embeddings[:b, t, :], awe], dim=1), (h[:b], c[:b]))
            predictions[:b, t, :] = self.fc(self.dropout(h))
            alphas[:b, t, :] = alpha
        return predictions, encoded_captions, decode_lengths, alphas, sort_ind


def clip_gradient(optimizer, limit):
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                param.grad.data.clamp_(-limit, limit)


def main():
    encoder, decoder = Encoder().to(device), DecoderWithAttention().to(device)
    decoder_optimizer = torch.optim.Adam(
        params=filter(lambda p: p.requires_grad, decoder.parameters()), lr=4e-4
    )
    encoder_optimizer = torch.optim.Adam(
        params=filter(lambda p: p.requires_grad, encoder.parameters()), lr=1e-4
    )
    criterion = nn.CrossEntropyLoss().to(device)
    loader = DataLoader(CaptionDataset(6 * batch_size), batch_size=batch_size, shuffle=True)
    encoder.train()
    decoder.train()
    start = time.time()
    for i, (imgs, caps, caplens) in enumerate(loader):
        imgs, caps, caplens = imgs.to(device), caps.to(device), caplens.to(device)
        scores, caps_sorted, decode_lengths, alphas, _ = decoder(encoder(imgs), caps, caplens)
        targets = caps_sorted[:, 1:]
        scores = pack_padded_sequence(scores, decode_lengths, batch_first=True).data
        targets = pack_padded_sequence(targets, decode_lengths, batch_first=True).data
        loss = criterion(scores, targets)
        loss += alpha_c * ((1.0 - alphas.sum(dim=1)) ** 2).mean()
        decoder_optimizer.zero_grad()
        encoder_optimizer.zero_grad()
        loss.backward()
        clip_gradient(decoder_optimizer, grad_clip)
        clip_gradient(encoder_optimizer, grad_clip)
        decoder_optimizer.step()
        encoder_optimizer.step()
        print(f"[{i}/{len(loader)}] {time.time() - start:.1f} s loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
