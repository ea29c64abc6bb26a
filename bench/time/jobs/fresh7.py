"""Jobs written on 2026-11-28, later than `fresh6.py`, by an author who has not seen the clocks: ten usual, ten rarer.

Loops as people write them: losses read at every step, clipped gradients, several optimizers, updates inside a step.
`python fresh7.py NAME` as in ../../accuracy/jobs/training.py.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "accuracy" / "jobs"))

import builders
from builders import hf
from training import main


def module(make, *rest, cl=False, **kw):
    """A plain module whose parameters are drawn on the GPU."""

    def on_gpu(torch):
        with torch.device("cuda"):
            m = make(torch)
        return m.to(memory_format=torch.channels_last) if cl else m

    return builders.module(on_gpu, *rest, **kw)


def clipped(spec, norm):
    """`spec` whose gradients are cut to `norm` before each update."""

    def build():
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        def clip(opt, args, kw):
            for group in opt.param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], norm)

        register_optimizer_step_pre_hook(clip)
        return spec["build"]()

    return dict(spec, build=build)


def logged(spec):
    """`spec` whose loss is read at every step."""

    def build():
        m, batch, lossf = spec["build"]()
        total = [0.0]

        def loss(b):
            value = lossf(b)
            total[0] += value.item()
            return value

        return m, batch, loss

    return dict(spec, build=build)


def accumulated(spec, parts):
    """`spec` with steps of `parts` batches, whose gradients add up."""

    def build():
        import torch

        m, batch, lossf = spec["build"]()

        def loss(_):
            for _ in range(parts - 1):
                value = lossf(batch()) / parts
                with torch.autocast("cuda", enabled=False):
                    value.backward()
            return lossf(batch()) / parts

        return m, lambda: None, loss

    return dict(spec, build=build)


# Ten that are usual.


def retina(torch):
    import torchvision

    return torchvision.models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21, min_size=512, max_size=512)  # fmt: skip


def boxed(torch):
    """Pictures with eight boxes each."""
    pictures, targets = [], []
    for _ in range(4):
        corner, size = 300 * torch.rand(8, 2, device="cuda"), 20 + 180 * torch.rand(8, 2, device="cuda")  # fmt: skip
        pictures.append(torch.rand(3, 512, 512, device="cuda"))
        targets.append(dict(boxes=torch.cat([corner, corner + size], 1), labels=torch.randint(1, 21, (8,), device="cuda")))  # fmt: skip
    return pictures, targets


def detected(torch, m, b):
    return sum(m(*b).values())


def gated_unet(torch):
    """A U-Net whose skipped features are weighed by gates (Attention U-Net)."""
    from torch import nn

    def twice(a, b):
        conv = lambda a: (nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))  # fmt: skip
        return nn.Sequential(*conv(a), *conv(b))

    class Gate(nn.Module):
        def __init__(self, width):
            super().__init__()
            line = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 1), nn.BatchNorm2d(b))
            self.given, self.skipped = line(width, width // 2), line(width, width // 2)
            self.weight = line(width // 2, 1)

        def forward(self, given, skipped):
            share = torch.relu(self.given(given) + self.skipped(skipped))
            return skipped * torch.sigmoid(self.weight(share))

    class Gated(nn.Module):
        def __init__(self, widths=(64, 128, 256, 512, 1024)):
            super().__init__()
            self.down = nn.ModuleList([twice(a, b) for a, b in zip((3, *widths), widths)])
            self.pool = nn.MaxPool2d(2)
            pairs = list(zip(widths[1:], widths))[::-1]
            grow = lambda b, a: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(b, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU(inplace=True))  # fmt: skip
            self.grow = nn.ModuleList([grow(b, a) for b, a in pairs])
            self.gates = nn.ModuleList([Gate(a) for _, a in pairs])
            self.up = nn.ModuleList([twice(2 * a, a) for _, a in pairs])
            self.out = nn.Conv2d(widths[0], 1, 1)

        def forward(self, x):
            kept = []
            for stage in self.down:
                x = stage(self.pool(x) if kept else x)
                kept.append(x)
            kept.pop()
            for grow, gate, stage in zip(self.grow, self.gates, self.up):
                x = grow(x)
                x = stage(torch.cat([gate(x, kept.pop()), x], 1))
            return self.out(x)

    return Gated()


def organs(torch):
    x = torch.randn(8, 3, 256, 256, device="cuda").to(memory_format=torch.channels_last)
    return x, (torch.rand(8, 256, 256, device="cuda") > 0.7).float()


def dice(torch, m, b):
    y = m(b[0]).squeeze(1).float()
    share = y.sigmoid()
    both = (share * b[1]).sum((1, 2))
    overlap = (2 * both + 1) / (share.sum((1, 2)) + b[1].sum((1, 2)) + 1)
    return torch.nn.functional.binary_cross_entropy_with_logits(y, b[1]) + 1 - overlap.mean()


def wide(torch):
    """Wide-ResNet-28-10 for pictures of 32 by 32."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, a, b, stride):
            super().__init__()
            self.n1, self.n2 = nn.BatchNorm2d(a), nn.BatchNorm2d(b)
            self.c1 = nn.Conv2d(a, b, 3, stride, 1, bias=False)
            self.c2 = nn.Conv2d(b, b, 3, 1, 1, bias=False)
            self.drop = nn.Dropout(0.3)
            self.short = None if a == b else nn.Conv2d(a, b, 1, stride, bias=False)

        def forward(self, x):
            y = torch.relu(self.n1(x))
            short = x if self.short is None else self.short(y)
            return short + self.c2(self.drop(torch.relu(self.n2(self.c1(y)))))

    layers, a = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)], 16
    for b, stride in ((160, 1), (320, 2), (640, 2)):
        for at in range(4):
            layers.append(Block(a, b, stride if at == 0 else 1))
            a = b
    return nn.Sequential(*layers, nn.BatchNorm2d(a), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, 100))  # fmt: skip


