"""Loops that generate: tokens with each kind of cache, images by diffusion, characters by an RNN."""

import torch
import transformers as T
from torch import nn
from torch.nn import functional as F

from job import device, job, main, pick
from parts import GPT, Block, CrossUNet, built


def llama(depth=None, width=None, dtype=torch.bfloat16, cls=None, **more):
    width = width or pick(1536, 64)
    config = T.LlamaConfig(
        vocab_size=pick(32000, 128),
        hidden_size=width,
        intermediate_size=width * 3,
        num_hidden_layers=depth or pick(16, 2),
        num_attention_heads=pick(12, 4),
        num_key_value_heads=4,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        **more,
    )
    return built(cls or T.LlamaForCausalLM, config, dtype).eval()


def prompt(batch, length, vocab=None):
    return torch.randint(3, vocab or pick(32000, 128), (batch, length), device=device)


@job()
def llama_sampled_dynamic_cache():
    """Chat completions: prompts of several lengths, padded on the left, sampled with top-p."""
    model = llama()
    new = pick(64, 4)
    for length in (pick(512, 8), pick(300, 5), pick(900, 12)):
        ids = prompt(16, length)
        mask = torch.ones_like(ids)
        for i in range(len(ids)):
            mask[i, : i * length // 32] = 0
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                top_p=0.9,
                temperature=0.7,
                max_new_tokens=new,
            )
        yield out.shape[1]


@job()
def gpt2_beam_search():
    """Beam search: the cache is reordered after each token."""
    config = T.GPT2Config(
        n_layer=pick(12, 2), eos_token_id=None, bos_token_id=1, pad_token_id=0, vocab_size=50257
    )
    model = built(T.GPT2LMHeadModel, config).eval()
    for length in (pick(256, 8), pick(400, 10)):
        ids = prompt(pick(16, 2), length)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=5,
            max_new_tokens=pick(40, 4),
            do_sample=False,
            early_stopping=False,
        )
        yield


@job()
def t5_summaries_greedy():
    """An encoder and a decoder with two caches, half precision, over a data set sorted by length."""
    config = T.T5Config(
        d_model=pick(768, 64),
        d_ff=pick(2048, 64),
        d_kv=64,
        num_layers=pick(12, 2),
        num_heads=pick(12, 2),
        decoder_start_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = built(T.T5ForConditionalGeneration, config, torch.float16).eval()
    for length in (pick(768, 12), pick(512, 8), pick(128, 4)):
        ids = prompt(pick(32, 2), length, 32000)
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=pick(48, 4),
                min_new_tokens=pick(48, 4),
                num_beams=1,
                do_sample=False,
            )
        yield


@job()
def llama_static_cache():
    """A cache of fixed size, allocated once for the longest answer."""
    model = llama()
    for batch in (pick(8, 1), pick(24, 2)):
        ids = prompt(batch, pick(640, 8))
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=pick(64, 4),
            cache_implementation="static",
            do_sample=False,
            disable_compile=True,
        )
        yield


@job()
def assisted_decoding():
    """Speculative decoding: a small model drafts, a large one checks."""
    model = llama(depth=pick(24, 2), width=pick(2304, 64))
    draft = llama(depth=pick(4, 1), width=pick(768, 64))
    for _ in range(2):
        ids = prompt(1, pick(1200, 16))
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=draft,
            max_new_tokens=pick(40, 4),
            do_sample=False,
        )
        yield


@job()
def mistral_sliding_window():
    """The cache stops growing at the attention window."""
    width = pick(1024, 64)
    config = T.MistralConfig(
        vocab_size=pick(32000, 128),
        hidden_size=width,
        intermediate_size=width * 3,
        num_hidden_layers=pick(16, 2),
        num_attention_heads=pick(16, 4),
        num_key_value_heads=4,
        sliding_window=pick(256, 6),
        eos_token_id=None,
        bos_token_id=1,
        pad_token_id=0,
    )
    model = built(T.MistralForCausalLM, config, torch.bfloat16).eval()
    for length in (pick(200, 4), pick(1024, 12)):
        ids = prompt(pick(32, 2), length)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=pick(100, 4),
            do_sample=True,
            top_k=50,
        )
        yield


