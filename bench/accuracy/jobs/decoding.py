"""Generation and inference: paged caches, states instead of caches, drafts, int8, captions, ranking, images."""

import heapq
import math

import torch
import transformers as T
from torch import nn
from torch.nn import functional as F

from job import device, job, main, pick
from parts import Block, CrossUNet, built


def rotate(x, at):
    """Rotary positions; x is batch × heads × length × width, at is batch × length."""
    half = x.shape[-1] // 2
    freqs = 10000 ** (-torch.arange(half, device=x.device) / half)
    angle = at[:, None, :, None].float() * freqs
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.split(half, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.to(x.dtype) * self.weight


class PagedLayer(nn.Module):
    """A decoder layer that writes keys and values to pages of a shared cache."""

    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 5 * width, bias=False)
        self.down = nn.Linear(5 * width // 2, width, bias=False)

    def mlp(self, x):
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)

    def project(self, x, at):
        h = self.norm1(x)
        q = self.q(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(h).unflatten(-1, (2 * self.groups, -1)).transpose(1, 2).chunk(2, 1)
        return rotate(q, at), rotate(k, at), v

    def prefill(self, x, at, cache, slots):
        q, k, v = self.project(x, at)
        cache.view(2, -1, self.groups, self.size)[:, slots] = torch.stack(
            [k[0].transpose(0, 1), v[0].transpose(0, 1)]
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.mlp(x + self.o(y.transpose(1, 2).flatten(2)))

    def decode(self, x, at, cache, tables, slots, mask):
        q, k, v = self.project(x, at)
        flat = cache.view(2, -1, self.groups, self.size)
        flat[0].index_copy_(0, slots, k[:, :, 0])
        flat[1].index_copy_(0, slots, v[:, :, 0])
        keys, values = (part[tables].flatten(1, 2).transpose(1, 2) for part in cache)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        return self.mlp(x + self.o(y.transpose(1, 2).flatten(2)))


@job()
def continuous_batching_paged_cache():
    """A server: requests come and go, a scheduler on the host hands out pages of 16 tokens.

    Lengths of the answers are drawn by the host, so that no value of the device steers a shape.
    """
    width, heads, groups, depth = pick(2048, 64), 16, 4, pick(12, 2)
    vocab, page, pages = pick(32000, 100), 16, pick(4096, 64)
    with torch.device(device):
        embed = nn.Embedding(vocab, width)
        layers = nn.ModuleList([PagedLayer(width, heads, groups) for _ in range(depth)])
        norm, head = RMSNorm(width), nn.Linear(width, vocab, bias=False)
    nn.ModuleList([embed, layers, norm, head]).bfloat16().requires_grad_(False)
    caches = [
        torch.zeros(2, pages, page, groups, width // heads, device=device, dtype=torch.bfloat16)
        for _ in range(depth)
    ]
    free = list(range(1, pages))
    heapq.heapify(free)
    draw = torch.Generator().manual_seed(3)
    number = lambda low, high: int(torch.randint(low, high, (1,), generator=draw))
    waiting = [
        (number(*pick((80, 1400), (3, 40))), number(*pick((10, 60), (2, 6))))
        for _ in range(pick(60, 6))
    ]
    running = []
    while waiting or running:
        for _ in range(pick(24, 3)):
            while waiting and len(running) < pick(32, 3):
                length, answer = waiting[0]
                need = (length + answer) // page + 1
                if need > len(free):
                    break
                waiting.pop(0)
                held = [heapq.heappop(free) for _ in range(need)]
                ids = torch.randint(0, vocab, (1, length)).to(device)
                at = torch.arange(length, device=device)[None]
                table = torch.tensor(held, device=device)
                slots = table[at[0] // page] * page + at[0] % page
                x = embed(ids)
                for layer, cache in zip(layers, caches):
                    x = layer.prefill(x, at, cache, slots)
                token = head(norm(x[:, -1])).argmax(-1)
                running.append(dict(length=length, left=answer, pages=held, token=token))
            if not running:
                break
            most = max(len(r["pages"]) for r in running)
            tables = torch.tensor([r["pages"] + [0] * (most - len(r["pages"])) for r in running])
            lengths = torch.tensor([r["length"] for r in running])
            tables, lengths = tables.to(device), lengths.to(device)
            slots = tables.gather(1, lengths[:, None] // page)[:, 0] * page + lengths % page
            mask = torch.arange(most * page, device=device) <= lengths[:, None]
            x = embed(torch.stack([r["token"] for r in running]))
            for layer, cache in zip(layers, caches):
                x = layer.decode(x, lengths[:, None], cache, tables, slots, mask[:, None, None])
            tokens = head(norm(x[:, -1])).float().softmax(-1).multinomial(1)
            still = []
            for r, token in zip(running, tokens):
                r["length"], r["left"], r["token"] = r["length"] + 1, r["left"] - 1, token
                if r["left"]:
                    still.append(r)
                else:
                    for one in r["pages"]:
                        heapq.heappush(free, one)
            running = still
        yield len(running)


class SelectiveLayer(nn.Module):
    """A state-space layer in the manner of Mamba, with a scan in chunks and a step for one token."""

    def __init__(self, width, state=16, kernel=4):
        super().__init__()
        self.inner, self.state, self.kernel, self.rank = 2 * width, state, kernel, width // 16
        self.norm = RMSNorm(width)
        self.into = nn.Linear(width, 2 * self.inner, bias=False)
        self.conv = nn.Conv1d(self.inner, self.inner, kernel, groups=self.inner)
        self.select = nn.Linear(self.inner, self.rank + 2 * state, bias=False)
        self.delta = nn.Linear(self.rank, self.inner)
        decay = torch.arange(1, state + 1).float().log().repeat(self.inner, 1)
        self.decay, self.skip = nn.Parameter(decay), nn.Parameter(torch.ones(self.inner))
        self.out = nn.Linear(self.inner, width, bias=False)

    def parameters_of(self, x):
        delta, b, c = self.select(x).split([self.rank, self.state, self.state], -1)
        return F.softplus(self.delta(delta)).float(), b.float(), c.float()

    def scan(self, x, chunk):
        """The whole prompt; returns the output and what a later step needs."""
        u, z = self.into(self.norm(x)).chunk(2, -1)
        padded = F.pad(u.transpose(1, 2), (self.kernel - 1, 0))
        u = F.silu(self.conv(padded)).transpose(1, 2)
        a = -self.decay.float().exp()
        h = u.new_zeros(len(u), self.inner, self.state, dtype=torch.float32)
        outs = []
        for part in u.split(chunk, 1):
            delta, b, c = self.parameters_of(part)
            log = (delta[..., None] * a).cumsum(1)
            push = delta[..., None] * b[:, :, None] * part.float()[..., None]
            h_all = (push * torch.exp(-log.clamp(min=-20))).cumsum(1) + h[:, None]
            h_all = h_all * log.exp()
            outs.append(torch.einsum("blds,bls->bld", h_all, c))
            h = h_all[:, -1].clone()
        y = torch.cat(outs, 1).to(x.dtype) + u * self.skip
        return x + self.out(y * F.silu(z)), (padded[..., 1 - self.kernel :].clone(), h)

    def step(self, x, past):
        window, h = past
        u, z = self.into(self.norm(x)).chunk(2, -1)
        full = torch.cat([window, u[..., None]], -1)
        window.copy_(full[..., 1:])
        u = F.silu((full * self.conv.weight[:, 0]).sum(-1) + self.conv.bias)
        delta, b, c = self.parameters_of(u)
        h.mul_(torch.exp(delta[..., None] * -self.decay.float().exp()))
        h.addcmul_(delta[..., None] * u.float()[..., None], b[:, None])
        y = (h @ c[..., None])[..., 0].to(x.dtype) + u * self.skip
        return x + self.out(y * F.silu(z))


@job()
def state_space_decoding():
    """Mamba by hand: the prompt by a scan in chunks, then tokens by a captured graph that updates states in place."""
    width, vocab = pick(1024, 32), pick(50280, 100)
    with torch.device(device):
        embed = nn.Embedding(vocab, width)
        layers = nn.ModuleList([SelectiveLayer(width) for _ in range(pick(16, 2))])
        norm = RMSNorm(width)
    nn.ModuleList([embed, layers, norm]).half().eval()
    for batch, length in pick(((8, 1000), (16, 640), (4, 1500)), ((2, 11), (3, 7))):
        ids = torch.randint(0, vocab, (batch, length), device=device)
        with torch.inference_mode():
            make = lambda *shape, dtype: torch.zeros(batch, *shape, device=device, dtype=dtype)
            past = [
                (
                    make(layer.inner, layer.kernel - 1, dtype=torch.float16),
                    make(layer.inner, layer.state, dtype=torch.float32),
                )
                for layer in layers
            ]
            token = torch.zeros(batch, dtype=torch.long, device=device)

            def step():
                x = embed(token)
                for layer, state in zip(layers, past):
                    x = layer.step(x, state)
                return F.linear(norm(x), embed.weight).float()

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = step()
            x = embed(ids)
            for layer, own in zip(layers, past):
                x, state = layer.scan(x, pick(128, 4))
                for place, value in zip(own, state):
                    place.copy_(value)
            now, written = F.linear(norm(x[:, -1]), embed.weight).float(), []
            for _ in range(pick(40, 3)):
                top = now.topk(50)
                choice = top.values.softmax(-1).multinomial(1)
                token.copy_(top.indices.gather(1, choice)[:, 0])
                written.append(token.clone())
                graph.replay()
                now = logits
            text = torch.stack(written, 1).tolist()
        yield len(text)


@job()
def medusa_draft_heads():
    """Extra heads draft four tokens; one pass checks them, the cache is cut to what was accepted.

    How many tokens are accepted depends on values: the number of passes does, the cache's size does not.
    """
    width, depth, heads, vocab = pick(2048, 64), pick(14, 2), 16, pick(32000, 50)
    room = pick(1600, 64)

    class Layer(Block):
        def cached(self, x, keys, values, start):
            end = start + x.shape[1]
            q, k, v = (self.split(t) for t in self.qkv(self.norm1(x)).chunk(3, -1))
            keys[:, :, start:end], values[:, :, start:end] = k, v
            at = torch.arange(end, device=x.device)
            mask = at <= at[start:, None]
            y = F.scaled_dot_product_attention(
                q, keys[:, :, :end], values[:, :, :end], attn_mask=mask
            )
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.mlp(self.norm2(x))

    with torch.device(device):
        embed = nn.Embedding(vocab, width)
        layers = nn.ModuleList([Layer(width, heads) for _ in range(depth)])
        head = nn.Linear(width, vocab, bias=False)
        drafts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, vocab, bias=False))
            for _ in range(4)
        )
    nn.ModuleList([embed, layers, head, drafts]).to(torch.bfloat16)

    @torch.no_grad()
    def answer(length, new):
        cache = torch.empty(depth, 2, 1, heads, room, width // heads, device=device).bfloat16()
        ids = torch.randint(0, vocab, (1, length), device=device)
        x = embed(ids)
        for layer, (keys, values) in zip(layers, cache):
            x = layer.cached(x, keys, values, 0)
        start, last, done = length, x[:, -1:], []
        while len(done) < new:
            first = head(last).argmax(-1)
            guess = torch.cat([first] + [d(last).argmax(-1) for d in drafts], 1)
            x = embed(guess)
            for layer, (keys, values) in zip(layers, cache):
                x = layer.cached(x, keys, values, start)
            agreed = (head(x[:, :-1]).argmax(-1) == guess[:, 1:]).cumprod(1).sum().item()
            done += guess[0, : agreed + 1].tolist()
            last = x[:, agreed : agreed + 1]
            start += agreed + 1
        return done

    for length in pick((1000, 300, 1400), (9, 4)):
        yield len(answer(length, pick(60, 6)))


class Int8Linear(nn.Module):
    """Weights as int8 with a scale for each row: int8 products for prompts, dequantized for tokens."""

    def __init__(self, linear):
        super().__init__()
        weight = linear.weight.data.float()
        scale = weight.abs().amax(1) / 127
        self.register_buffer("scale", scale.to(linear.weight.dtype))
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        if len(flat) <= 32:
            return F.linear(x, self.weight.to(x.dtype)) * self.scale
        size = flat.abs().amax(1, keepdim=True).float() / 127
        rounded = (flat / size).round().clamp(-128, 127).to(torch.int8)
        out = torch._int_mm(rounded, self.weight.t())
        out = out.float() * size * self.scale.float()
        return out.to(x.dtype).view(*x.shape[:-1], -1)


@job()
def int8_weights_qwen():
    """Each linear layer is quantized in turn as the model lies on the GPU; then greedy answers."""
    width = pick(2048, 64)
    config = T.Qwen2Config(
        vocab_size=pick(64000, 100),
        hidden_size=width,
        intermediate_size=pick(8192, 128),
        num_hidden_layers=pick(18, 2),
        num_attention_heads=16,
        num_key_value_heads=4,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = built(T.Qwen2ForCausalLM, config, torch.bfloat16).eval()
    for module in list(model.model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child))
    torch.cuda.empty_cache()
    yield "quantized"
    for batch, length in pick(((8, 1024), (16, 400), (1, 3000)), ((2, 20), (1, 40))):
        ids = torch.randint(3, config.vocab_size, (batch, length), device=device)
        with torch.inference_mode():
            out = model(ids, use_cache=True, logits_to_keep=1)
            for _ in range(pick(24, 3)):
                token = out.logits[:, -1:].argmax(-1)
                out = model(token, past_key_values=out.past_key_values, use_cache=True)
        del out
        yield batch


@job()
def captions_with_sampled_beams():
    """ViT and GPT-2 with cross-attention: several captions for each picture by sampled beams."""
    config = T.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        T.ViTConfig(
            image_size=pick(384, 32),
            num_hidden_layers=pick(12, 2),
            hidden_size=pick(768, 48),
            intermediate_size=pick(3072, 96),
        ),
        T.GPT2Config(
            n_layer=pick(12, 2),
            n_embd=pick(768, 48),
            add_cross_attention=True,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        ),
    )
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    model = built(T.VisionEncoderDecoderModel, config, torch.float16).eval()
    model.generation_config.eos_token_id = None
    for batch in pick((24, 40, 8), (2, 1)):
        pixels = torch.randn(batch, 3, pick(384, 32), pick(384, 32), device=device).half()
        out = model.generate(
            pixels,
            num_beams=4,
            num_return_sequences=4,
            do_sample=True,
            temperature=1.2,
            max_new_tokens=pick(30, 3),
            output_scores=True,
            return_dict_in_generate=True,
        )
        best = out.sequences_scores.view(batch, 4).argmax(1)
        yield out.sequences.view(batch, 4, -1)[torch.arange(batch, device=device), best].shape[1]


@job()
def search_then_rerank():
    """A search service: queries against an index on the GPU, candidates ranked again by a cross-encoder."""
    small_width = pick(384, 24)
    encoder = built(
        T.BertModel,
        T.BertConfig(
            hidden_size=small_width,
            num_hidden_layers=pick(6, 2),
            num_attention_heads=12,
            intermediate_size=4 * small_width,
        ),
        torch.float16,
    ).eval()
    ranker = built(
        T.XLMRobertaForSequenceClassification,
        T.XLMRobertaConfig(
            vocab_size=pick(250002, 200),
            hidden_size=pick(768, 24),
            num_hidden_layers=pick(12, 2),
            num_attention_heads=12,
            intermediate_size=pick(3072, 48),
            num_labels=1,
            max_position_embeddings=514,
        ),
        torch.float16,
    ).eval()
    documents, k = pick(2_000_000, 500), pick(100, 6)
    index = torch.empty(documents, small_width, dtype=torch.float16, device=device)
    for part in index.split(pick(250_000, 100)):
        part.copy_(F.normalize(torch.randn(part.shape, device=device), dim=1))
    lengths = torch.randint(*pick((40, 440), (3, 20)), (documents,))
    for queries in pick((16, 64, 32), (2, 3)):
        with torch.inference_mode():
            ids = torch.randint(5, pick(30000, 100), (queries, pick(24, 5)), device=device)
            mask = torch.ones_like(ids)
            state = encoder(ids, attention_mask=mask).last_hidden_state
            vectors = F.normalize(
                (state * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=1
            )
            best, found = [], []
            for first in range(0, documents, pick(500_000, 200)):
                scores = vectors @ index[first : first + pick(500_000, 200)].T
                top = scores.topk(k)
                best.append(top.values)
                found.append(top.indices + first)
            top = torch.cat(best, 1).topk(k)
            found = torch.cat(found, 1).gather(1, top.indices).cpu()
            # The texts are those of evenly spaced documents, so that lengths do not hang on scores.
            spaced = torch.arange(queries * k) * (documents // (queries * k))
            order = lengths[spaced].argsort(descending=True)
            scores = torch.empty(queries * k)
            for chunk in order.split(pick(128, 4)):
                size = lengths[spaced[chunk]]
                ids = torch.randint(5, pick(250000, 200), (len(chunk), int(size.max())))
                mask = torch.arange(ids.shape[1]) < size[:, None]
                ids[~mask] = 1
                out = ranker(ids.to(device), attention_mask=mask.long().to(device)).logits
                scores[chunk] = out[:, 0].float().cpu()
            ranked = found.gather(1, scores.view(queries, k).argsort(1, descending=True))
        yield ranked[0, 0].item()


@job()
def multistep_sampler_tiled_decoder():
    """DPM-Solver++ (2M) with Karras' noise levels, then a decoder that works tile by tile with blending."""
    text = pick(640, 32)
    with torch.device(device):
        unet = CrossUNet(4, pick((320, 640, 960), (16, 32)), text, pick(10, 4)).bfloat16().eval()
        widths = pick((512, 512, 256), (16, 16))
        layers = [nn.Conv2d(4, widths[0], 3, padding=1)]
        for i, o in zip(widths, (*widths[1:], pick(128, 16))):
            layers += [nn.GroupNorm(16, i), nn.SiLU(), nn.Conv2d(i, i, 3, padding=1)]
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 3, padding=1)]
        decoder = nn.Sequential(*layers, nn.SiLU(), nn.Conv2d(o, 3, 3, padding=1))
    decoder = decoder.to(memory_format=torch.channels_last)
    scale = 2 ** (len(widths))

    def denoise(x, sigma, context):
        scaled = (x / (sigma**2 + 1).sqrt()).bfloat16()
        t = (sigma.log() * 250).to(device).float().expand(2 * len(x))
        noise = unet(torch.cat([scaled] * 2), t, context).float()
        without, given = noise.chunk(2)
        return x - sigma * (without + 6.0 * (given - without))

    def tiles(latent, size, overlap):
        b, _, h, w = latent.shape
        out = torch.zeros(b, 3, h * scale, w * scale, device=device)
        weight = torch.zeros_like(out[:1, :1])
        ramp = torch.hann_window(size * scale, periodic=False, device=device) + 1e-3
        window = ramp[:, None] * ramp
        for top in range(0, h - overlap, size - overlap):
            for left in range(0, w - overlap, size - overlap):
                top, left = min(top, h - size), min(left, w - size)
                piece = latent[:, :, top : top + size, left : left + size]
                ys = slice(top * scale, (top + size) * scale)
                xs = slice(left * scale, (left + size) * scale)
                out[:, :, ys, xs] += decoder(piece) * window
                weight[:, :, ys, xs] += window
        return out / weight

    for h, w in pick(((96, 96), (128, 80), (64, 160)), ((16, 16), (16, 24))):
        with torch.no_grad():
            context = torch.randn(pick(8, 4), 77, text, device=device, dtype=torch.bfloat16)
            ramp = torch.linspace(0, 1, pick(14, 3), dtype=torch.float64)
            sigmas = (14.6 ** (1 / 7) + ramp * (0.03 ** (1 / 7) - 14.6 ** (1 / 7))) ** 7
            sigmas = torch.cat([sigmas, sigmas.new_zeros(1)]).to(device)
            x = torch.randn(len(context) // 2, 4, h, w, device=device) * sigmas[0].float()
            before = None
            for i in range(len(sigmas) - 1):
                now = denoise(x, sigmas[i].float(), context)
                t, after = -sigmas[i].log(), -sigmas[i + 1].log()
                step = after - t
                mixed = now
                if before is not None and i < len(sigmas) - 2:
                    r = (t + sigmas[i - 1].log()) / step
                    mixed = (1 + 1 / (2 * r)) * now - 1 / (2 * r) * before
                keep = (sigmas[i + 1] / sigmas[i]).float()
                x = keep * x - (torch.expm1(-step) * mixed).float()
                before = now
            pictures = tiles(x, pick(48, 8), pick(16, 4))
            pictures = (pictures.clamp(-1, 1) * 127.5 + 127.5).byte().permute(0, 2, 3, 1).cpu()
        yield tuple(pictures.shape)


@job()
def masked_image_tokens():
    """MaskGIT: all tokens of a picture at once, the most certain ones stay, on a cosine schedule."""
    vocab, width, side = pick(8192, 64), pick(1024, 48), pick(32, 4)
    with torch.device(device):
        embed = nn.Embedding(vocab + 1, width)
        place = nn.Parameter(torch.randn(side * side, width) * 0.02)
        kind = nn.Embedding(1000, width)
        blocks = nn.ModuleList([Block(width, pick(16, 4)) for _ in range(pick(20, 2))])
        norm, head = nn.LayerNorm(width), nn.Linear(width, vocab)
        decoder = nn.Sequential(
            nn.Embedding(vocab, 256),
            nn.Unflatten(1, (side, side)),
        )
        pixels = nn.Sequential(
            nn.ConvTranspose2d(256, 256, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose2d(256, 128, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose2d(128, 3, 4, 2, 1),
        )
    rounds = pick(10, 3)
    for batch in pick((32, 64, 48), (2, 3)):
        with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
            label = kind(torch.randint(0, 1000, (batch, 1), device=device))
            tokens = torch.full((batch, side * side), vocab, device=device)
            for step in range(rounds):
                x = embed(tokens) + place + label
                for block in blocks:
                    x = block(x)
                logits = head(norm(x)).float()
                logits = logits - torch.log(-torch.log(torch.rand_like(logits) + 1e-9) + 1e-9)
                sure, choice = logits.log_softmax(-1).max(-1)
                hidden = tokens == vocab
                sure = sure.masked_fill(~hidden, math.inf)
                tokens = torch.where(hidden, choice, tokens)
                left = int(side * side * math.cos(math.pi / 2 * (step + 1) / rounds))
                if left:
                    least = sure.topk(left, largest=False).indices
                    tokens = tokens.scatter(1, least, vocab)
            pictures = pixels(decoder(tokens).permute(0, 3, 1, 2)).float().sigmoid()
        yield (pictures * 255).to(torch.uint8).cpu().shape[0]


if __name__ == "__main__":
    main()