def small_pictures(torch):
    x = torch.randn(128, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    return x, torch.randint(0, 100, (128,), device="cuda")


def mixed(torch, m, b):
    """Two pictures are laid over each other (mixup)."""
    import random

    x, y = b
    share, order = random.betavariate(1.0, 1.0), torch.randperm(len(x), device="cuda")
    out, loss = m(share * x + (1 - share) * x[order]), torch.nn.functional.cross_entropy
    return share * loss(out, y) + (1 - share) * loss(out, y[order])


def painters(bs):
    """A generator and a discriminator, with an optimizer each (DCGAN)."""

    def build():
        import torch
        from torch import nn

        def grow(a, b, stride, pad):
            return nn.ConvTranspose2d(a, b, 4, stride, pad, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)  # fmt: skip

        def shrink(a, b):
            return nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, True)

        def init(layer):
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.normal_(layer.weight, 0.0, 0.02)

        w = 64
        painter = nn.Sequential(
            *grow(100, 8 * w, 1, 0), *grow(8 * w, 4 * w, 2, 1), *grow(4 * w, 2 * w, 2, 1), *grow(2 * w, w, 2, 1),
            nn.ConvTranspose2d(w, 3, 4, 2, 1, bias=False), nn.Tanh(),
        ).cuda()  # fmt: skip
        judge = nn.Sequential(
            nn.Conv2d(3, w, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True), *shrink(w, 2 * w), *shrink(2 * w, 4 * w),
            *shrink(4 * w, 8 * w), nn.Conv2d(8 * w, 1, 4, 1, 0, bias=False), nn.Sigmoid(), nn.Flatten(0),
        ).cuda()  # fmt: skip
        painter.apply(init)
        judge.apply(init)
        opt = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
        criterion, seen = nn.BCELoss(), []

        def batch():
            return torch.rand(bs, 3, 64, 64, device="cuda") * 2 - 1

        def loss(real):
            judge.zero_grad()
            label = torch.full((bs,), 1.0, device="cuda")
            error_real = criterion(judge(real), label)
            error_real.backward()
            fake = painter(torch.randn(bs, 100, 1, 1, device="cuda"))
            error_fake = criterion(judge(fake.detach()), label.fill_(0.0))
            error_fake.backward()
            opt.step()
            out = judge(fake)
            error = criterion(out, torch.full((bs,), 1.0, device="cuda"))
            seen.append((error_real.item() + error_fake.item(), error.item(), out.mean().item()))
            return error

        return painter, batch, loss

    return dict(build=build, opt="adam", amp=None)


