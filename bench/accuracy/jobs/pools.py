"""More settings of the allocator and habits around it: combined options, pools in turns, searches, serving."""

import gc

import torch
import torchvision
import transformers as T
from torch import nn
from torch.nn import functional as F

from job import device, job, main, pick, small
from parts import CrossUNet, built

cuda = torch.cuda
CONF = "PYTORCH_CUDA_ALLOC_CONF"


@job(PYTORCH_ALLOC_CONF="expandable_segments:True,garbage_collection_threshold:0.7")
def expandable_collected_seq2seq():
    """Buckets of sentences by length, under a fraction of the device; the newer name of the variable."""
    cuda.set_per_process_memory_fraction(0.16)
    config = T.BartConfig(
        vocab_size=pick(32000, 100),
        d_model=pick(768, 24),
        encoder_layers=pick(6, 1),
        decoder_layers=pick(6, 1),
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=pick(3072, 32),
        decoder_ffn_dim=pick(3072, 32),
        use_cache=False,
    )
    model = built(T.BartForConditionalGeneration, config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0.01)
    for batch, source, target in (
        (64, 90, 30),
        (40, 250, 70),
        (16, 600, 110),
        (56, 130, 50),
        (24, 450, 150),
        (8, 900, 300),
    ):
        shape = pick(batch, 2)
        ids = torch.randint(4, config.vocab_size, (shape, pick(source, 9)), device=device)
        labels = torch.randint(4, config.vocab_size, (shape, pick(target, 5)), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job(**{CONF: "max_split_size_mb:200,roundup_power2_divisions:4"})
def unet_resolutions_split_and_rounded():
    """A latent diffusion model trained on buckets of shapes, as for pictures of many formats."""
    unet = CrossUNet(4, pick((160, 320, 640), (16, 32)), pick(768, 32), pick(10, 4)).to(device)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    kept = torch.linspace(0.999, 0.01, 1000, device=device).cumprod(0)
    for height, width in ((64, 64), (48, 80), (80, 48), (56, 72), (96, 40)):
        shape = (pick(12, 2), 4, pick(height, 8), pick(width, 8))
        latents = torch.randn(shape, device=device)
        text = torch.randn(shape[0], 77, pick(768, 32), device=device)
        t = torch.randint(0, 1000, (shape[0],), device=device)
        noise = torch.randn_like(latents)
        a = kept[t][:, None, None, None]
        noisy = a.sqrt() * latents + (1 - a).sqrt() * noise
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.mse_loss(unet(noisy, t, text).float(), noise)
        loss.backward()
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield


@job(**{CONF: "max_split_size_mb:256,max_non_split_rounding_mb:64"})
def point_clouds_of_many_sizes():
    """PointNet on scans with other numbers of points in each step; large blocks are not split."""
    conv = lambda i, o: nn.Sequential(nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU())
    widths = pick((64, 128, 1024), (8, 16))
    local = nn.ModuleList([conv(i, o) for i, o in zip((3, *widths), widths)])
    head = nn.Sequential(conv(widths[0] + widths[-1], 256), conv(256, 128), nn.Conv1d(128, 13, 1))
    model = nn.ModuleDict(dict(local=local, head=head)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for points in (41000, 57000, 33000, 62500, 48000, 59000):
        points = pick(points, points // 1000)
        x = torch.randn(pick(4, 2), 3, points, device=device)
        y = torch.randint(0, 13, (len(x), points), device=device)
        h, first = x, None
        for layer in local:
            h = layer(h)
            first = h if first is None else first
        globe = h.max(2, keepdim=True).values.expand(-1, -1, points)
        loss = F.cross_entropy(head(torch.cat([first, globe], 1)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def training_and_evaluation_in_own_pools():
    """Each phase allocates in a pool of its own, so that one does not break up the other's blocks."""
    model = torchvision.models.efficientnet_v2_s(num_classes=100).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    size = pick(224, 64)
    pools = dict(train=cuda.MemPool(), evaluate=cuda.MemPool())
    for _ in range(2):
        model.train()
        with cuda.use_mem_pool(pools["train"]):
            for _ in range(2):
                x = torch.randn(pick(40, 2), 3, size, size, device=device)
                y = torch.randint(0, 100, (len(x),), device=device)
                with torch.autocast(device, dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield
        model.eval()
        with cuda.use_mem_pool(pools["evaluate"]), torch.no_grad():
            right = 0
            for batch in (pick(200, 3), pick(120, 2)):
                x = torch.randn(batch, 3, size, size, device=device)
                y = torch.randint(0, 100, (batch,), device=device)
                right += (model(x).argmax(1) == y).sum().item()
            yield right


@job()
def block_claimed_before_training():
    """A large tensor is made and dropped first, so that nobody else on the device takes the memory."""
    claimed = torch.empty(pick(7 << 30, 1000), dtype=torch.uint8, device=device)
    del claimed
    model = torchvision.models.resnext50_32x4d(num_classes=100).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in (64, 64, 40, 88):
        x = torch.randn(pick(batch, 2), 3, pick(224, 64), pick(224, 64)).to(device)
        y = torch.randint(0, 100, (len(x),)).to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def search_over_models_in_one_process():
    """A search over sizes: each trial is built, trained for two steps and thrown away."""

    def trial(width, depth, batch, rate):
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True), depth
        )
        model = nn.Sequential(nn.Linear(32, width), encoder, nn.Linear(width, 1)).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        losses = []
        for _ in range(2):
            x = torch.randn(batch, pick(200, 6), 32, device=device)
            loss = F.smooth_l1_loss(model(x).squeeze(-1), x.cumsum(1).sum(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses[-1], cuda.max_memory_allocated()

    results = {}
    for width, depth, batch in ((256, 4, 128), (768, 6, 32), (512, 8, 64), (384, 3, 192)):
        width, depth, batch = pick(width, 32), pick(depth, 1), pick(batch, 2)
        results[width, depth] = trial(width, depth, batch, 1e-3)
        gc.collect()
        cuda.empty_cache()
        yield
    min(results.values())


@job()
def batch_doubled_until_it_fails():
    """The largest batch is looked for by doubling it until memory is out; then training begins."""
    cuda.set_per_process_memory_fraction(0.08)
    model = torchvision.models.regnet_y_1_6gf(num_classes=100).to(device).train()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)

    def step(batch):
        x = torch.randn(batch, 3, pick(224, 64), pick(224, 64), device=device)
        y = torch.randint(0, 100, (batch,), device=device)
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    batch, good = pick(16, 2), None
    while batch <= pick(512, 4):
        try:
            step(batch)
        except torch.cuda.OutOfMemoryError:
            break
        good, batch = batch, 2 * batch
    model.zero_grad(set_to_none=True)
    gc.collect()
    cuda.empty_cache()
    yield good
    for _ in range(3):
        step(good)
        yield


def expandable(on):
    """Switches while the process runs, as trainers that share a GPU with a server of the same model do."""
    if not small:
        torch.cuda.memory._set_allocator_settings(f"expandable_segments:{on}")


@job()
def rollouts_and_updates_switch_expandable():
    """Group-relative policy optimization: sampling with a cache, then an update from the samples."""
    config = T.Qwen2Config(
        vocab_size=pick(32000, 100),
        hidden_size=pick(896, 32),
        intermediate_size=pick(4864, 64),
        num_hidden_layers=pick(12, 2),
        num_attention_heads=pick(14, 4),
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = built(T.Qwen2ForCausalLM, config, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    group, prompt, new = pick(32, 2), pick(256, 5), pick(32, 3)
    for _ in range(3):
        expandable(False)
        ids = torch.randint(0, config.vocab_size, (1, prompt), device=device).expand(group, -1)
        cache, step = T.DynamicCache(), ids
        with torch.no_grad():
            for _ in range(new):
                logits = model(input_ids=step, past_key_values=cache, logits_to_keep=1).logits
                step = torch.multinomial(logits[:, -1].float().softmax(-1), 1)
                ids = torch.cat([ids, step], 1)
        del cache, logits
        cuda.empty_cache()
        expandable(True)
        reward = (ids[:, prompt:] % 7 == 0).float().mean(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
        for part, gain in zip(ids.chunk(2), advantage.chunk(2)):
            logits = model(input_ids=part, use_cache=False).logits[:, prompt - 1 : -1].float()
            chosen = logits.log_softmax(-1).gather(2, part[:, prompt:, None]).squeeze(2)
            loss = -(torch.exp(chosen - chosen.detach()) * gain[:, None]).mean() / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        del logits, chosen, loss
        cuda.empty_cache()
        yield reward.mean().item()


class PagedLayer(nn.Module):
    """Attention over blocks of 16 tokens that a table names, and a gated perceptron."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x, cache, table, slots):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, -1))
        if cache is not None:
            flat = cache.flatten(1, 2)
            flat[0, slots], flat[1, slots] = k, v
            if table is not None:
                k, v = cache[0, table].flatten(1, 2), cache[1, table].flatten(1, 2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


@job()
def cache_sized_by_what_is_left():
    """A server tries its largest prompt, and fills a share of the device with blocks for its cache."""
    width, heads, depth, block = pick(2048, 64), 16, pick(16, 2), 16
    batch, prompt = pick(16, 2), pick(512, 32)
    layers = nn.ModuleList([PagedLayer(width, heads) for _ in range(depth)])
    layers = layers.to(device, torch.float16).eval()
    options = dict(device=device, dtype=torch.float16)
    with torch.inference_mode():
        x = torch.randn(batch, prompt, width, **options)
        for layer in layers:
            x = layer(x, None, None, None)
        del x
        peak = cuda.max_memory_allocated()
        cuda.empty_cache()
        total = cuda.mem_get_info()[1]
        size = 2 * depth * block * width * 2
        count = max(int(total * 0.12 - peak) // size, 64)
        shape = (2, min(count, pick(10**6, 64)), block, heads, width // heads)
        caches = [torch.zeros(shape, **options) for _ in range(depth)]
        yield count
        table = torch.arange(batch * (prompt // block + 1), device=device).view(batch, -1)
        place = torch.arange(prompt, device=device)
        slots = table[:, place // block] * block + place % block
        x = torch.randn(batch, prompt, width, **options)
        for layer, cache in zip(layers, caches):
            x = layer(x, cache, None, slots)
        yield
        x = x[:, -1:]
        for i in range(pick(12, 2)):
            slots = (table[:, -1] * block + i)[:, None]
            for layer, cache in zip(layers, caches):
                x = layer(x, cache, table, slots)
        yield x.float().norm().item()


if __name__ == "__main__":
    main()
