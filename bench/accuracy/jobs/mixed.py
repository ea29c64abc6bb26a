"""Whole training loops of other kinds: contrast, reinforcement, adversaries, meta-learning, preferences, scenes."""

import copy

import torch
import torchvision
import transformers as T
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from job import device, job, main, pick
from parts import GPT, Block, CrossUNet, built


def autocast(dtype=torch.bfloat16):
    return torch.autocast(device, dtype=dtype)


def pictures(batch, res=224):
    res = pick(res, 64)
    return torch.randn(pick(batch, 2), 3, res, res, device=device)


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@job()
def moco_memory_queue():
    """Momentum contrast: a slow copy of the encoder and a queue of 65,536 keys."""
    query = torchvision.models.resnet50(num_classes=128).to(device).train()
    key = copy.deepcopy(query).requires_grad_(False)
    size = pick(65536, 8)
    queue, at = F.normalize(torch.randn(128, size, device=device), dim=0), 0
    optimizer = torch.optim.SGD(query.parameters(), lr=0.03, momentum=0.9)
    for _ in range(4):
        x = pictures(64)
        q = F.normalize(query(x), dim=1)
        with torch.no_grad():
            for a, b in zip(query.parameters(), key.parameters()):
                b.mul_(0.999).add_(a, alpha=0.001)
            order = torch.randperm(len(x), device=device)
            k = F.normalize(key(x[order]), dim=1)[order.argsort()]
        near = (q * k).sum(1, keepdim=True)
        logits = torch.cat([near, q @ queue.clone()], 1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long, device=device))
        step(optimizer, loss)
        queue[:, at : at + len(x)] = k.T
        at = (at + len(x)) % size
        yield


@job()
def ppo_convolutional_agents():
    """Rollouts of many environments kept on the GPU, advantages, epochs of minibatches."""
    envs, steps = pick(256, 2), pick(32, 3)
    body = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
    ).to(device)
    actor, critic = nn.Linear(512, 18).to(device), nn.Linear(512, 1).to(device)
    model = nn.ModuleList([body, actor, critic])
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4, eps=1e-5)
    frames = torch.zeros(steps, envs, 4, 84, 84, dtype=torch.uint8, device=device)
    actions = torch.zeros(steps, envs, dtype=torch.long, device=device)
    logs, values, rewards = (torch.zeros(steps, envs, device=device) for _ in range(3))
    for _ in range(3):
        for t in range(steps):
            frames[t] = torch.randint(0, 256, (envs, 4, 84, 84), dtype=torch.uint8)
            with torch.no_grad():
                h = body(frames[t].float() / 255)
                policy = torch.distributions.Categorical(logits=actor(h))
                actions[t] = policy.sample()
                logs[t], values[t] = policy.log_prob(actions[t]), critic(h).squeeze(1)
            rewards[t] = torch.randn(envs)
        gains, last = torch.zeros_like(rewards), 0
        for t in reversed(range(steps)):
            after = values[t + 1] if t + 1 < steps else values[t]
            last = rewards[t] + 0.99 * after - values[t] + 0.99 * 0.95 * last
            gains[t] = last
        goal = gains + values
        flat = [t.flatten(0, 1) for t in (frames, actions, logs, gains, goal)]
        for _ in range(2):
            for part in torch.randperm(envs * steps, device=device).chunk(4):
                x, a, old, gain, wanted = (t[part] for t in flat)
                h = body(x.float() / 255)
                policy = torch.distributions.Categorical(logits=actor(h))
                ratio = (policy.log_prob(a) - old).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                loss = -torch.min(ratio * gain, ratio.clamp(0.9, 1.1) * gain).mean()
                loss = loss + 0.5 * F.mse_loss(critic(h).squeeze(1), wanted)
                loss = loss - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        yield loss.item()