def diffusion(bs):
    """A U-Net that predicts noise, with a slowly moving copy of itself (DDPM)."""

    def build():
        import copy

        import torch
        from torch import nn
        from torch.nn import functional as F

        class Res(nn.Module):
            def __init__(self, a, b):
                super().__init__()
                self.n1, self.n2 = nn.GroupNorm(8, a), nn.GroupNorm(8, b)
                self.c1, self.c2 = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
                self.time = nn.Linear(512, 2 * b)
                self.short = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

            def forward(self, x, t):
                scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, 1)
                y = self.n2(self.c1(F.silu(self.n1(x)))) * (scale + 1) + shift
                return self.short(x) + self.c2(F.silu(y))

        class Attention(nn.Module):
            """Attention by the sum of keys times values."""

            def __init__(self, a, heads=4):
                super().__init__()
                self.heads, self.norm = heads, nn.GroupNorm(1, a)
                self.qkv = nn.Conv2d(a, 3 * 32 * heads, 1, bias=False)
                self.out = nn.Sequential(nn.Conv2d(32 * heads, a, 1), nn.GroupNorm(1, a))

            def forward(self, x):
                n, _, h, w = x.shape
                q, k, v = (t.reshape(n, self.heads, 32, h * w) for t in self.qkv(self.norm(x)).chunk(3, 1))  # fmt: skip
                q, k = q.softmax(-2) * 32**-0.5, k.softmax(-1)
                context = torch.einsum("bhdn,bhen->bhde", k, v)
                y = torch.einsum("bhde,bhdn->bhen", context, q)
                return x + self.out(y.reshape(n, -1, h, w))

        class Net(nn.Module):
            def __init__(self, w=128, widths=(128, 256, 256, 512)):
                super().__init__()
                self.enter = nn.Conv2d(3, w, 7, padding=3)
                self.time = nn.Sequential(nn.Linear(w, 512), nn.GELU(), nn.Linear(512, 512))
                pairs = list(zip((w, *widths), widths))
                self.down = nn.ModuleList([nn.ModuleList([Res(a, a), Res(a, a), Attention(a), nn.Conv2d(a, b, 4, 2, 1)]) for a, b in pairs])  # fmt: skip
                self.mid = nn.ModuleList([Res(widths[-1], widths[-1]) for _ in range(2)])
                self.up = nn.ModuleList([nn.ModuleList([nn.ConvTranspose2d(b, a, 4, 2, 1), Res(2 * a, a), Res(2 * a, a), Attention(a)]) for a, b in pairs[::-1]])  # fmt: skip
                self.out = nn.Conv2d(w, 3, 1)

            def forward(self, x, t):
                angle = t[:, None] * torch.exp(torch.arange(64, device=x.device) * -0.146)
                t = self.time(torch.cat([angle.sin(), angle.cos()], -1))
                x, kept = self.enter(x), []
                for one, two, attend, shrink in self.down:
                    x = one(x, t)
                    kept.append(x)
                    x = attend(two(x, t))
                    kept.append(x)
                    x = shrink(x)
                for block in self.mid:
                    x = block(x, t)
                for grow, one, two, attend in self.up:
                    x = one(torch.cat([grow(x), kept.pop()], 1), t)
                    x = attend(two(torch.cat([x, kept.pop()], 1), t))
                return self.out(x)

        net = Net().cuda()
        slow = copy.deepcopy(net).eval().requires_grad_(False)
        kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), 0)

        def loss(x):
            with torch.no_grad():
                for own, now in zip(slow.parameters(), net.parameters()):
                    own.data.mul_(0.995).add_(now.data, alpha=0.005)
            t, noise = torch.randint(0, 1000, (bs,), device="cuda"), torch.randn_like(x)
            share = kept[t].view(-1, 1, 1, 1)
            return F.mse_loss(net(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise)

        return net, lambda: torch.rand(bs, 3, 32, 32, device="cuda") * 2 - 1, loss

    return dict(build=build, opt="adam", amp="bf16")


def attentive(torch):
    """A GRU in both directions, and a decoder that looks at its states word by word (Bahdanau)."""
    from torch import nn

    class Attentive(nn.Module):
        def __init__(self, words=8000, width=512):
            super().__init__()
            self.source, self.target = nn.Embedding(words, 256), nn.Embedding(words, 256)
            self.encoder = nn.GRU(256, width, batch_first=True, bidirectional=True)
            self.bridge = nn.Linear(2 * width, width)
            self.query, self.key = nn.Linear(width, width), nn.Linear(2 * width, width)
            self.score = nn.Linear(width, 1, False)
            self.decoder = nn.GRU(256 + 2 * width, width, batch_first=True)
            self.out = nn.Linear(3 * width + 256, words)
            self.drop = nn.Dropout(0.3)

        def forward(self, source, target):
            states, last = self.encoder(self.drop(self.source(source)))
            hidden = torch.tanh(self.bridge(torch.cat([last[0], last[1]], 1)))[None]
            keys, outs = self.key(states), []
            for at in range(target.shape[1] - 1):
                word = self.drop(self.target(target[:, at : at + 1]))
                share = self.score(torch.tanh(self.query(hidden[-1])[:, None] + keys)).softmax(1)
                context = torch.bmm(share.mT, states)
                y, hidden = self.decoder(torch.cat([word, context], -1), hidden)
                outs.append(self.out(torch.cat([y, context, word], -1)))
            return torch.cat(outs, 1)

    return Attentive()


def phrases(torch):
    draw = lambda n: torch.randint(1, 8000, (128, n), device="cuda")
    return draw(30), draw(26)


def translated(torch, m, b):
    y = m(*b)
    return torch.nn.functional.cross_entropy(y.flatten(0, 1), b[1][:, 1:].flatten(), ignore_index=0)


def tags(torch, c):
    x = torch.randint(5, c.vocab_size, (32, 160), device="cuda")
    mask = (torch.arange(160, device="cuda") < torch.randint(60, 161, (32, 1), device="cuda")).long()  # fmt: skip
    y = torch.randint(0, c.num_labels, (32, 160), device="cuda")
    return dict(input_ids=x, attention_mask=mask, labels=torch.where(mask.bool(), y, -100))


def low_rank(torch):
    """A frozen language model in bf16 with matrices of low rank beside its queries and values (LoRA)."""
    import transformers
    from torch import nn

    class LowRank(nn.Module):
        def __init__(self, base, rank=16):
            super().__init__()
            self.base, self.drop, self.scale = base, nn.Dropout(0.05), 32 / rank
            self.a = nn.Parameter(torch.empty(rank, base.in_features))
            self.b = nn.Parameter(torch.zeros(base.out_features, rank))
            nn.init.kaiming_uniform_(self.a, a=5**0.5)

        def forward(self, x):
            y = self.drop(x.to(self.a.dtype)) @ self.a.T @ self.b.T
            return self.base(x) + (y * self.scale).to(x.dtype)

    config = transformers.Olmo2Config(
        vocab_size=100_352, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=16, use_cache=False, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    m = transformers.Olmo2ForCausalLM(config).bfloat16().requires_grad_(False)
    for layer in m.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        layer.self_attn.v_proj = LowRank(layer.self_attn.v_proj)
    return m


def instructions(torch):
    x = torch.randint(2, 100_352, (2, 512), device="cuda")
    y = x.clone()
    y[:, :128] = -100
    return x, y


def instructed(torch, m, b):
    return m(input_ids=b[0], labels=b[1]).loss


def gamer(minibatch, epochs=2):
    """What is seen in a game, epochs of minibatches with an update each (PPO)."""

    def build():
        import torch
        from torch import nn

        def layer(made, gain=2**0.5):
            nn.init.orthogonal_(made.weight, gain)
            nn.init.constant_(made.bias, 0.0)
            return made

        class Agent(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(
                    layer(nn.Conv2d(4, 32, 8, 4)), nn.ReLU(), layer(nn.Conv2d(32, 64, 4, 2)), nn.ReLU(),
                    layer(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(), nn.Flatten(), layer(nn.Linear(3136, 512)), nn.ReLU(),
                )  # fmt: skip
                self.actor, self.critic = layer(nn.Linear(512, 6), 0.01), layer(nn.Linear(512, 1), 1.0)  # fmt: skip

            def forward(self, x, action):
                hidden = self.body(x / 255.0)
                choice = torch.distributions.Categorical(logits=self.actor(hidden))
                return choice.log_prob(action), choice.entropy(), self.critic(hidden).flatten()

        agent = Agent().cuda()
        opt = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
        fractions = []

        def batch(n=1024):
            seen = torch.randint(0, 256, (n, 4, 84, 84), device="cuda", dtype=torch.uint8)
            draw = lambda: torch.randn(n, device="cuda")
            return seen, torch.randint(0, 6, (n,), device="cuda"), draw() - 1.8, draw(), draw(), draw()  # fmt: skip

        def one(b):
            seen, action, before, advantage, returned, value = b
            after, entropy, now = agent(seen.float(), action)
            change = after - before
            ratio = change.exp()
            with torch.no_grad():
                fractions.append(((ratio - 1.0).abs() > 0.1).float().mean().item())
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.9, 1.1)).mean()
            near = value + (now - value).clamp(-0.1, 0.1)
            worth = 0.5 * torch.max((now - returned) ** 2, (near - returned) ** 2).mean()
            return policy - 0.01 * entropy.mean() + 0.5 * worth

        def loss(b):
            parts = []
            for _ in range(epochs):
                parts += torch.randperm(len(b[0]), device="cuda").split(minibatch)
            for part in parts[:-1]:
                opt.zero_grad()
                one([t[part] for t in b]).backward()
                opt.step()
            opt.zero_grad()
            return one([t[parts[-1]] for t in b])

        return agent, batch, loss

    return clipped(dict(build=build, opt="adam", amp=None), 0.5)


def tabular(torch):
    """A table: an embedding for each column of kinds, norms for the numbers, a perceptron."""
    from torch import nn

    class Tabular(nn.Module):
        def __init__(self, columns=30, kinds=1000, width=24, numbers=20):
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(kinds, width) for _ in range(columns)])
            self.norm, self.drop = nn.BatchNorm1d(numbers), nn.Dropout(0.1)
            layers, a = [], columns * width + numbers
            for b in (1024, 1024, 512, 256):
                layers += [nn.Linear(a, b), nn.ReLU(), nn.BatchNorm1d(b), nn.Dropout(0.2)]
                a = b
            self.body = nn.Sequential(*layers, nn.Linear(a, 1))

        def forward(self, kinds, numbers):
            x = torch.cat([table(kinds[:, at]) for at, table in enumerate(self.tables)], 1)
            return self.body(torch.cat([self.drop(x), self.norm(numbers)], 1)).squeeze(1)

    return Tabular()


