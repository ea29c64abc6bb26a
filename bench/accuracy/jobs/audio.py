"""Speech, music and sound: spectrograms, vocoders, recognition, codecs."""

import math

import torch
import transformers as T
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from job import device, job, main, pick
from parts import built

RATE = 16000


def mel_filters(bins, mels):
    """Triangular filters on the mel scale, bins × mels."""
    hz = 700 * (10 ** (torch.linspace(0, 2840, mels + 2) / 2595) - 1)
    at = torch.linspace(0, RATE / 2, bins)[:, None]
    up = (at - hz[:-2]) / (hz[1:-1] - hz[:-2])
    down = (hz[2:] - at) / (hz[2:] - hz[1:-1])
    return torch.minimum(up, down).clamp(min=0)


class MelSpectrogram(nn.Module):
    def __init__(self, n_fft=1024, hop=256, mels=80):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("filters", mel_filters(n_fft // 2 + 1, mels))

    def forward(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        return torch.log(spec.abs().pow(2).transpose(1, 2) @ self.filters + 1e-6).transpose(1, 2)


@job()
def separation_stft_istft():
    """Masks on a complex spectrogram, back to waves, loss on the waves (SI-SDR)."""
    n_fft, hop, width = pick(2048, 256), pick(512, 64), pick(48, 8)
    window = torch.hann_window(n_fft, device=device)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            widths = (2, width, 2 * width, 4 * width)
            self.down = nn.ModuleList(
                nn.Sequential(nn.Conv2d(i, o, 5, (2, 1), 2), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))
                for i, o in zip(widths, widths[1:])
            )
            self.rnn = nn.GRU(4 * width * 4, 2 * width * 4, batch_first=True, bidirectional=True)
            self.pool = nn.AdaptiveAvgPool2d((4, None))
            self.up = nn.Conv2d(4 * width, 2 * 4, 1)

        def forward(self, spec):
            x = torch.view_as_real(spec).permute(0, 3, 1, 2)
            freqs = x.shape[2]
            for layer in self.down:
                x = layer(x)
            p = self.pool(x)
            h, _ = self.rnn(p.flatten(1, 2).transpose(1, 2))
            x = x + h.transpose(1, 2).unflatten(1, (4 * width, 4)).mean(2, keepdim=True)
            mask = F.interpolate(self.up(x), size=(freqs, x.shape[3]), mode="bilinear")
            return torch.view_as_complex(
                mask.unflatten(1, (4, 2)).permute(0, 1, 3, 4, 2).contiguous()
            )

    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for _ in range(4):
        sources = torch.randn(pick(8, 2), 4, pick(131072, 2048), device=device)
        mixture = sources.sum(1)
        spec = torch.stft(mixture, n_fft, hop, window=window, return_complex=True)
        masked = spec[:, None] * model(spec)
        waves = torch.istft(
            masked.flatten(0, 1), n_fft, hop, window=window, length=mixture.shape[1]
        ).view_as(sources)
        scale = (waves * sources).sum(-1, keepdim=True) / sources.pow(2).sum(-1, keepdim=True)
        target = scale * sources
        ratio = target.pow(2).sum(-1) / ((waves - target).pow(2).sum(-1) + 1e-8)
        loss = -10 * torch.log10(ratio + 1e-8).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield


@job()
def griffin_lim_phase():
    """Phase recovery: thirty rounds of istft and stft, no gradient."""
    n_fft, hop = pick(1024, 128), pick(256, 32)
    window = torch.hann_window(n_fft, device=device)
    for _ in range(3):
        with torch.no_grad():
            wave = torch.randn(pick(48, 2), pick(163840, 1024), device=device)
            size = torch.stft(wave, n_fft, hop, window=window, return_complex=True).abs()
            angle = torch.exp(2j * math.pi * torch.rand_like(size))
            last = torch.zeros_like(angle)
            for _ in range(pick(30, 2)):
                wave = torch.istft(size * angle, n_fft, hop, window=window)
                again = torch.stft(wave, n_fft, hop, window=window, return_complex=True)
                angle = again - 0.99 / 1.99 * last
                angle = angle / (angle.abs() + 1e-16)
                last = again
        yield


@job()
def mel_classifier_specaugment():
    """Log-mel features on the GPU with time and frequency masks, a CNN, mixup."""
    mel = MelSpectrogram(mels=128).to(device)
    layers = []
    for i, o in zip((1, 64, 128, 256), (64, 128, 256, 512)):
        layers += [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]
        layers += [nn.AvgPool2d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(512, 527))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        wave = torch.randn(pick(48, 2), pick(10 * RATE, RATE), device=device)
        labels = (torch.rand(len(wave), 527, device=device) < 0.01).float()
        with torch.no_grad():
            x = mel(wave)
            for axis, most in ((1, 24), (2, 64)):
                start = torch.rand(len(x), 1, device=device) * (x.shape[axis] - most)
                at = torch.arange(x.shape[axis], device=device)[None]
                hidden = (at >= start) & (at < start + most)
                x = x.masked_fill(hidden.unsqueeze(2 if axis == 1 else 1), 0.0)
            weight = torch.distributions.Beta(0.4, 0.4).sample((len(x), 1, 1)).to(device)
            order = torch.randperm(len(x), device=device)
            x = weight * x + (1 - weight) * x[order]
            labels = weight[:, :, 0] * labels + (1 - weight[:, :, 0]) * labels[order]
        loss = F.binary_cross_entropy_with_logits(model(x[:, None]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class Conformer(nn.Module):
    def __init__(self, width, heads, kernel=31):
        super().__init__()
        half = lambda: nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.SiLU(),
            nn.Dropout(0.1),
            nn.Linear(4 * width, width),
            nn.Dropout(0.1),
        )
        self.first, self.second = half(), half()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.before = nn.LayerNorm(width)
        self.conv = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1),
            nn.GLU(1),
            nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width),
            nn.BatchNorm1d(width),
            nn.SiLU(),
            nn.Conv1d(width, width, 1),
            nn.Dropout(0.1),
        )
        self.last = nn.LayerNorm(width)

    def forward(self, x, padding):
        x = x + 0.5 * self.first(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        y = self.before(x).masked_fill(padding[..., None], 0.0)
        x = x + self.conv(y.transpose(1, 2)).transpose(1, 2)
        return self.last(x + 0.5 * self.second(x))


@job()
def conformer_ctc():
    """Conformer with padded utterances and CTC, mixed precision with bfloat16."""
    width, vocab = pick(384, 32), pick(1024, 30)
    subsample = nn.Sequential(
        nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU()
    ).to(device)
    project = nn.Linear(width * 19, width).to(device)
    blocks = nn.ModuleList([Conformer(width, 4) for _ in range(pick(12, 1))]).to(device)
    head = nn.Linear(width, vocab).to(device)
    parameters = [p for m in (subsample, project, blocks, head) for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.98))
    for step in range(4):
        frames = pick((1000, 1400, 800, 1200), (60, 80, 40, 50))[step]
        features = torch.randn(pick(24, 2), frames, 80, device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            x = subsample(features[:, None])
            x = project(x.transpose(1, 2).flatten(2))
            lengths = torch.linspace(0.6, 1, len(x)).mul(x.shape[1]).long().to(device)
            padding = torch.arange(x.shape[1], device=device)[None] >= lengths[:, None]
            for block in blocks:
                x = block(x, padding)
            scores = head(x)
        targets = torch.randint(1, vocab, (len(x), pick(60, 3)), device=device)
        given = torch.full((len(x),), targets.shape[1], device=device)
        logs = scores.float().log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(logs, targets, lengths, given, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        yield


@job()
def hubert_fine_tuning():
    """HuBERT with weight norm on its positions, time masks, frozen feature extractor."""
    config = T.HubertConfig(
        hidden_size=pick(768, 32),
        num_hidden_layers=pick(12, 2),
        num_attention_heads=pick(12, 4),
        intermediate_size=pick(3072, 64),
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        conv_bias=True,
        mask_time_prob=0.05,
        layerdrop=0.0,
        num_labels=12,
        num_conv_pos_embedding_groups=pick(16, 4),
    )
    model = built(T.HubertForSequenceClassification, config).train()
    model.freeze_feature_encoder()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-5)
    for _ in range(4):
        wave = torch.randn(pick(16, 2), pick(8 * RATE, RATE), device=device)
        labels = torch.randint(0, 12, (len(wave),), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(input_values=wave, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


class ResidualUnit(nn.Module):
    def __init__(self, width, kernel, dilations=(1, 3, 5)):
        super().__init__()
        conv = lambda d: weight_norm(
            nn.Conv1d(width, width, kernel, dilation=d, padding=d * (kernel - 1) // 2)
        )
        self.first = nn.ModuleList([conv(d) for d in dilations])
        self.second = nn.ModuleList([conv(1) for _ in dilations])

    def forward(self, x):
        for a, b in zip(self.first, self.second):
            x = x + b(F.leaky_relu(a(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Vocoder(nn.Module):
    def __init__(self, width, mels=80):
        super().__init__()
        self.start = weight_norm(nn.Conv1d(mels, width, 7, padding=3))
        self.ups, self.units = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in ((8, 16), (8, 16), (2, 4), (2, 4)):
            self.ups.append(
                weight_norm(
                    nn.ConvTranspose1d(width, width // 2, kernel, rate, (kernel - rate) // 2)
                )
            )
            width //= 2
            self.units.append(nn.ModuleList([ResidualUnit(width, k) for k in (3, 7, 11)]))
        self.end = weight_norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, x):
        x = self.start(x)
        for up, units in zip(self.ups, self.units):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(unit(x) for unit in units) / len(units)
        return torch.tanh(self.end(F.leaky_relu(x)))


class PeriodDiscriminator(nn.Module):
    def __init__(self, period, width):
        super().__init__()
        self.period = period
        widths = (1, width, 4 * width, 16 * width)
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(i, o, (5, 1), (3, 1), (2, 0))) for i, o in zip(widths, widths[1:])
        )
        self.last = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        x = F.pad(x, (0, -x.shape[-1] % self.period), "reflect")
        x = x.unflatten(2, (-1, self.period))
        kept = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
            kept.append(x)
        return self.last(x), kept


@job()
def hifigan_vocoder():
    """Generator and five discriminators, each with an optimizer; mel and feature-matching losses."""
    generator = Vocoder(pick(512, 32)).to(device)
    judges = nn.ModuleList([PeriodDiscriminator(p, pick(32, 4)) for p in (2, 3, 5, 7, 11)])
    judges.to(device)
    mel = MelSpectrogram().to(device)
    for_generator = torch.optim.AdamW(generator.parameters(), 2e-4, betas=(0.8, 0.99))
    for_judges = torch.optim.AdamW(judges.parameters(), 2e-4, betas=(0.8, 0.99))
    for _ in range(4):
        features = torch.randn(pick(16, 2), 80, pick(48, 8), device=device)
        real = torch.randn(len(features), 1, features.shape[2] * 256, device=device)
        fake = generator(features)
        loss = 0
        for judge in judges:
            a, b = judge(real)[0], judge(fake.detach())[0]
            loss = loss + (1 - a).pow(2).mean() + b.pow(2).mean()
        for_judges.zero_grad()
        loss.backward()
        for_judges.step()
        loss = 45 * F.l1_loss(mel(fake.squeeze(1)), mel(real.squeeze(1)))
        for judge in judges:
            (_, kept), (score, made) = judge(real), judge(fake)
            loss = loss + (1 - score).pow(2).mean()
            loss = loss + 2 * sum(F.l1_loss(m, k.detach()) for m, k in zip(made, kept))
        for_generator.zero_grad()
        loss.backward()
        for_generator.step()
        yield


@job()
def wavenet_mu_law():
    """Dilated causal convolutions with gates; classes of the next sample."""
    width = pick(128, 8)

    class WaveNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(256, width)
            self.dilations = [2**i for _ in range(pick(3, 1)) for i in range(pick(10, 3))]
            self.gates = nn.ModuleList(
                [nn.Conv1d(width, 2 * width, 2, dilation=d) for d in self.dilations]
            )
            self.mix = nn.ModuleList([nn.Conv1d(width, 2 * width, 1) for _ in self.dilations])
            self.end = nn.Sequential(
                nn.ReLU(), nn.Conv1d(width, 256, 1), nn.ReLU(), nn.Conv1d(256, 256, 1)
            )

        def forward(self, x):
            x = self.embed(x).transpose(1, 2)
            total = 0
            for d, gate, mix in zip(self.dilations, self.gates, self.mix):
                a, b = gate(F.pad(x, (d, 0))).chunk(2, 1)
                h, skip = mix(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
                x, total = x + h, total + skip
            return self.end(total)

    model = WaveNet().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        wave = torch.rand(pick(4, 1), pick(16384, 64), device=device) * 2 - 1
        coded = torch.sign(wave) * torch.log1p(255 * wave.abs()) / math.log(256)
        classes = ((coded + 1) * 127.5).long()
        loss = F.cross_entropy(model(classes[:, :-1]), classes[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


@job()
def neural_codec_rvq():
    """Convolutional codec with an LSTM and residual vector quantization, codebooks kept by moving average."""
    width, books, entries = pick(64, 4), 8, pick(1024, 16)
    deep = width * 8

    class Codec(nn.Module):
        def __init__(self):
            super().__init__()
            down, up = [nn.Conv1d(1, width, 7, padding=3)], []
            for i, rate in enumerate((2, 4, 5)):
                w = width * 2**i
                down += [nn.ELU(), nn.Conv1d(w, 2 * w, 2 * rate + 1, rate, rate)]
                up = [
                    nn.ELU(),
                    nn.ConvTranspose1d(2 * w, w, 2 * rate, rate, (rate + 1) // 2, rate % 2),
                ] + up
            self.down, self.up = nn.Sequential(*down), nn.Sequential(*up)
            self.rnn = nn.LSTM(deep, deep, 2, batch_first=True)
            self.last = nn.Conv1d(width, 1, 7, padding=3)
            self.register_buffer("code", torch.randn(books, entries, deep))
            self.register_buffer("count", torch.ones(books, entries))

        def quantize(self, x):
            rest, total, loss = x, torch.zeros_like(x), 0
            for code, count in zip(self.code, self.count):
                flat = rest.detach().flatten(0, 1)
                near = torch.cdist(flat, code).argmin(1)
                if self.training:
                    hot = F.one_hot(near, entries).to(flat)
                    count.mul_(0.99).add_(hot.sum(0), alpha=0.01)
                    code.lerp_(hot.T @ flat / (hot.sum(0)[:, None] + 1e-5), 0.01)
                chosen = F.embedding(near, code).view_as(rest)
                loss = loss + F.mse_loss(rest, chosen)
                total = total + chosen
                rest = rest - chosen
            return x + (total - x).detach(), loss

        def forward(self, wave):
            x = self.down(wave).transpose(1, 2)
            x = x + self.rnn(x)[0]
            x, loss = self.quantize(x)
            y = self.last(self.up(x.transpose(1, 2)))
            return y, loss

    model = Codec().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.5, 0.9))
    for _ in range(4):
        wave = torch.randn(pick(12, 2), 1, pick(48000, 480), device=device)
        made, commit = model(wave)
        length = min(made.shape[-1], wave.shape[-1])
        loss = F.l1_loss(made[..., :length], wave[..., :length]) + 0.1 * commit
        for size in pick((2048, 1024, 512, 256), (128, 64)):
            window = torch.hann_window(size, device=device)
            spec = lambda w: torch.stft(
                w.squeeze(1)[:, :length], size, size // 4, window=window, return_complex=True
            ).abs()
            loss = loss + F.l1_loss(spec(made), spec(wave))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def tacotron_decoder():
    """Speech synthesis: an LSTM-cell decoder with location-sensitive attention, frame by frame."""
    width = pick(512, 16)

    class Tacotron(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(80, width)
            self.encode = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
            self.pre = nn.Sequential(
                nn.Linear(80, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 256), nn.ReLU()
            )
            self.attend_cell = nn.LSTMCell(256 + width, 2 * width)
            self.decode_cell = nn.LSTMCell(3 * width, 2 * width)
            self.query, self.memory = nn.Linear(2 * width, 128), nn.Linear(width, 128)
            self.location = nn.Conv1d(2, 128, 31, padding=15)
            self.energy, self.frame = nn.Linear(128, 1), nn.Linear(3 * width, 81)

        def forward(self, text, mel):
            memory, _ = self.encode(self.embed(text))
            keys = self.memory(memory)
            zero = memory.new_zeros(len(text), 2 * width)
            h1 = c1 = h2 = c2 = zero
            context = memory.new_zeros(len(text), width)
            weight = total = memory.new_zeros(memory.shape[:2])
            frames = []
            for step in self.pre(F.pad(mel, (0, 0, 1, 0))[:, :-1]).unbind(1):
                h1, c1 = self.attend_cell(torch.cat([step, context], 1), (h1, c1))
                place = self.location(torch.stack([weight, total], 1)).transpose(1, 2)
                score = self.energy(torch.tanh(self.query(h1)[:, None] + keys + place))
                weight = score.squeeze(2).softmax(1)
                total = total + weight
                context = torch.bmm(weight[:, None], memory).squeeze(1)
                h2, c2 = self.decode_cell(torch.cat([h1, context], 1), (h2, c2))
                frames.append(self.frame(torch.cat([h2, context], 1)))
            return torch.stack(frames, 1)

    model = Tacotron().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
    for length in pick((160, 200, 120, 200), (4, 5, 3, 5)):
        text = torch.randint(0, 80, (pick(32, 2), pick(100, 6)), device=device)
        mel = torch.randn(len(text), length, 80, device=device)
        out = model(text, mel)
        stop = torch.zeros(out.shape[:2], device=device)
        loss = F.mse_loss(out[..., :80], mel)
        loss = loss + F.binary_cross_entropy_with_logits(out[..., 80], stop)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield


@job()
def spectrogram_transformer_fp16():
    """AST on spectrograms, fp16 with a scaler."""
    config = T.ASTConfig(
        hidden_size=pick(768, 32),
        num_hidden_layers=pick(12, 2),
        num_attention_heads=pick(12, 4),
        intermediate_size=pick(3072, 64),
        num_labels=35,
        max_length=pick(1024, 64),
    )
    model = built(T.ASTForAudioClassification, config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler(device, init_scale=256.0)
    for _ in range(4):
        x = torch.randn(pick(12, 2), config.max_length, 128, device=device)
        labels = torch.randint(0, 35, (len(x),), device=device)
        with torch.autocast(device, dtype=torch.float16):
            loss = model(input_values=x, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield


@job()
def speaker_embedding_margin():
    """An ECAPA-like net on mel features with attentive pooling and an additive margin over 6,000 speakers."""
    width, speakers = pick(1024, 16), pick(6000, 20)

    class Squeeze(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.conv = nn.Conv1d(width // 8, width // 8, 3, dilation=d, padding=d)
            self.before, self.after = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)
            self.norm = nn.BatchNorm1d(width)
            self.gate = nn.Sequential(
                nn.AdaptiveAvgPool1d(1),
                nn.Conv1d(width, 128, 1),
                nn.ReLU(),
                nn.Conv1d(128, width, 1),
                nn.Sigmoid(),
            )

        def forward(self, x):
            parts, out, last = self.before(x).relu().chunk(8, 1), [], 0
            for i, part in enumerate(parts):
                last = part if i == 0 else self.conv(part + last).relu()
                out.append(last)
            y = self.norm(self.after(torch.cat(out, 1)).relu())
            return x + y * self.gate(y)

    mel = MelSpectrogram(512, 160).to(device)
    stem = nn.Conv1d(80, width, 5, padding=2).to(device)
    blocks = nn.ModuleList([Squeeze(d) for d in (2, 3, 4)]).to(device)
    attend = nn.Sequential(nn.Conv1d(width, 128, 1), nn.Tanh(), nn.Conv1d(128, width, 1)).to(device)
    embed = nn.Linear(2 * width, 192).to(device)
    centers = nn.Parameter(torch.randn(speakers, 192, device=device))
    model = nn.ModuleList([stem, blocks, attend, embed])
    optimizer = torch.optim.Adam([*model.parameters(), centers], lr=1e-3)
    for _ in range(4):
        wave = torch.randn(pick(96, 4), pick(2 * RATE, 4000), device=device)
        labels = torch.randint(0, speakers, (len(wave),), device=device)
        with torch.no_grad():
            x = mel(wave)
        x = stem(x)
        for block in blocks:
            x = block(x)
        w = attend(x).softmax(-1)
        mean = (x * w).sum(-1)
        std = ((x.pow(2) * w).sum(-1) - mean.pow(2)).clamp(min=1e-6).sqrt()
        e = F.normalize(embed(torch.cat([mean, std], 1)))
        cosine = e @ F.normalize(centers).T
        margin = F.one_hot(labels, speakers) * 0.2
        loss = F.cross_entropy(30 * (cosine - margin), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


if __name__ == "__main__":
    main()
