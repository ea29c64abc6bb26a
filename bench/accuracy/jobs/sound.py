"""Sound: recognition, separation, synthesis and music, with other losses and loops than `audio.py`."""

import copy
import math

import numpy
import torch
import transformers as T
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from job import device, job, main, pick
from parts import built


def mel_filters(bins, mels, rate):
    """Triangular filters on the mel scale, bins × mels."""
    top = 2595 * math.log10(1 + rate / 2 / 700)
    hz = 700 * (10 ** (torch.linspace(0, top, mels + 2) / 2595) - 1)
    at = torch.linspace(0, rate / 2, bins)[:, None]
    up, down = (at - hz[:-2]) / (hz[1:-1] - hz[:-2]), (hz[2:] - at) / (hz[2:] - hz[1:-1])
    return torch.minimum(up, down).clamp(min=0)


@job()
def whisper_long_recordings():
    """Long recordings in windows of thirty seconds, encoded in batches, transcribed window by window."""
    width = pick(768, 32)
    config = T.WhisperConfig(
        vocab_size=pick(51865, 120),
        d_model=width,
        encoder_layers=pick(12, 2),
        decoder_layers=pick(12, 2),
        encoder_attention_heads=pick(12, 4),
        decoder_attention_heads=pick(12, 4),
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=pick(1500, 30),
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = built(T.WhisperForConditionalGeneration, config, torch.float16).eval()
    rate, hop, n_fft = 16000, 160, 400
    window = torch.hann_window(n_fft, device=device)
    filters = mel_filters(n_fft // 2 + 1, 80, rate).to(device)
    frames = 2 * config.max_source_positions
    for minutes in pick((12, 5, 20), (0.02, 0.01)):
        with torch.no_grad():
            wave = torch.randn(int(minutes * 60 * rate)).to(device)
            spec = torch.stft(wave, n_fft, hop, window=window, return_complex=True)
            mel = (filters.T @ spec.abs().square()).clamp(min=1e-10).log10()
            mel = (torch.maximum(mel, mel.max() - 8) + 4) / 4
            mel = F.pad(mel, (0, -mel.shape[1] % frames))
            windows = mel.unfold(1, frames, frames).transpose(0, 1)
            text = []
            for part in windows.split(16):
                states = model.model.encoder(part.half())
                ids = torch.tensor([[1, 5, 6, 7]], device=device).expand(len(part), -1)
                past, written = None, []
                for _ in range(pick(32, 3)):
                    out = model(
                        encoder_outputs=states,
                        decoder_input_ids=ids,
                        past_key_values=past,
                        use_cache=True,
                    )
                    past = out.past_key_values
                    ids = out.logits[:, -1:].float().log_softmax(-1).argmax(-1)
                    written.append(ids)
                text.append(torch.cat(written, 1).cpu())
        yield len(torch.cat(text))


@job()
def wav2vec2_pretraining():
    """Masked positions and negatives are drawn by numpy; a quantizer with Gumbel noise, checkpointing."""
    config = T.Wav2Vec2Config(
        hidden_size=pick(768, 32),
        num_hidden_layers=pick(12, 2),
        num_attention_heads=pick(12, 4),
        intermediate_size=pick(3072, 64),
        conv_dim=pick((512,) * 7, (16,) * 7),
        num_codevectors_per_group=pick(320, 8),
        codevector_dim=pick(256, 16),
        proj_codevector_dim=pick(256, 16),
        num_negatives=pick(100, 5),
        num_conv_pos_embedding_groups=pick(16, 4),
    )
    model = built(T.Wav2Vec2ForPreTraining, config)
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=device == "cuda")
    draw = numpy.random.default_rng(7)
    for step, seconds in enumerate(pick((12, 9, 15.6, 7), (0.5, 0.4))):
        wave = torch.randn(pick(10, 2), int(16000 * seconds), device=device)
        length = int(model._get_feat_extract_output_lengths(wave.shape[1]))
        hidden = numpy.zeros((len(wave), length), dtype=bool)
        spans, span = max(1, int(0.65 * length / 10)), min(10, length // 2)
        for row in hidden:
            for start in draw.choice(length - span, spans, replace=False):
                row[start : start + span] = True
        others = draw.integers(0, length, (len(wave), length, config.num_negatives))
        others += length * numpy.arange(len(wave))[:, None, None]
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(
                wave,
                mask_time_indices=torch.from_numpy(hidden).to(device),
                sampled_negative_indices=torch.from_numpy(others).to(device),
            )
        (out.loss / hidden.sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()
        model.set_gumbel_temperature(max(2.0 * 0.9**step, 0.5))
        yield out.loss.item()


class Demucs(nn.Module):
    """Waves to waves: strided convolutions with gates, an LSTM in the middle, skips by addition."""

    def __init__(self, channels, depth, sources=4):
        super().__init__()
        self.sources = sources
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = 2
        for level in range(depth):
            now = channels * 2**level
            self.down.append(
                nn.Sequential(
                    nn.Conv1d(before, now, 8, 4),
                    nn.ReLU(),
                    nn.Conv1d(now, 2 * now, 1),
                    nn.GLU(dim=1),
                )
            )
            last = [nn.ReLU()] if level else []
            into = before if level else 2 * sources
            self.up.insert(
                0,
                nn.Sequential(
                    nn.Conv1d(now, 2 * now, 3, padding=1),
                    nn.GLU(dim=1),
                    nn.ConvTranspose1d(now, into, 8, 4),
                    *last,
                ),
            )
            before = now
        self.rnn = nn.LSTM(now, now, 2, bidirectional=True)
        self.back = nn.Linear(2 * now, now)

    def forward(self, mix):
        x, kept = mix, []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        y, _ = self.rnn(x.permute(2, 0, 1))
        x = self.back(y).permute(1, 2, 0)
        for layer in self.up:
            skip = kept.pop()
            start = (skip.shape[-1] - x.shape[-1]) // 2
            x = layer(x + skip[..., start : start + x.shape[-1]])
        return x.unflatten(1, (self.sources, 2))


@job(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:256")
def demucs_remixed_sources():
    """Separation of music on waves: sources shuffled in the batch, scaled and flipped on the GPU, L1 loss."""
    depth = pick(6, 3)
    model = Demucs(pick(48, 4), depth).to(device)
    length = pick(330000, 3000)
    valid = length
    for _ in range(depth):
        valid = math.ceil((valid - 8) / 4) + 1
    for _ in range(depth):
        valid = (valid - 1) * 4 + 8
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.9, 0.999), foreach=True)
    for _ in range(4):
        sources = torch.randn(pick(16, 2), 4, 2, valid, device=device)
        shift = int(torch.randint(0, 500, (1,)))
        sources = sources[..., shift:]
        order = torch.rand(len(sources), 4, 1, 1, device=device).argsort(0)
        sources = sources.gather(0, order.expand_as(sources))
        sources *= torch.empty(len(sources), 4, 1, 1, device=device).uniform_(0.25, 1.25)
        sources = torch.where(torch.rand_like(sources[..., :1, :1]) < 0.5, sources.flip(2), sources)
        mix = sources.sum(1)
        mix = F.pad(mix, (0, valid - mix.shape[-1]))
        mean, std = mix.mean((1, 2), keepdim=True), mix.std((1, 2), keepdim=True)
        estimate = model((mix - mean) / std) * std[:, None] + mean[:, None]
        size = min(estimate.shape[-1], sources.shape[-1])
        loss = F.l1_loss(estimate[..., :size], sources[..., :size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class TransducerLoss(torch.autograd.Function):
    """The transducer's loss; its gradient is computed in the forward pass, diagonal by diagonal."""

    @staticmethod
    def forward(ctx, logits, targets, lengths, target_lengths):
        b, t, u, _ = logits.shape
        logp = logits.float().log_softmax(-1)
        blank = logp[..., 0]
        index = F.pad(targets, (0, 1))[:, None, :, None].expand(b, t, u, 1)
        label = logp.gather(-1, index)[..., 0]
        alpha = logp.new_full((b, t, u), -1e30)
        beta = logp.new_full((b, t + 1, u + 1), -1e30)
        alpha[:, 0, 0] = 0
        rows = torch.arange(b, device=logits.device)
        for d in range(1, t + u - 1):
            i = torch.arange(max(0, d - u + 1), min(t, d + 1), device=logits.device)
            j = d - i
            stay = alpha[:, (i - 1).clamp(min=0), j] + blank[:, (i - 1).clamp(min=0), j]
            go = alpha[:, i, (j - 1).clamp(min=0)] + label[:, i, (j - 1).clamp(min=0)]
            stay = stay.masked_fill(i == 0, -1e30)
            go = go.masked_fill(j == 0, -1e30)
            alpha[:, i, j] = torch.logaddexp(stay, go)
        end = (lengths - 1, target_lengths)
        beta[rows, end[0] + 1, end[1]] = 0
        for d in range(t + u - 2, -1, -1):
            i = torch.arange(max(0, d - u + 1), min(t, d + 1), device=logits.device)
            j = d - i
            stay = beta[:, i + 1, j] + blank[:, i, j]
            go = beta[:, i, j + 1] + label[:, i, j]
            seen = beta[:, i, j]
            beta[:, i, j] = torch.logaddexp(torch.logaddexp(stay, go), seen).clamp(min=-1e30)
        total = beta[:, 0, 0]
        inside = alpha[..., None] - total[:, None, None, None] + logp
        grad = (inside + beta[:, :t, :u, None]).clamp(max=0).exp()
        take = (alpha + blank + beta[:, 1:, :u] - total[:, None, None]).clamp(max=0).exp()
        grad[..., 0] -= take
        take = (alpha + label + beta[:, :t, 1:] - total[:, None, None]).clamp(max=0).exp()
        grad.scatter_add_(-1, index, -take[..., None])
        ctx.save_for_backward(grad.to(logits.dtype))
        return -total

    @staticmethod
    def backward(ctx, above):
        (grad,) = ctx.saved_tensors
        return grad * above[:, None, None, None].to(grad.dtype), None, None, None


@job()
def transducer_recognition():
    """An LSTM transducer: logits of every frame and every symbol, the loss as a custom function."""
    vocab, width = pick(512, 20), pick(640, 24)
    encoder = nn.LSTM(4 * 80, width, pick(5, 2), batch_first=True, dropout=0.1)
    embed, predictor = nn.Embedding(vocab, width), nn.LSTM(width, width, 1, batch_first=True)
    join = nn.Sequential(nn.Tanh(), nn.Linear(width, vocab))
    model = nn.ModuleList([encoder, embed, predictor, join]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=10)
    for frames, symbols in pick(((1200, 70), (760, 44), (1400, 82), (980, 60)), ((48, 5), (32, 4))):
        batch = pick(12, 2)
        mel = torch.randn(batch, frames, 80, device=device)
        lengths = torch.randint(frames // 8, frames // 4 + 1, (batch,), device=device)
        targets = torch.randint(1, vocab, (batch, symbols), device=device)
        target_lengths = torch.randint(symbols // 2, symbols + 1, (batch,), device=device)
        h, _ = encoder(mel.view(batch, frames // 4, -1))
        g, _ = predictor(F.pad(embed(targets), (0, 0, 1, 0)))
        logits = join(h[:, :, None] + g[:, None])
        loss = TransducerLoss.apply(logits, targets, lengths, target_lengths)
        loss = (loss / target_lengths).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()


class Coupling(nn.Module):
    """An affine coupling with gated dilated convolutions, and an invertible 1 × 1 convolution before it."""

    def __init__(self, channels, width):
        super().__init__()
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.into = nn.Conv1d(channels // 2, width, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 5, padding=2 * 2**i, dilation=2**i) for i in range(4)
        )
        self.rest = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(4))
        self.out = nn.Conv1d(width, channels, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x, mask):
        lengths = mask.sum((1, 2))
        x = F.conv1d(x, self.mix[..., None]) * mask
        det = torch.slogdet(self.mix)[1] * lengths
        a, b = x.chunk(2, 1)
        h, total = self.into(a) * mask, 0
        for gate, rest in zip(self.gates, self.rest):
            t, s = gate(h).chunk(2, 1)
            more, skip = rest(F.dropout(t.tanh() * s.sigmoid(), 0.05)).chunk(2, 1)
            h, total = (h + more) * mask, total + skip
        shift, scale = self.out(total * mask).chunk(2, 1)
        b = (b * scale.exp() + shift) * mask
        return torch.cat([a, b], 1), det + (scale * mask).sum((1, 2))


def best_path(value, frames, symbols):
    """Monotonic alignment by dynamic programming on the host; value is batch × symbols × frames."""
    path = numpy.zeros_like(value, dtype=numpy.float32)
    for b in range(len(value)):
        v = value[b, : symbols[b], : frames[b]].copy()
        steps = numpy.full(symbols[b], -1e9)
        before = numpy.empty((frames[b], symbols[b]), dtype=bool)
        for t in range(frames[b]):
            up = numpy.concatenate([[-1e9 if t else 0.0], steps[:-1]])
            stay = steps if t else numpy.full(symbols[b], -1e9)
            before[t] = up > stay
            steps = numpy.maximum(up, stay) + v[:, t]
        at = symbols[b] - 1
        for t in range(frames[b] - 1, -1, -1):
            path[b, at, t] = 1
            if at and (before[t, at] or at == t):
                at -= 1
    return path


@job()
def flow_speech_synthesis():
    """Glow-TTS: a flow from spectrograms, text aligned to it on the host, a predictor of durations."""
    width, mels, vocab = pick(256, 16), pick(80, 8), 148
    embed = nn.Embedding(vocab, width)
    layer = nn.TransformerEncoderLayer(
        width, 2, 4 * width, 0.1, batch_first=True, norm_first=True, activation="gelu"
    )
    text = nn.TransformerEncoder(layer, pick(6, 1), enable_nested_tensor=False)
    project, duration = nn.Linear(width, 2 * mels), nn.Linear(width, 1)
    flows = nn.ModuleList(Coupling(2 * mels, width) for _ in range(pick(12, 2)))
    model = nn.ModuleList([embed, text, project, duration, flows]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.9, 0.98), eps=1e-9)
    for most, symbols in pick(
        ((1200, 180), (700, 110), (1560, 200), (900, 130)), ((24, 5), (30, 6))
    ):
        batch = pick(32, 2)
        sizes = torch.linspace(most // 2, most, batch).long() // 2 * 2
        counts = torch.linspace(symbols // 2, symbols, batch).long()
        mel = torch.randn(batch, mels, most).to(device, non_blocking=True)
        ids = torch.randint(0, vocab, (batch, symbols), device=device)
        hidden = torch.arange(symbols) >= counts[:, None]
        hidden = hidden.to(device)
        mask = (torch.arange(most // 2) < sizes[:, None] // 2).to(device)[:, None].float()
        h = text(embed(ids) * width**0.5, src_key_padding_mask=hidden)
        mean, log_std = project(h).chunk(2, -1)
        mean, log_std = mean.repeat(1, 1, 2), 0.1 * log_std.repeat(1, 1, 2)
        z = mel.unflatten(2, (-1, 2)).permute(0, 1, 3, 2).flatten(1, 2) * mask
        det = 0
        for flow in flows:
            z, d = flow(z, mask)
            det = det + d
        with torch.no_grad():
            inverse = torch.exp(-2 * log_std)
            value = -0.5 * (inverse @ z.square()) + (mean * inverse) @ z
            value = value - (0.5 * mean.square() * inverse + log_std).sum(-1, keepdim=True)
            path = best_path(value.cpu().numpy(), (sizes // 2).tolist(), counts.tolist())
            path = torch.from_numpy(path).to(device)
        m, s = path.transpose(1, 2) @ mean, path.transpose(1, 2) @ log_std
        z = z.transpose(1, 2)
        nll = (s + 0.5 * torch.exp(-2 * s) * (z - m).square()) * mask.transpose(1, 2)
        loss = (nll.sum() - det.sum()) / (mask.sum() * 2 * mels)
        wanted = torch.log(path.sum(-1) + 1e-8)
        off = (duration(h.detach())[..., 0] - wanted).masked_fill(hidden, 0)
        loss = loss + off.square().sum() / counts.sum()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        yield loss.item()


class DiffWave(nn.Module):
    def __init__(self, width, depth, cycle=10):
        super().__init__()
        self.into, self.depth = nn.Conv1d(1, width, 1), depth
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU())
        self.upsample = nn.Sequential(
            nn.ConvTranspose2d(1, 1, (3, 32), (1, 16), (1, 8)),
            nn.LeakyReLU(0.4),
            nn.ConvTranspose2d(1, 1, (3, 32), (1, 16), (1, 8)),
            nn.LeakyReLU(0.4),
        )
        self.step = nn.ModuleList(nn.Linear(512, width) for _ in range(depth))
        self.mel = nn.ModuleList(nn.Conv1d(80, 2 * width, 1) for _ in range(depth))
        self.gate = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2 ** (i % cycle), dilation=2 ** (i % cycle))
            for i in range(depth)
        )
        self.rest = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))
        self.out = nn.Sequential(nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 1, 1))

    def forward(self, wave, t, mel):
        angle = t[:, None] * 10 ** (torch.arange(64, device=t.device) * 4 / 63)
        t = self.time(torch.cat([angle.sin(), angle.cos()], 1))
        mel = self.upsample(mel[:, None])[:, 0]
        x, total = self.into(wave[:, None]).relu(), 0
        for i in range(self.depth):
            y = self.gate[i](x + self.step[i](t)[..., None]) + self.mel[i](mel)
            a, b = y.chunk(2, 1)
            y = self.rest[i](a.sigmoid() * b.tanh())
            more, skip = y.chunk(2, 1)
            x, total = (x + more) / math.sqrt(2), total + skip
        return self.out(total / math.sqrt(self.depth))[:, 0]


@job()
def diffusion_vocoder_training():
    """DiffWave on short pieces, then a whole sentence is painted in six steps by the averaged weights."""
    model = DiffWave(pick(64, 8), pick(30, 3)).to(device)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    noise_level = (1 - torch.linspace(1e-4, 0.05, 50)).cumprod(0).to(device)
    for _ in range(2):
        for _ in range(2):
            frames = pick(62, 6)
            wave = torch.randn(pick(16, 2), 256 * frames, device=device)
            mel = torch.randn(len(wave), 80, frames, device=device)
            t = torch.randint(0, 50, (len(wave),), device=device)
            keep = noise_level[t, None]
            noise = torch.randn_like(wave)
            guess = model(keep.sqrt() * wave + (1 - keep).sqrt() * noise, t, mel)
            loss = F.smooth_l1_loss(guess, noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            yield loss.item()
        average.eval()
        with torch.inference_mode():
            mel = torch.randn(2, 80, pick(700, 10), device=device)
            wave = torch.randn(2, mel.shape[2] * 256, device=device)
            for i in range(pick(6, 2), 0, -1):
                t = torch.full((2,), i * 7, device=device)
                guess = average(wave, t, mel)
                wave = ((wave - 0.3 * guess) / 0.95 + 0.05 * torch.randn_like(wave)).clamp(-1, 1)
        yield wave.cpu().abs().max().item()


@job()
def harmonic_oscillators_spectral_loss():
    """DDSP: sixty-four oscillators and filtered noise from a GRU, a loss on spectrograms of six sizes."""
    width, harmonics, bands, hop = pick(512, 16), pick(64, 4), pick(65, 9), pick(160, 16)
    gru = nn.GRU(2, width, batch_first=True)
    mlp = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.LeakyReLU())
    heads = nn.ModuleDict(
        dict(
            tone=nn.Linear(width, harmonics),
            loud=nn.Linear(width, 1),
            noise=nn.Linear(width, bands),
        )
    )
    reverb = nn.Parameter(torch.randn(pick(16000, 200), device=device) * 1e-3)
    model = nn.ModuleList([gru, mlp, heads]).to(device)
    optimizer = torch.optim.Adam([*model.parameters(), reverb], lr=1e-3)
    sizes = pick((2048, 1024, 512, 256, 128, 64), (128, 64))
    windows = {n: torch.hann_window(n, device=device) for n in sizes}

    def filtered(noise, magnitudes):
        """Time-varying filters by their frequency responses; noise is batch × frames × hop."""
        impulse = torch.fft.irfft(torch.complex(magnitudes, torch.zeros_like(magnitudes)))
        impulse = impulse.roll(bands - 1, -1) * torch.hann_window(2 * bands - 2, device=device)
        n = hop + impulse.shape[-1]
        made = torch.fft.irfft(torch.fft.rfft(noise, n) * torch.fft.rfft(impulse, n), n)
        return made[..., -hop:].flatten(1)

    for frames in pick((400, 250, 400, 300), (10, 12)):
        batch = pick(32, 2)
        pitch = 80 + 400 * torch.rand(batch, frames, 1, device=device)
        loudness = torch.rand(batch, frames, 1, device=device)
        target = torch.randn(batch, frames * hop, device=device)
        h = mlp(gru(torch.cat([pitch / 500, loudness], -1))[0])
        tone = torch.exp(heads["tone"](h) * 0.5)
        series = pitch * torch.arange(1, harmonics + 1, device=device)
        tone = tone * (series < 8000)
        tone = tone / (tone.sum(-1, keepdim=True) + 1e-7) * heads["loud"](h).sigmoid()
        up = lambda x: F.interpolate(x.transpose(1, 2), scale_factor=hop, mode="linear")
        phase = torch.cumsum(up(series) * (2 * math.pi / 16000), -1)
        wave = (up(tone) * torch.sin(phase)).sum(1)
        noise = torch.rand(batch, frames, hop, device=device) * 2 - 1
        wave = wave + filtered(noise, heads["noise"](h).sigmoid())
        n = 2 ** math.ceil(math.log2(wave.shape[1] + len(reverb)))
        wet = torch.fft.irfft(torch.fft.rfft(wave, n) * torch.fft.rfft(reverb, n), n)
        wave = wave + wet[:, : wave.shape[1]]
        loss = 0
        for n, window in windows.items():
            a, b = (
                torch.stft(x, n, n // 4, window=window, return_complex=True).abs()
                for x in (target, wave)
            )
            loss = loss + (a - b).abs().mean()
            loss = loss + ((a + 1e-5).log() - (b + 1e-5).log()).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class RelativeBlock(nn.Module):
    """Attention with learned relative positions, by the skewing trick of Music Transformer."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.heads, size = heads, width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.relative = nn.Parameter(torch.randn(heads, length, size) * 0.02)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        b, n, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        shifted = q @ self.relative[:, -n:].transpose(1, 2)
        shifted = F.pad(shifted, (1, 0)).view(b, self.heads, n + 1, n)[:, :, 1:]
        score = (q @ k.transpose(-1, -2) + shifted) * q.shape[-1] ** -0.5
        above = torch.ones(n, n, dtype=torch.bool, device=x.device).triu_(1)
        weight = F.dropout(score.masked_fill_(above, -1e4).softmax(-1), 0.1, self.training)
        x = x + self.out((weight @ v).transpose(1, 2).reshape(b, n, width))
        return x + self.mlp(self.norm2(x))


@job()
def music_transformer_relative_positions():
    """Events of a piano: full score matrices, every second block recomputed, gradients of two batches."""
    vocab, width, length = 388, pick(512, 32), pick(2048, 24)
    model = nn.Sequential(
        nn.Embedding(vocab, width),
        *[RelativeBlock(width, 8, length) for _ in range(pick(6, 2))],
        nn.Linear(width, vocab),
    ).to(device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-4)
    for _ in range(3):
        for _ in range(2):
            ids = torch.randint(0, vocab, (pick(4, 2), length + 1), device=device)
            x = model[0](ids[:, :-1])
            for i, block in enumerate(model[1:-1]):
                x = checkpoint(block, x, use_reentrant=False) if i % 2 else block(x)
            logits = model[-1](x)
            loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], label_smoothing=0.1) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


class SoundEvents(nn.Module):
    """A convolutional recurrent net with context gates; frame-wise and clip-wise probabilities."""

    def __init__(self, width, classes=10):
        super().__init__()
        layers, before = [], 1
        for i in range(7):
            now = min(width * 2**i, 8 * width)
            layers += [nn.Conv2d(before, now, 3, padding=1), nn.BatchNorm2d(now, eps=1e-3)]
            layers += [ContextGate(now), nn.Dropout(0.5)]
            layers += [nn.AvgPool2d((2, 2) if i < 2 else (1, 2))]
            before = now
        self.cnn = nn.Sequential(*layers)
        self.rnn = nn.GRU(before, before, 2, batch_first=True, bidirectional=True)
        self.strong, self.attention = nn.Linear(2 * before, classes), nn.Linear(2 * before, classes)

    def forward(self, mel):
        h = self.cnn(mel[:, None]).squeeze(-1).transpose(1, 2)
        h = F.dropout(self.rnn(h)[0], 0.5, self.training)
        strong = self.strong(h).sigmoid()
        weight = self.attention(h).softmax(-1).clamp(1e-7, 1)
        return strong, (strong * weight).sum(1) / weight.sum(1)


class ContextGate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x * self.linear(x.permute(0, 2, 3, 1)).sigmoid().permute(0, 3, 1, 2)


@job()
def sound_events_mean_teacher():
    """Half of the clips have no labels: a teacher, averaged in place, gives them; median filters at the end."""
    model = SoundEvents(pick(16, 4)).to(device)
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 50))
    for epoch in range(2):
        model.train()
        for _ in range(2):
            mel = torch.randn(pick(48, 4), pick(628, 16), 128, device=device)
            with torch.no_grad():
                noisy = mel + 0.3 * torch.randn_like(mel)
                strong_t, weak_t = teacher(noisy)
            strong, weak = model(mel)
            part = len(mel) // 4
            labels = (torch.rand(part, strong.shape[1], 10, device=device) < 0.1).float()
            loss = F.binary_cross_entropy(strong[:part], labels)
            loss = loss + F.binary_cross_entropy(weak[part : 2 * part], labels.amax(1))
            loss = loss + 2 * (F.mse_loss(strong, strong_t) + F.mse_loss(weak, weak_t))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warmup.step()
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), model.parameters()):
                    slow.mul_(0.999).add_(fast, alpha=0.001)
            yield loss.item()
        teacher.eval()
        with torch.no_grad():
            mel = torch.randn(pick(96, 3), pick(628, 16), 128, device=device)
            strong, _ = teacher(mel)
            padded = F.pad(strong.transpose(1, 2), (3, 3), mode="reflect")
            smooth = padded.unfold(2, 7, 1).median(-1).values > 0.5
            events = smooth.cpu().numpy().sum()
        teacher.train()
        yield int(events)


@job()
def neural_beamformer():
    """Masks give complex covariances of eight microphones; MVDR filters by a solve in complex128."""
    mics, n_fft, hop, width = 8, pick(512, 64), pick(128, 16), pick(400, 16)
    bins = n_fft // 2 + 1
    rnn = nn.LSTM(bins, width, 3, batch_first=True, bidirectional=True, dropout=0.3)
    masks = nn.Linear(2 * width, 2 * bins)
    model = nn.ModuleList([rnn, masks]).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-4, momentum=0.5, centered=True)
    window = torch.hann_window(n_fft, device=device).sqrt()
    for seconds in pick((6, 4, 7.5, 5), (0.2, 0.15)):
        batch = pick(12, 2)
        clean = torch.randn(batch, mics, int(16000 * seconds), device=device)
        noise = torch.randn_like(clean)
        spec = torch.stft(
            (clean + noise).flatten(0, 1), n_fft, hop, window=window, return_complex=True
        ).unflatten(0, (batch, mics))
        size = spec.abs().clamp(min=1e-8).log().transpose(2, 3)
        h, _ = rnn(size.flatten(0, 1))
        mask = masks(h).sigmoid().unflatten(0, (batch, mics)).mean(1)
        speech, other = mask.transpose(1, 2).chunk(2, 1)
        x = spec.permute(0, 2, 1, 3).to(torch.complex128)

        def covariance(weight):
            weighted = x * weight[:, :, None].to(x.dtype)
            return weighted @ x.mH / weight.sum(-1)[..., None, None].clamp(min=1e-6)

        eye = torch.eye(mics, dtype=x.dtype, device=device)
        rs, rn = covariance(speech), covariance(other)
        trace = rn.diagonal(dim1=-2, dim2=-1).sum(-1).real[..., None, None]
        ratio = torch.linalg.solve(rn + (1e-6 * trace + 1e-8) * eye, rs)
        w = ratio[..., 0] / (ratio.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None] + 1e-8)
        out = torch.einsum("bfm,bfmt->bft", w.conj(), x).to(torch.complex64)
        wave = torch.istft(out, n_fft, hop, window=window, length=clean.shape[-1])
        target = clean[:, 0]
        scale = (wave * target).sum(-1, keepdim=True) / target.square().sum(-1, keepdim=True)
        error = (wave - scale * target).square().sum(-1)
        loss = -10 * torch.log10((scale * target).square().sum(-1) / (error + 1e-8) + 1e-8).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        yield norm.item()


if __name__ == "__main__":
    main()