def rows(torch, count=16384):
    return torch.randint(0, 1000, (count, 30), device="cuda"), torch.randn(count, 20, device="cuda"), torch.rand(count, device="cuda").round()  # fmt: skip


def clicked(torch, m, b):
    return torch.nn.functional.binary_cross_entropy_with_logits(m(b[0], b[1]), b[2])


# Ten that are rarer.


def separator(torch):
    """Two voices from one recording by dilated convolutions of single channels (Conv-TasNet)."""
    from torch import nn

    class Unit(nn.Module):
        def __init__(self, a, b, dilation):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv1d(a, b, 1), nn.PReLU(), nn.GroupNorm(1, b), nn.Conv1d(b, b, 3, padding=dilation, dilation=dilation, groups=b),
                nn.PReLU(), nn.GroupNorm(1, b),
            )  # fmt: skip
            self.on, self.skip = nn.Conv1d(b, a, 1), nn.Conv1d(b, a, 1)

        def forward(self, x):
            y = self.body(x)
            return x + self.on(y), self.skip(y)

    class Separator(nn.Module):
        def __init__(self, basis=512, a=128, b=512):
            super().__init__()
            self.encoder = nn.Conv1d(1, basis, 16, 8, bias=False)
            self.enter = nn.Sequential(nn.GroupNorm(1, basis), nn.Conv1d(basis, a, 1))
            self.units = nn.ModuleList([Unit(a, b, 2**at) for _ in range(3) for at in range(8)])
            self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(a, 2 * basis, 1), nn.Sigmoid())
            self.decoder = nn.ConvTranspose1d(basis, 1, 16, 8, bias=False)

        def forward(self, x):
            waves = torch.relu(self.encoder(x[:, None]))
            y, total = self.enter(waves), 0
            for unit in self.units:
                y, skip = unit(y)
                total = total + skip
            masks = self.mask(total).unflatten(1, (2, -1))
            return self.decoder((waves[:, None] * masks).flatten(0, 1)).view(len(x), 2, -1)

    return Separator()


def voices(torch):
    return torch.randn(4, 2, 24_000, device="cuda")