@job()
def soft_actor_critic_replay():
    """Soft actor-critic: a replay buffer on the GPU, two critics with targets, a learned temperature."""
    seen, acts, room = 376, 17, pick(400000, 100)
    net = lambda i, o: nn.Sequential(
        nn.Linear(i, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, o)
    ).to(device)
    actor, critics = net(seen, 2 * acts), nn.ModuleList([net(seen + acts, 1) for _ in range(2)])
    goals = copy.deepcopy(critics).requires_grad_(False)
    heat = torch.zeros(1, device=device, requires_grad=True)
    shapes = dict(x=seen, a=acts, r=1, n=seen, d=1)
    buffer = {k: torch.zeros(room, n, device=device) for k, n in shapes.items()}
    both = [
        torch.optim.Adam(p, lr=3e-4) for p in (actor.parameters(), critics.parameters(), [heat])
    ]

    def act(x):
        mean, log = actor(x).chunk(2, 1)
        noise = torch.distributions.Normal(mean, log.clamp(-20, 2).exp())
        u = noise.rsample()
        a = torch.tanh(u)
        return a, (noise.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(1, keepdim=True)

    for _ in range(8):
        pickup = torch.randint(0, room, (pick(16384, 4),), device=device)
        x, a, r, n, d = (buffer[k][pickup] for k in "xarnd")
        with torch.no_grad():
            b, log = act(n)
            least = torch.min(*(g(torch.cat([n, b], 1)) for g in goals)) - heat.exp() * log
            wanted = r + 0.99 * (1 - d) * least
        step(both[1], sum(F.mse_loss(c(torch.cat([x, a], 1)), wanted) for c in critics))
        b, log = act(x)
        worth = torch.min(*(c(torch.cat([x, b], 1)) for c in critics))
        step(both[0], (heat.exp().detach() * log - worth).mean())
        step(both[2], -(heat * (log.detach() + acts)).mean())
        with torch.no_grad():
            for g, c in zip(goals.parameters(), critics.parameters()):
                g.lerp_(c, 0.005)
        yield


@job()
def wgan_gradient_penalty():
    """Five steps of the critic with a gradient penalty, then one of the generator."""
    width = pick(96, 4)
    up = lambda i, o: [nn.ConvTranspose2d(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.ReLU()]
    generator = nn.Sequential(
        nn.ConvTranspose2d(128, 8 * width, 4),
        nn.ReLU(),
        *up(8 * width, 4 * width),
        *up(4 * width, 2 * width),
        *up(2 * width, width),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    ).to(device)
    down = lambda i, o: [
        nn.Conv2d(i, o, 4, 2, 1),
        nn.InstanceNorm2d(o, affine=True),
        nn.LeakyReLU(0.2),
    ]
    critic = nn.Sequential(
        *down(3, width),
        *down(width, 2 * width),
        *down(2 * width, 4 * width),
        nn.Conv2d(4 * width, 1, 8),
    ).to(device)
    make = lambda m: torch.optim.Adam(m.parameters(), lr=1e-4, betas=(0.0, 0.9))
    for_g, for_c = make(generator), make(critic)
    batch = pick(128, 2)
    for _ in range(3):
        for _ in range(5):
            real = torch.rand(batch, 3, 64, 64, device=device) * 2 - 1
            with torch.no_grad():
                fake = generator(torch.randn(batch, 128, 1, 1, device=device))
            mix = torch.rand(batch, 1, 1, 1, device=device)
            between = (mix * real + (1 - mix) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            penalty = (slope.flatten(1).norm(dim=1) - 1).pow(2).mean()
            step(for_c, critic(fake).mean() - critic(real).mean() + 10 * penalty)
        step(for_g, -critic(generator(torch.randn(batch, 128, 1, 1, device=device))).mean())
        yield


@job()
def maml_inner_loops():
    """Model-agnostic meta-learning: gradients through three inner steps of each task."""
    width = pick(64, 4)
    layers = []
    for i in (3, width, width, width):
        layers += [
            nn.Conv2d(i, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    net = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(5)).to(device)
    size, shots = pick(84, 32), pick(25, 5)
    net(torch.zeros(1, 3, size, size, device=device))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(4):
        total = 0
        for _ in range(4):
            fast = dict(net.named_parameters())
            y = torch.arange(5, device=device).repeat(shots // 5)
            x = torch.randn(len(y), 3, size, size, device=device)
            for _ in range(3):
                loss = F.cross_entropy(torch.func.functional_call(net, fast, (x,)), y)
                grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
                fast = {n: p - 0.4 * g for (n, p), g in zip(fast.items(), grads)}
            y = torch.randint(0, 5, (pick(75, 5),), device=device)
            x = torch.randn(len(y), 3, size, size, device=device)
            total = total + F.cross_entropy(torch.func.functional_call(net, fast, (x,)), y) / 4
        step(optimizer, total)
        yield total.item()


@job()
def distillation_of_language_model():
    """A large GPT teaches a small one: hidden states, logits with a temperature."""
    vocab = pick(32000, 100)
    teacher = GPT(vocab, pick(1536, 48), pick(16, 2), 12, 1024).to(device).bfloat16().eval()
    student = GPT(vocab, pick(768, 24), pick(6, 1), 12, 1024).to(device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-4)
    for _ in range(4):
        ids = torch.randint(0, vocab, (pick(8, 2), pick(768, 8)), device=device)
        with torch.no_grad():
            soft = (teacher(ids).float() / 2).softmax(-1)
        with autocast():
            logits = student(ids)
        loss = F.kl_div((logits.float() / 2).log_softmax(-1), soft, reduction="none").sum(-1).mean()
        loss = 4 * loss + F.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()
        )
        step(optimizer, loss)
        yield


@job()
def experts_with_capacity():
    """A mixture of experts with a fixed capacity: einsum with dispatch masks, load-balancing loss."""
    width, experts, depth = pick(512, 16), 8, pick(6, 1)

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(width, experts, bias=False)
            self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * 0.02)
            self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * 0.02)

        def forward(self, x):
            shape, x = x.shape, x.flatten(0, 1)
            room = 2 * len(x) // experts
            p = self.gate(x).float().softmax(-1)
            weight, chosen = p.topk(1, -1)
            hot = F.one_hot(chosen.squeeze(1), experts)
            place = (hot.cumsum(0) * hot).sum(1) - 1
            inside = place < room
            slot = F.one_hot(place.clamp(max=room - 1), room) * inside[:, None]
            send = (hot[:, :, None] * slot[:, None]).to(x.dtype)
            h = torch.einsum("tec,td->ecd", send, x)
            h = torch.bmm(F.gelu(torch.bmm(h, self.up.to(h.dtype))), self.down.to(h.dtype))
            back = send * weight[:, :, None].to(x.dtype)
            balance = (hot.float().mean(0) * p.mean(0)).sum() * experts
            return torch.einsum("tec,ecd->td", back, h.to(x.dtype)).view(shape), balance

    embed = nn.Embedding(pick(32000, 50), width)
    attention = nn.ModuleList([Block(width, 8, causal=True, expand=1) for _ in range(depth)])
    moe = nn.ModuleList([Experts() for _ in range(depth)])
    model = nn.ModuleList([embed, attention, moe]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(4):
        ids = torch.randint(0, embed.num_embeddings, (pick(4, 2), pick(512, 8)), device=device)
        with autocast():
            x, extra = embed(ids), 0
            for a, e in zip(attention, moe):
                x = a(x)
                y, balance = e(x)
                x, extra = x + y, extra + balance
            logits = x @ embed.weight.T
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) + 0.01 * extra
        step(optimizer, loss)
        yield


@job()
def text_to_image_training():
    """Latent diffusion: a frozen text encoder, a U-Net with cross-attention, a moving average."""
    config = T.CLIPTextConfig(
        hidden_size=pick(768, 32),
        intermediate_size=pick(3072, 64),
        num_hidden_layers=pick(12, 1),
        num_attention_heads=pick(12, 4),
    )
    text = built(T.CLIPTextModel, config, torch.float16).eval().requires_grad_(False)
    unet = CrossUNet(4, pick((192, 384, 768), (16, 32)), pick(768, 32), pick(12, 4)).to(device)
    ema = copy.deepcopy(unet).requires_grad_(False)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    levels = torch.linspace(0.9999, 0.98, 1000, device=device).cumprod(0)
    for _ in range(4):
        ids = torch.randint(1, 49000, (pick(16, 2), pick(77, 6)), device=device)
        with torch.no_grad():
            condition = text(input_ids=ids).last_hidden_state
            condition[torch.rand(len(ids), device=device) < 0.1] = 0
        x = torch.randn(len(ids), 4, pick(64, 8), pick(64, 8), device=device)
        noise = torch.randn_like(x)
        t = torch.randint(0, 1000, (len(x),), device=device)
        a = levels[t][:, None, None, None]
        with autocast():
            guess = unet(a.sqrt() * x + (1 - a).sqrt() * noise, t, condition)
        loss = F.mse_loss(guess.float(), noise, reduction="none").mean((1, 2, 3))
        loss = (loss * (5 * (1 - a.flatten()) / a.flatten()).clamp(max=1)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(unet.parameters()), 1e-4)
        yield


@job()
def bucketed_token_budgets():
    """Batches of a fixed number of tokens, sorted by length: shapes change in each step."""
    config = T.RobertaConfig(
        hidden_size=pick(768, 24),
        num_hidden_layers=pick(8, 1),
        num_attention_heads=12,
        intermediate_size=pick(3072, 48),
        max_position_embeddings=1030,
        vocab_size=pick(50265, 100),
        pad_token_id=1,
    )
    model = built(T.RobertaForMaskedLM, config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for length in (64, 512, 192, 1000, 320, 96):
        length = pick(length, max(4, length // 40))
        ids = torch.randint(
            5, config.vocab_size, (pick(12288, 64) // length, length), device=device
        )
        mask = torch.ones_like(ids)
        mask[::2, -length // 8 :] = 0
        labels = torch.where(torch.rand(ids.shape, device=device) < 0.15, ids, -100)
        with autocast():
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        step(optimizer, loss)
        yield


@job()
def training_with_evaluation_between():
    """An epoch, then an evaluation of a larger batch that keeps all logits, twice."""
    model = torchvision.models.swin_v2_t(num_classes=1000).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(2):
        model.train()
        for _ in range(2):
            with autocast():
                loss = F.cross_entropy(
                    model(pictures(32, 256)),
                    torch.randint(0, 1000, (pick(32, 2),), device=device),
                )
            step(optimizer, loss)
            yield
        model.eval()
        kept = []
        with torch.no_grad(), autocast():
            for _ in range(3):
                kept.append(model(pictures(160, 256)))
        torch.cat(kept).float().softmax(1).topk(5).indices.cpu()
        yield


@job()
def checkpointed_segmentation():
    """A deep convolutional net at high resolution, each stage recomputed."""
    stages = nn.ModuleList()
    for i, o, stride in ((3, 64, 1), (64, 96, 2), (96, 192, 2), (192, 384, 2)):
        stages.append(
            nn.Sequential(
                nn.Conv2d(i, o, 3, stride, 1),
                nn.BatchNorm2d(o),
                nn.ReLU(),
                nn.Conv2d(o, o, 3, padding=1),
                nn.BatchNorm2d(o),
                nn.ReLU(),
                nn.Conv2d(o, o, 3, padding=1),
                nn.BatchNorm2d(o),
                nn.ReLU(),
            )
        )
    head = nn.Conv2d(384, 19, 1)
    model = nn.ModuleList([stages, head]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    h, w = pick(512, 32), pick(1024, 64)
    for _ in range(4):
        x = torch.randn(pick(4, 1), 3, h, w, device=device)
        y = torch.randint(0, 19, (len(x), h, w), device=device)
        with autocast():
            for stage in stages:
                x = checkpoint(stage, x, use_reentrant=False)
            out = F.interpolate(head(x), size=(h, w), mode="bilinear", align_corners=False)
            loss = F.cross_entropy(out, y, ignore_index=255)
        step(optimizer, loss)
        yield


@job()
def channels_last_half_inference():
    """A service: half precision, channels last, batches of several sizes, two models in turn."""
    names = ("efficientnet_v2_s", "regnet_y_3_2gf")
    nets = [getattr(torchvision.models, n)().to(device).half().eval() for n in names]
    nets = [n.to(memory_format=torch.channels_last) for n in nets]
    with torch.inference_mode():
        for batch in (64, 1, 200, 17, 128):
            x = pictures(batch, 384).half().contiguous(memory_format=torch.channels_last)
            for net in nets:
                net(x).float().softmax(1).cpu()
            yield


@job()
def preference_optimization():
    """DPO: the policy and a frozen reference score chosen and rejected answers."""
    width = pick(1024, 64)
    config = T.Qwen2Config(
        vocab_size=pick(151936, 100),
        hidden_size=width,
        intermediate_size=pick(2816, 96),
        num_hidden_layers=pick(8, 2),
        num_attention_heads=16,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        use_cache=False,
    )
    policy = built(T.Qwen2ForCausalLM, config, torch.bfloat16).train()
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)

    def score(model, ids, start):
        logits = model(input_ids=ids).logits[:, start - 1 : -1]
        logs = logits.float().log_softmax(-1).gather(2, ids[:, start:, None])
        return logs.squeeze(2).sum(1)

    for _ in range(4):
        ids = torch.randint(0, config.vocab_size, (pick(8, 2), pick(512, 12)), device=device)
        start = pick(128, 4)
        with torch.no_grad():
            base = score(reference, ids, start)
        chosen, rejected = (score(policy, ids, start) - base).chunk(2)
        loss = -F.logsigmoid(0.1 * (chosen - rejected)).mean()
        step(optimizer, loss)
        yield loss.item()


@job()
def low_rank_adapters_large_model():
    """LoRA on every linear layer of a frozen model of three billion parameters, with checkpointing."""
    width = pick(2560, 64)
    config = T.LlamaConfig(
        vocab_size=pick(32000, 100),
        hidden_size=width,
        intermediate_size=pick(6912, 96),
        num_hidden_layers=pick(32, 2),
        num_attention_heads=pick(20, 4),
        num_key_value_heads=4,
        use_cache=False,
    )
    model = built(T.LlamaForCausalLM, config, torch.bfloat16).train().requires_grad_(False)

    class LoRA(nn.Module):
        def __init__(self, base, rank=16):
            super().__init__()
            self.base, self.drop = base, nn.Dropout(0.05)
            self.a = nn.Linear(base.in_features, rank, bias=False)
            self.b = nn.Linear(rank, base.out_features, bias=False)
            nn.init.zeros_(self.b.weight)

        def forward(self, x):
            y = self.b(self.a(self.drop(x).to(self.a.weight.dtype)))
            return self.base(x) + (2 * y).to(x.dtype)

    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(part, name, LoRA(child).to(device))
    model.gradient_checkpointing_enable(dict(use_reentrant=False))
    model.enable_input_require_grads()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
    for _ in range(3):
        ids = torch.randint(0, config.vocab_size, (pick(4, 1), pick(1024, 8)), device=device)
        with autocast():
            loss = model(input_ids=ids, labels=ids).loss
        step(optimizer, loss)
        yield


@job()
def masked_autoencoder():
    """Three quarters of the patches are dropped by argsort and gather, and painted again."""
    width, small_width = pick(768, 48), pick(512, 24)
    patches, keep = pick(196, 16), pick(49, 4)
    patch = nn.Linear(768, width)
    encoder = nn.Sequential(*[Block(width, 12) for _ in range(pick(12, 1))])
    middle = nn.Linear(width, small_width)
    decoder = nn.Sequential(*[Block(small_width, 8) for _ in range(pick(8, 1))])
    head = nn.Linear(small_width, 768)
    model = nn.ModuleList([patch, encoder, middle, decoder, head]).to(device)
    hole = nn.Parameter(torch.zeros(1, 1, small_width, device=device))
    optimizer = torch.optim.AdamW([*model.parameters(), hole], lr=1.5e-4, betas=(0.9, 0.95))
    for _ in range(4):
        side = int(patches**0.5) * 16
        x = torch.randn(pick(128, 2), 3, side, side, device=device)
        flat = F.unfold(x, 16, stride=16).transpose(1, 2)
        order = torch.rand(flat.shape[:2], device=device).argsort(1)
        back = order.argsort(1)
        with autocast():
            h = patch(flat)
            h = h.gather(1, order[:, :keep, None].expand(-1, -1, width))
            h = middle(encoder(h))
            h = torch.cat([h, hole.expand(len(h), patches - keep, -1).to(h.dtype)], 1)
            h = h.gather(1, back[..., None].expand(-1, -1, small_width))
            guess = head(decoder(h))
        mask = (back >= keep).float()
        loss = ((guess.float() - flat).pow(2).mean(-1) * mask).sum() / mask.sum()
        step(optimizer, loss)
        yield


@job()
def radiance_field_rendering():
    """NeRF: rays, stratified and importance samples by sort and searchsorted, two networks."""
    net = lambda: nn.ModuleList(
        [nn.Linear(63, 256), *[nn.Linear(256, 256) for _ in range(6)], nn.Linear(256, 4)]
    )
    coarse, fine = net().to(device), net().to(device)
    optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
    powers = 2.0 ** torch.arange(10, device=device)

    def render(net, start, way, depth):
        x = start[:, None] + way[:, None] * depth[..., None]
        wave = (x[..., None] * powers).flatten(2)
        h = torch.cat([x, wave.sin(), wave.cos()], -1)
        for layer in net[:-1]:
            h = layer(h).relu()
        color, density = net[-1](h).split((3, 1), -1)
        gap = torch.cat([depth[:, 1:] - depth[:, :-1], torch.full_like(depth[:, :1], 1e10)], 1)
        alpha = 1 - torch.exp(-density.squeeze(-1).relu() * gap)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)
        weight = alpha * clear[:, :-1]
        return (weight[..., None] * color.sigmoid()).sum(1), weight

    for _ in range(4):
        rays = pick(4096, 8)
        start, way = torch.randn(rays, 3, device=device), torch.randn(rays, 3, device=device)
        wanted = torch.rand(rays, 3, device=device)
        depth = torch.linspace(2, 6, 64, device=device).expand(rays, 64)
        depth = depth + torch.rand_like(depth) * 4 / 64
        first, weight = render(coarse, start, way, depth)
        with torch.no_grad():
            cdf = (weight[:, 1:-1] + 1e-5).cumsum(1)
            cdf = cdf / cdf[:, -1:]
            at = torch.searchsorted(cdf, torch.rand(rays, 96, device=device))
            more = depth.gather(1, at.clamp(max=depth.shape[1] - 1))
            both = torch.cat([depth, more], 1).sort(1).values
        second, _ = render(fine, start, way, both)
        loss = F.mse_loss(first, wanted) + F.mse_loss(second, wanted)
        step(optimizer, loss)
        yield


@job()
def video_transformer_training():
    """MViT v2 on clips of sixteen frames."""
    model = torchvision.models.video.mvit_v2_s(num_classes=400).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        clip = torch.randn(pick(8, 1), 3, 16, 224, 224, device=device)
        with autocast():
            loss = F.cross_entropy(
                model(clip), torch.zeros(len(clip), dtype=torch.long, device=device)
            )
        step(optimizer, loss)
        yield


@job()
def optical_flow_recurrent_updates():
    """RAFT: correlation volumes of all pairs, twelve recurrent updates, loss on each of them."""
    model = torchvision.models.optical_flow.raft_small().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    h, w = pick(368, 128), pick(496, 128)
    for _ in range(3):
        a, b = (torch.rand(pick(6, 1), 3, h, w, device=device) * 2 - 1 for _ in range(2))
        flow = torch.randn(len(a), 2, h, w, device=device)
        guesses = model(a, b, num_flow_updates=pick(12, 2))
        loss = sum(
            0.8 ** (len(guesses) - i) * (g - flow).abs().mean() for i, g in enumerate(guesses)
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield


if __name__ == "__main__":
    main()