class CachedAttention(nn.Module):
    """Attention whose keys and values are concatenated at each token, as in many small repositories."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cache):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


@job()
def cache_by_concatenation():
    """A decoder written by hand; logits of every token are kept for the log-probabilities."""
    width, depth, vocab = pick(1024, 64), pick(12, 2), pick(50304, 128)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = CachedAttention(width, 16)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x, cache):
            y, cache = self.attention(self.a(x), cache)
            x = x + y
            return x + self.mlp(self.b(x)), cache

    embed = nn.Embedding(vocab, width).to(device).half()
    layers = nn.ModuleList([Layer() for _ in range(depth)]).to(device).half()
    for _ in range(2):
        ids, caches, kept = prompt(pick(24, 2), pick(384, 8), vocab), [None] * depth, []
        with torch.no_grad():
            for _ in range(pick(96, 5)):
                x = embed(ids if not kept else ids[:, -1:])
                for i, layer in enumerate(layers):
                    x, caches[i] = layer(x, caches[i])
                logits = x[:, -1] @ embed.weight.T
                kept.append(logits.float().log_softmax(-1))
                token = torch.multinomial(kept[-1].exp(), 1)
                ids = torch.cat([ids, token], 1)
            scores = torch.stack(kept, 1).gather(2, ids[:, -len(kept) :, None]).squeeze(2)
        yield scores.shape[1]


@job()
def latent_diffusion_sampling():
    """DDIM with classifier-free guidance in half precision, and a decoder to pixels."""
    text = pick(768, 32)
    unet = CrossUNet(4, pick((256, 512, 1024), (16, 32)), text, pick(16, 4)).to(device).half()
    widths = pick((512, 512, 256, 128), (16, 16))
    decoder = [nn.Conv2d(4, widths[0], 3, padding=1)]
    for i, o in zip(widths, (*widths[1:], 64)):
        decoder += [nn.GroupNorm(16, i), nn.SiLU(), nn.Upsample(scale_factor=2)]
        decoder += [nn.Conv2d(i, o, 3, padding=1)]
    decoder = nn.Sequential(*decoder, nn.SiLU(), nn.Conv2d(64, 3, 3, padding=1)).to(device).half()
    half, res = torch.float16, pick(64, 8)
    for images in (pick(4, 1), pick(6, 2)):
        with torch.inference_mode():
            condition = torch.randn(2 * images, 77, text, device=device, dtype=half)
            x = torch.randn(images, 4, res, res, device=device, dtype=half)
            for step in range(pick(12, 2)):
                t = torch.full((2 * images,), 999 - 80 * step, device=device)
                without, given = unet(torch.cat([x, x]), t, condition).chunk(2)
                noise = without + 7.5 * (given - without)
                clean = ((x - 0.6 * noise) / 0.8).clamp(-4, 4)
                x = 0.85 * clean + 0.52 * noise
            pictures = torch.cat([decoder(one[None]) for one in x])
            pictures = ((pictures.float() + 1) * 127.5).clamp(0, 255).to(torch.uint8).cpu()
        yield len(pictures)


@job()
def flow_matching_dit_sampling():
    """A diffusion transformer, Heun's method: two evaluations a step."""
    width = pick(1152, 64)

    class DiT(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(4, width, 2, 2)
            self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
            self.blocks = nn.ModuleList([Block(width, 16) for _ in range(pick(18, 2))])
            self.out = nn.Linear(width, 16)

        def forward(self, x, t):
            h = self.patch(x)
            shape = h.shape[2:]
            h = h.flatten(2).transpose(1, 2) + self.time(t[:, None])[:, None]
            for block in self.blocks:
                h = block(h)
            h = self.out(h).transpose(1, 2).unflatten(2, shape)
            return F.pixel_shuffle(h, 2)

    model = DiT().to(device).eval()
    for _ in range(2):
        x = torch.randn(pick(64, 2), 4, pick(64, 8), pick(64, 8), device=device)
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
            for i in range(pick(6, 2)):
                t = torch.full((len(x),), i / 6, device=device)
                first = model(x, t).float()
                second = model(x + first / 6, t + 1 / 6).float()
                x = x + (first + second) / 12
        yield


@job()
def character_rnn_sampling():
    """A character model is trained for two steps, then writes, one character at a time."""
    vocab, width = 256, pick(1024, 32)
    embed = nn.Embedding(vocab, width).to(device)
    rnn = nn.LSTM(width, width, 3, batch_first=True, dropout=0.1).to(device)
    head = nn.Linear(width, vocab).to(device)
    modules = nn.ModuleList([embed, rnn, head])
    optimizer = torch.optim.Adam(modules.parameters(), lr=2e-3)
    for _ in range(2):
        modules.train()
        for _ in range(2):
            x = torch.randint(0, vocab, (pick(128, 2), pick(257, 9)), device=device)
            logits = head(rnn(embed(x[:, :-1]))[0])
            loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(modules.parameters(), 5.0)
            optimizer.step()
        modules.eval()
        with torch.no_grad():
            token = torch.zeros(64, 1, dtype=torch.long, device=device)
            state, written = None, []
            for _ in range(pick(300, 4)):
                out, state = rnn(embed(token), state)
                token = torch.multinomial((head(out[:, -1]) / 0.8).softmax(-1), 1)
                written.append(token)
            text = torch.cat(written, 1).cpu()
        yield text.shape[1]


@job()
def best_of_n_reranking():
    """Samples without a cache from a small GPT; a reward model ranks the answers, batch by batch."""
    vocab = pick(32000, 100)
    policy = GPT(vocab, pick(768, 36), pick(12, 2), 12, 512).to(device).bfloat16().eval()
    reward = nn.Sequential(nn.Embedding(vocab, 768), nn.Linear(768, 1)).to(device)
    for _ in range(2):
        with torch.no_grad():
            ids = prompt(pick(48, 2), pick(128, 6), vocab)
            for _ in range(pick(32, 3)):
                logits = policy(ids[:, -512:])[:, -1].float()
                best = logits.topk(40, -1)
                chosen = torch.multinomial(best.values.softmax(-1), 1)
                ids = torch.cat([ids, best.indices.gather(1, chosen)], 1)
            score = torch.cat([reward(part).mean((1, 2)) for part in ids.split(8)])
            order = score.argsort(descending=True)
        yield int(order.numel())


if __name__ == "__main__":
    main()