def separated(torch, m, voices):
    """Signal to noise without scale, for the better order of the two."""

    def ratio(y, x):
        x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
        part = (y * x).sum(-1, keepdim=True) * x / (x.pow(2).sum(-1, keepdim=True) + 1e-8)
        return 10 * torch.log10(part.pow(2).sum(-1) / ((y - part).pow(2).sum(-1) + 1e-8) + 1e-8)

    y = m(voices.sum(1))
    orders = torch.stack([ratio(y, voices).mean(1), ratio(y, voices.flip(1)).mean(1)])
    return -orders.max(0).values.mean()


def edges(torch):
    """Points and their nearest neighbours in the space of features (DGCNN)."""
    from torch import nn

    class Edges(nn.Module):
        def __init__(self, k=20, classes=40):
            super().__init__()
            self.k = k
            line = lambda a, b: nn.Sequential(nn.Conv2d(2 * a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))  # fmt: skip
            self.layers = nn.ModuleList([line(a, b) for a, b in ((3, 64), (64, 64), (64, 128), (128, 256))])  # fmt: skip
            self.join = nn.Sequential(nn.Conv1d(512, 1024, 1, bias=False), nn.BatchNorm1d(1024), nn.LeakyReLU(0.2))  # fmt: skip
            self.out = nn.Sequential(nn.Linear(2048, 512, False), nn.BatchNorm1d(512), nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.Linear(512, classes))  # fmt: skip

        def neighbours(self, x):
            n, a, points = x.shape
            square = (x**2).sum(1, keepdim=True)
            near = (2 * x.mT @ x - square - square.mT).topk(self.k, -1)[1]
            near = (near + torch.arange(n, device=x.device).view(-1, 1, 1) * points).view(-1)
            rows = x.mT.reshape(n * points, a)
            other = rows[near].view(n, points, self.k, a)
            own = rows.view(n, points, 1, a).expand(-1, -1, self.k, -1)
            return torch.cat([other - own, own], 3).permute(0, 3, 1, 2).contiguous()

        def forward(self, x):
            kept = []
            for layer in self.layers:
                x = layer(self.neighbours(x)).max(-1)[0]
                kept.append(x)
            x = self.join(torch.cat(kept, 1))
            return self.out(torch.cat([x.amax(-1), x.mean(-1)], 1))

    return Edges()


def clouds(torch):
    return torch.randn(16, 3, 1024, device="cuda"), torch.randint(0, 40, (16,), device="cuda")


def classify(torch, m, b):
    return torch.nn.functional.cross_entropy(m(b[0]), b[1], label_smoothing=0.2)


def hashed(torch):
    """A scene in tables of hashed corners at twelve sizes, and two small perceptrons (Instant-NGP)."""
    from torch import nn

    class Hashed(nn.Module):
        def __init__(self, levels=12, entries=2**19):
            super().__init__()
            self.entries = entries
            self.sizes = [int(16 * 1.5**at) for at in range(levels)]
            self.tables = nn.ModuleList([nn.Embedding(entries, 2) for _ in range(levels)])
            for table in self.tables:
                nn.init.uniform_(table.weight, -1e-4, 1e-4)
            self.dense = nn.Sequential(nn.Linear(2 * levels, 64), nn.ReLU(), nn.Linear(64, 16))
            self.colour = nn.Sequential(nn.Linear(18, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))  # fmt: skip
            self.register_buffer("corners", torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)]))  # fmt: skip

        def encode(self, x):
            found = []
            for size, table in zip(self.sizes, self.tables):
                low = (x * size).floor()
                inside = (x * size - low)[:, None]
                at = low.long()[:, None] + self.corners
                key = at[..., 0] ^ (at[..., 1] * 2_654_435_761) ^ (at[..., 2] * 805_459_861)
                weight = torch.where(self.corners.bool(), inside, 1 - inside).prod(-1, keepdim=True)
                found.append((table(key % self.entries) * weight).sum(1))
            return torch.cat(found, -1)

        def forward(self, origin, way, samples=48):
            t = torch.linspace(0.0, 1.0, samples, device=origin.device)
            t = t + torch.rand(len(origin), samples, device=origin.device) / samples
            places = (origin[:, None] + way[:, None] * t[..., None]).clamp(0, 1)
            y = self.dense(self.encode(places.flatten(0, 1))).unflatten(0, places.shape[:2])
            seen = torch.cat([y, way[:, None, :2].expand(-1, samples, -1)], -1)
            alpha = 1 - torch.exp(-nn.functional.softplus(y[..., 0]) / samples)
            clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)  # fmt: skip
            weight = alpha * clear[:, :-1]
            return (weight[..., None] * self.colour(seen).sigmoid()).sum(1)

    return Hashed()


def rays(torch, count=4096):
    draw = lambda: torch.rand(count, 3, device="cuda")
    return draw(), torch.nn.functional.normalize(draw() - 0.5, dim=1), draw()


def seen_colours(torch, m, b):
    return torch.nn.functional.huber_loss(m(b[0], b[1]), b[2], delta=0.1)


def viscous(count):
    """Burgers' equation by a network that LBFGS fits; its unknown viscosity is learned by Adam."""

    def build():
        import torch
        from torch import nn

        layers = [nn.Linear(2, 64), nn.Tanh()]
        for _ in range(6):
            layers += [nn.Linear(64, 64), nn.Tanh()]
        net = nn.Sequential(*layers, nn.Linear(64, 1)).cuda()
        unknown = nn.ParameterList([nn.Parameter(torch.tensor(-4.0, device="cuda"))])
        opt = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=6, history_size=20)

        def slope(y, x):
            return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

        def residual(x, t):
            u = net(torch.cat([x, t], 1))
            ux = slope(u, x)
            return slope(u, t) + u * ux - unknown[0].exp() * slope(ux, x)

        def batch():
            x = (2 * torch.rand(count, 1, device="cuda") - 1).requires_grad_()
            return x, torch.rand(count, 1, device="cuda").requires_grad_()

        def loss(b):
            x, t = b
            begin = -torch.sin(torch.pi * x.detach())

            def closure():
                opt.zero_grad()
                start = net(torch.cat([x, torch.zeros_like(t)], 1)) - begin
                value = residual(x, t).pow(2).mean() + start.pow(2).mean()
                value.backward()
                return value

            opt.step(closure)
            return residual(x, t).pow(2).mean()

        return unknown, batch, loss

    return dict(build=build, opt="adam", amp=None)


def dreams(torch):
    """A world of drawn kinds that a GRU carries on, and pictures painted from it (Dreamer)."""
    from torch import nn
    from torch.nn import functional as F

    class Dreams(nn.Module):
        def __init__(self, w=32, deter=512, kinds=32):
            super().__init__()
            self.kinds, self.deter = kinds, deter
            widths = (3, w, 2 * w, 4 * w, 8 * w)
            shrink, grow = [], []
            for a, b in zip(widths, widths[1:]):
                shrink += [nn.Conv2d(a, b, 4, 2, 1), nn.SiLU()]
                grow = [nn.ConvTranspose2d(b, a, 4, 2, 1), nn.SiLU(), *grow]
            self.see = nn.Sequential(*shrink, nn.Flatten())
            self.paint = nn.Sequential(nn.Linear(deter + kinds**2, 8 * w * 16), nn.Unflatten(1, (8 * w, 4, 4)), *grow[:-1])  # fmt: skip
            line = lambda a, b: nn.Sequential(nn.Linear(a, deter), nn.LayerNorm(deter), nn.SiLU(), nn.Linear(deter, b))  # fmt: skip
            self.enter = nn.Sequential(nn.Linear(kinds**2 + 6, deter), nn.LayerNorm(deter), nn.SiLU())  # fmt: skip
            self.cell = nn.GRUCell(deter, deter)
            self.prior, self.posterior = line(deter, kinds**2), line(deter + 8 * w * 16, kinds**2)
            self.reward = line(deter + kinds**2, 1)

        def draw(self, logits):
            share = logits.unflatten(-1, (self.kinds, self.kinds)).softmax(-1)
            share = 0.99 * share + 0.01 / self.kinds
            hot = torch.distributions.OneHotCategorical(probs=share).sample()
            return (hot + share - share.detach()).flatten(1), share

        def forward(self, x, action):
            n, length = action.shape[:2]
            seen = self.see(x.flatten(0, 1)).unflatten(0, (n, length))
            h = torch.zeros(n, self.deter, device=x.device)
            z = torch.zeros(n, self.kinds**2, device=x.device)
            states, priors, posteriors = [], [], []
            for at in range(length):
                h = self.cell(self.enter(torch.cat([z, action[:, at]], -1)), h)
                priors.append(self.draw(self.prior(h))[1])
                z, share = self.draw(self.posterior(torch.cat([h, seen[:, at]], -1)))
                posteriors.append(share)
                states.append(torch.cat([h, z], -1))
            state = torch.stack(states, 1)
            painted = self.paint(state.flatten(0, 1)).view_as(x)
            return painted, self.reward(state).squeeze(-1), torch.stack(priors), torch.stack(posteriors)  # fmt: skip

        def apart(self, p, q):
            return (p * (p.log() - q.log())).sum((-1, -2)).clamp(min=1.0).mean()

        def loss(self, x, action, reward):
            painted, told, prior, posterior = self(x, action)
            kl = 0.5 * self.apart(posterior.detach(), prior) + 0.1 * self.apart(posterior, prior.detach())  # fmt: skip
            return (painted - x).pow(2).sum((2, 3, 4)).mean() + F.mse_loss(told, reward) + kl

    return Dreams()


def episodes(torch):
    return torch.rand(16, 32, 3, 64, 64, device="cuda"), torch.randn(16, 32, 6, device="cuda"), torch.randn(16, 32, device="cuda")  # fmt: skip


def dreamed(torch, m, b):
    return m.loss(*b)


def bags(bs):
    """Bags of things in large tables with sparse gradients; each table is updated within the backward pass (DLRM)."""

    def build():
        import torch
        from torch import nn

        columns, entries, width, each = 16, 500_000, 64, 8
        tables = [nn.EmbeddingBag(entries, width, mode="sum", sparse=True, device="cuda") for _ in range(columns)]  # fmt: skip
        for table in tables:
            opt = torch.optim.SparseAdam(table.parameters(), lr=1e-3)

            def update(weight, opt=opt):
                opt.step()
                opt.zero_grad()

            table.weight.register_post_accumulate_grad_hook(update)

        def perceptron(*widths):
            layers = []
            for a, b in zip(widths, widths[1:]):
                layers += [nn.Linear(a, b), nn.ReLU()]
            return nn.Sequential(*layers[:-1])

        class Dense(nn.Module):
            def __init__(self):
                super().__init__()
                self.bottom = perceptron(13, 512, 256, width)
                self.top = perceptron(width + (columns + 1) * columns // 2, 1024, 512, 1)
                self.pairs = torch.tril_indices(columns + 1, columns + 1, -1, device="cuda")

            def forward(self, numbers, found):
                x = self.bottom(numbers)
                all_ = torch.stack([x, *found], 1)
                products = torch.bmm(all_, all_.mT)[:, self.pairs[0], self.pairs[1]]
                return self.top(torch.cat([x, products], 1)).squeeze(1)

        dense = Dense().cuda()
        offsets = torch.arange(0, bs * each, each, device="cuda")

        def batch():
            things = torch.randint(0, entries, (columns, bs * each), device="cuda")
            return things, torch.randn(bs, 13, device="cuda"), torch.rand(bs, device="cuda").round()

        def loss(b):
            found = [table(things, offsets) for table, things in zip(tables, b[0])]
            return nn.functional.binary_cross_entropy_with_logits(dense(b[1], found), b[2])

        return dense, batch, loss

    return dict(build=build, opt="sgd", amp=None)


def isomorphic(torch):
    """Molecules whose atoms add up what their neighbours and bonds tell (GIN, with a virtual node)."""
    from torch import nn

    class Sum(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.eps = nn.Parameter(torch.zeros(1))
            self.bonds = nn.ModuleList([nn.Embedding(6, width) for _ in range(3)])
            self.body = nn.Sequential(nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.BatchNorm1d(width))  # fmt: skip

        def forward(self, x, source, target, bonds):
            bond = sum(table(bonds[:, at]) for at, table in enumerate(self.bonds))
            sent = torch.relu(x[source] + bond)
            return self.body((1 + self.eps) * x + torch.zeros_like(x).index_add_(0, target, sent))

    class Isomorphic(nn.Module):
        def __init__(self, width=300, depth=5, tasks=128):
            super().__init__()
            self.atoms = nn.ModuleList([nn.Embedding(120, width) for _ in range(9)])
            self.virtual = nn.Embedding(1, width)
            self.layers = nn.ModuleList([Sum(width) for _ in range(depth)])
            line = lambda: nn.Sequential(nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.BatchNorm1d(width), nn.ReLU())  # fmt: skip
            self.lines = nn.ModuleList([line() for _ in range(depth - 1)])
            self.drop, self.out = nn.Dropout(0.5), nn.Linear(width, tasks)

        def forward(self, atoms, source, target, bonds, graph):
            count = int(graph.max()) + 1
            x = sum(table(atoms[:, at]) for at, table in enumerate(self.atoms))
            v = self.virtual(torch.zeros(count, dtype=torch.long, device=x.device))
            for at, layer in enumerate(self.layers):
                x = x + v[graph]
                y = layer(x, source, target, bonds)
                if at < len(self.lines):
                    y = torch.relu(y)
                    place = graph[:, None].expand_as(x)
                    v = self.drop(self.lines[at](torch.zeros_like(v).scatter_add_(0, place, x) + v))
                x = self.drop(y)
            place = graph[:, None].expand_as(x)
            return self.out(v.new_zeros(v.shape).scatter_reduce(0, place, x, "mean", include_self=False))  # fmt: skip

    return Isomorphic()


def compounds(torch, count=1024, atoms=26, bonds=56):
    graph = torch.arange(count, device="cuda").repeat_interleave(atoms)
    start = (torch.arange(count, device="cuda") * atoms).repeat_interleave(bonds)
    ends = lambda: start + torch.randint(0, atoms, start.shape, device="cuda")
    known = torch.randint(0, 2, (count, 128), device="cuda").float()
    known[torch.rand(count, 128, device="cuda") < 0.3] = float("nan")
    kinds = torch.randint(0, 120, (len(graph), 9), device="cuda")
    return kinds, ends(), ends(), torch.randint(0, 6, (len(start), 3), device="cuda"), graph, known


def partly_known(torch, m, b):
    y, known = m(*b[:5]), b[5] == b[5]
    return torch.nn.functional.binary_cross_entropy_with_logits(y[known], b[5][known])


def volumes(torch):
    """Scans through a narrow latent volume (a variational autoencoder in three dimensions)."""
    from torch import nn

    class Res(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.body = nn.Sequential(nn.GroupNorm(8, a), nn.SiLU(), nn.Conv3d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU(), nn.Conv3d(b, b, 3, padding=1))  # fmt: skip
            self.short = nn.Identity() if a == b else nn.Conv3d(a, b, 1)

        def forward(self, x):
            return self.short(x) + self.body(x)

    class Volumes(nn.Module):
        def __init__(self, widths=(32, 64, 128), latent=8):
            super().__init__()
            down, up = [nn.Conv3d(1, widths[0], 3, padding=1)], [nn.Conv3d(latent, widths[-1], 3, padding=1)]  # fmt: skip
            for a, b in zip((widths[0], *widths), widths):
                down += [Res(a, b), nn.Conv3d(b, b, 3, 2, 1)]
            for a, b in zip(widths[::-1], (*widths[-2::-1], widths[0])):
                up += [nn.Upsample(scale_factor=2), nn.Conv3d(a, a, 3, padding=1), Res(a, b)]
            self.encoder = nn.Sequential(*down, nn.Conv3d(widths[-1], 2 * latent, 1))
            self.decoder = nn.Sequential(*up, nn.GroupNorm(8, widths[0]), nn.SiLU(), nn.Conv3d(widths[0], 1, 3, padding=1))  # fmt: skip

        def forward(self, x):
            mean, spread = self.encoder(x).float().chunk(2, 1)
            spread = spread.clamp(-30, 20)
            z = mean + torch.exp(0.5 * spread) * torch.randn_like(mean)
            return self.decoder(z), mean, spread

    return Volumes()


def heads(torch):
    return torch.rand(4, 1, 64, 64, 64, device="cuda")


def evidence(torch, m, x):
    y, mean, spread = m(x)
    kl = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum((1, 2, 3, 4)).mean()
    return torch.nn.functional.l1_loss(y.float(), x) + 1e-6 * kl


def captioned(torch, c):
    x = torch.randint(5, 49_000, (96, 77), device="cuda")
    x[:, -1] = c.text_config.eos_token_id
    return dict(input_ids=x, attention_mask=torch.ones_like(x), pixel_values=torch.randn(96, 3, 224, 224, device="cuda"), return_loss=True)  # fmt: skip


def cached_experts(torch):
    """A decoder of experts that reads prompts, then writes eight words with the keys and values it keeps."""
    from torch import nn
    from torch.nn import functional as F

    class Experts(nn.Module):
        def __init__(self, width, count=8):
            super().__init__()
            self.choose = nn.Linear(width, count, False)
            self.experts = nn.ModuleList([nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(count)])  # fmt: skip

        def forward(self, x):
            rows = x.flatten(0, 1)
            weight, chosen = self.choose(rows).float().softmax(-1).topk(2, -1)
            weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
            y = torch.zeros_like(rows)
            for at, expert in enumerate(self.experts):
                row, rank = torch.where(chosen == at)
                y.index_add_(0, row, expert(rows[row]) * weight[row, rank, None])
            return y.view_as(x)

    class Block(nn.Module):
        def __init__(self, width, head=64):
            super().__init__()
            self.head = head
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.experts = Experts(width)

        def forward(self, x, kept):
            q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, -1, self.head)).permute(2, 0, 3, 1, 4)
            if kept is not None:
                k, v = torch.cat([kept[0], k], 2), torch.cat([kept[1], v], 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=kept is None)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.experts(self.n2(x)), (k, v)

    class Cached(nn.Module):
        def __init__(self, words=32_000, width=1024, depth=6):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
            self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
            self.norm = nn.LayerNorm(width)

        def read(self, x, at, kept):
            y = self.words(x) + self.places(torch.arange(at, at + x.shape[1], device=x.device))
            for number, block in enumerate(self.blocks):
                y, kept[number] = block(y, kept[number])
            return F.linear(self.norm(y[:, -1:]), self.words.weight)

        def forward(self, x):
            kept = [None] * len(self.blocks)
            word, words, at = self.read(x, 0, kept).argmax(-1), [x], x.shape[1]
            for _ in range(7):
                words.append(word)
                word = self.read(word, at, kept).argmax(-1)
                at += 1
            return torch.cat([*words, word], 1)

    return Cached().bfloat16()


def prompts(torch):
    return torch.randint(0, 32_000, (16, 128), device="cuda")


JOBS = {
    "retina_b4_fp16": lambda: logged(module(retina, boxed, detected, opt="sgd", amp="fp16")),
    "gated_unet_b8_fp16_cl": lambda: logged(clipped(module(gated_unet, organs, dice, opt="rmsprop", amp="fp16", cl=True), 1.0)),
    "wide_b128_bf16_cl": lambda: logged(module(wide, small_pictures, mixed, opt="sgd", amp="bf16", cl=True)),
    "painters_b128": lambda: painters(128),
    "diffusion_b64_bf16": lambda: clipped(logged(diffusion(64)), 1.0),
    "attentive_b128": lambda: clipped(logged(module(attentive, phrases, translated)), 1.0),
    "xlm_roberta_tags_b32_160_fp16": lambda: clipped(
        hf("XLMRobertaForTokenClassification", "XLMRobertaConfig", tags, amp="fp16", vocab_size=250_002, max_position_embeddings=514, type_vocab_size=1, num_labels=9), 1.0
    ),
    "low_rank_b2x4_512_bf16": lambda: accumulated(module(low_rank, instructions, instructed, opt="adamw", amp="bf16"), 4),
    "gamer_256": lambda: gamer(256),
    "tabular_b16384": lambda: logged(module(tabular, rows, clicked, opt="adamw")),
    "separator_b4": lambda: clipped(module(separator, voices, separated), 5.0),
    "edges_b16": lambda: logged(module(edges, clouds, classify, opt="sgd")),
    "hashed_4096": lambda: module(hashed, rays, seen_colours),
    "viscous_8192": lambda: viscous(8192),
    "dreams_b16": lambda: clipped(module(dreams, episodes, dreamed), 100.0),
    "bags_b8192": lambda: bags(8192),
    "isomorphic_b1024": lambda: logged(module(isomorphic, compounds, partly_known)),
    "volumes_b4_bf16": lambda: module(volumes, heads, evidence, amp="bf16"),
    "clip_b96_bf16": lambda: clipped(hf("CLIPModel", "CLIPConfig", captioned, opt="adamw_fused"), 1.0),
}  # fmt: skip
INFERENCE = {"infer_cached_experts_b16_128": lambda: module(cached_experts, prompts, None)}

if __name__ == "__main__":
    main(JOBS, INFERENCE)
