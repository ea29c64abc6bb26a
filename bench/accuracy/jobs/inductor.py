"""torch.compile in more ways: compiled autograd, options, scans, transforms, int8, volumes, two graph trees, export."""

import math

import torch
import torchvision
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from job import device, job, main, pick, small
from parts import GPT, Block


def autocast():
    return torch.autocast(device, dtype=torch.bfloat16)


@job()
def compiled_autograd_with_hooks():
    """Forward and backward pass are one compiled function; hooks bound gradients inside the backward pass."""
    torch._dynamo.config.compiled_autograd = not small
    torch.set_float32_matmul_precision("high")
    width = pick(2048, 32)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
            self.down = nn.Linear(2 * width, width)

        def forward(self, x):
            h = self.norm(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    model = nn.Sequential(*[Residual() for _ in range(pick(5, 2))]).to(device)
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    @torch.compile
    def accumulate(x, y):
        loss = F.huber_loss(model(x), y) / 2
        loss.backward()
        return loss.detach()

    for _ in range(4):
        for _ in range(2):
            x = torch.randn(pick(8192, 4), width, device=device)
            loss = accumulate(x, x.flip(1))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()


@job()
def compiled_adam_with_rate_schedule():
    """The model is eager; Adam's step and the schedule of a rate in a tensor are compiled."""
    width = pick(4096, 24)
    layers = [nn.Linear(width, width, bias=False) for _ in range(pick(8, 2))]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01, device=device))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)

    @torch.compile(fullgraph=False)
    def update():
        optimizer.step()
        schedule.step()

    for _ in range(5):
        x = torch.randn(pick(8192, 4), width, device=device)
        with autocast():
            h = x
            for layer in model:
                h = F.gelu(layer(h))
            loss = F.mse_loss(h.float(), x)
        optimizer.zero_grad()
        loss.backward()
        update()
        yield loss.item()


@job()
def batch_marked_dynamic():
    """The batch is marked as dynamic, since the last one of an epoch is smaller."""
    model = torchvision.models.squeezenet1_1(num_classes=100).to(device).train()
    fast = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    size = pick(224, 64)
    for batch in (256, 256, 188, 256, 188):
        x = torch.randn(pick(batch, batch // 90), 3, size, size, device=device)
        y = torch.randint(0, 100, (len(x),), device=device)
        torch._dynamo.mark_dynamic(x, 0)
        with autocast():
            loss = F.cross_entropy(fast(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


class StateSpace(nn.Module):
    """A selective state space, its recurrence by cumulative sums within chunks."""

    def __init__(self, width, states=16, chunk=64):
        super().__init__()
        self.norm, self.inside = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.conv = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)
        self.select = nn.Linear(2 * width, 2 * states + 1)
        self.rate = nn.Parameter(torch.linspace(-3, -1, states).expand(2 * width, -1).clone())
        self.bias, self.skip = nn.Parameter(torch.zeros(2 * width)), nn.Parameter(torch.ones(1))
        self.out, self.chunk = nn.Linear(2 * width, width), chunk

    def forward(self, x):
        h, gate = self.inside(self.norm(x)).chunk(2, -1)
        h = F.silu(self.conv(h.mT)[..., : x.shape[1]].mT)
        states = self.rate.shape[1]
        step, b, c = self.select(h).float().split([1, states, states], -1)
        step = F.softplus(step + self.bias)
        decay = -step[..., None] * self.rate.exp()
        change = (step * h)[..., None] * b[:, :, None]
        decay, change = (t.unflatten(1, (-1, self.chunk)) for t in (decay, change))
        total = decay.cumsum(2)
        inner = (change * torch.exp(-total)).cumsum(2) * torch.exp(total)
        carried = [torch.zeros_like(inner[:, 0, -1])]
        for i in range(inner.shape[1] - 1):
            carried.append(inner[:, i, -1] + total[:, i, -1].exp() * carried[-1])
        state = inner + torch.stack(carried, 1)[:, :, None] * torch.exp(total)
        y = (state.flatten(1, 2) * c[:, :, None]).sum(-1) + self.skip * h
        return x + self.out(y.to(x.dtype) * F.silu(gate))


@job()
def selective_scan_blocks():
    """Blocks of a state-space language model, each compiled."""
    width = pick(512, 16)
    embed, head = nn.Embedding(pick(8000, 50), width), nn.Linear(width, pick(8000, 50))
    blocks = nn.ModuleList(StateSpace(width, chunk=pick(64, 4)) for _ in range(pick(4, 2)))
    model = nn.ModuleList([embed, blocks, head]).to(device)
    for block in blocks:
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(4):
        ids = torch.randint(0, embed.num_embeddings, (pick(4, 2), pick(512, 8)), device=device)
        x = embed(ids)
        for block in blocks:
            x = block(x)
        loss = F.cross_entropy(head(x)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def graphs_and_padding_by_options():
    """A vocabulary of odd size; matrices are padded, and CUDA graphs come by options, not by a mode."""
    model = GPT(pick(50257, 101), pick(768, 48), pick(4, 1), 12, pick(1000, 16)).to(device)
    fast = torch.compile(model, options={"triton.cudagraphs": True, "shape_padding": True})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
    for _ in range(5):
        ids = torch.randint(0, pick(50257, 101), (pick(6, 2), pick(1000, 16)), device=device)
        with autocast():
            loss = fast(ids, ids)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield


@job()
def only_the_loss_is_compiled():
    """Capped logits over a large vocabulary, with a penalty on their normalizer, in one compiled function."""
    width, vocab = pick(768, 24), pick(65536, 90)
    layer = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, "gelu", batch_first=True)
    body = nn.TransformerEncoder(layer, pick(6, 1)).to(device, torch.bfloat16)
    embed = nn.Embedding(vocab, width).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW([*body.parameters(), *embed.parameters()], lr=1e-4)

    @torch.compile
    def capped(h, weight, labels):
        logits = 30 * torch.tanh((h @ weight.T).float() / 30)
        top = logits.logsumexp(-1)
        chosen = logits.gather(-1, labels[:, None]).squeeze(-1)
        return (top - chosen).mean() + 1e-4 * top.square().mean()

    length = pick(1024, 9)
    mask = nn.Transformer.generate_square_subsequent_mask(length, device, torch.bfloat16)
    for _ in range(4):
        ids = torch.randint(0, vocab, (pick(6, 2), length), device=device)
        h = body(embed(ids), mask=mask, is_causal=True)
        loss = capped(h[:, :-1].flatten(0, 1), embed.weight, ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def private_gradients_compiled():
    """DP-SGD: gradients of every example by vmap of grad, compiled; clipped one by one, with noise."""
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.SiLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.SiLU(),
        nn.Conv2d(64, 64, 3, 2, 1),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 128),
        nn.Tanh(),
        nn.Linear(128, 10),
    ).to(device)
    params = {k: p.detach() for k, p in net.named_parameters()}

    def loss(params, x, y):
        return F.cross_entropy(functional_call(net, params, (x[None],)), y[None])

    each = torch.compile(vmap(grad(loss), in_dims=(None, 0, 0)))
    momentum = {k: torch.zeros_like(p) for k, p in params.items()}
    for _ in range(4):
        x = torch.randn(pick(512, 3), 3, 32, 32, device=device)
        y = torch.randint(0, 10, (len(x),), device=device)
        grads = each(params, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for k, g in grads.items():
            total = torch.einsum("n,n...->...", factor, g)
            total = (total + 1.1 * torch.randn_like(total)) / len(x)
            momentum[k].mul_(0.9).add_(total)
            params[k] = params[k] - 0.1 * momentum[k]
        del grads
        yield norms.median().item()


class Int8Linear(nn.Module):
    """Weights in eight bits with a scale for each row."""

    def __init__(self, i, o):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (o, i), dtype=torch.int8))
        self.register_buffer("scale", torch.full((o,), 1 / (127 * math.sqrt(i))))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)


class Int8Decoder(nn.Module):
    def __init__(self, vocab, width, depth, heads, batch, length):
        super().__init__()
        self.heads = heads
        self.embed, self.head = nn.Embedding(vocab, width), Int8Linear(width, vocab)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                dict(
                    norm=nn.RMSNorm(width),
                    qkv=Int8Linear(width, 3 * width),
                    out=Int8Linear(width, width),
                    after=nn.RMSNorm(width),
                    up=Int8Linear(width, 6 * width),
                    down=Int8Linear(3 * width, width),
                )
            )
            for _ in range(depth)
        )
        shape = (depth, 2, batch, heads, length, width // heads)
        self.register_buffer("cache", torch.zeros(shape))
        angles = torch.outer(torch.arange(length), 1e4 ** -torch.linspace(0, 1, shape[-1] // 2))
        self.register_buffer("turn", torch.stack([angles.cos(), angles.sin()]))

    def rotate(self, x, place):
        a, b = x.chunk(2, -1)
        cos, sin = self.turn[:, place].to(x.dtype)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, ids, place):
        x = self.embed(ids)
        seen = torch.arange(self.cache.shape[4], device=ids.device) <= place[:, None]
        for i, layer in enumerate(self.layers):
            q, k, v = (
                t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for t in layer["qkv"](layer["norm"](x)).chunk(3, -1)
            )
            self.cache[i, 0, :, :, place] = self.rotate(k, place)
            self.cache[i, 1, :, :, place] = v
            keys, values = self.cache[i]
            y = F.scaled_dot_product_attention(self.rotate(q, place), keys, values, attn_mask=seen)
            x = x + layer["out"](y.transpose(1, 2).flatten(2))
            gate, up = layer["up"](layer["after"](x)).chunk(2, -1)
            x = x + layer["down"](F.silu(gate) * up)
        return self.head(x[:, -1])


@job()
def int8_weights_reduce_overhead():
    """Decoding with weights in bytes: the prompt is compiled plainly, one token with CUDA graphs."""
    batch, width, length = pick(8, 2), pick(2048, 32), pick(1024, 24)
    model = Int8Decoder(pick(32000, 70), width, pick(6, 2), pick(16, 4), batch, length)
    model = model.to(device).eval()
    for module in model.modules():
        if not isinstance(module, Int8Linear):
            for name, t in [*module.named_parameters(recurse=False)]:
                setattr(module, name, nn.Parameter(t.to(torch.float16), requires_grad=False))
    model.cache = model.cache.half()
    prefill = torch.compile(model, dynamic=False)
    decode = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    prompt = pick(512, 8)
    for _ in range(3):
        with torch.no_grad():
            ids = torch.randint(0, model.embed.num_embeddings, (batch, prompt), device=device)
            logits = prefill(ids, torch.arange(prompt, device=device))
            for i in range(pick(24, 3)):
                best = logits.float().topk(50, -1)
                pick_one = torch.multinomial(best.values.softmax(-1), 1)
                token = best.indices.gather(-1, pick_one).clone()
                logits = decode(token, torch.tensor([prompt + i], device=device))
        yield token[0, 0].item()


class VolumeUNet(nn.Module):
    def __init__(self, widths=(32, 64, 128), classes=4):
        super().__init__()

        def block(i, o):
            return nn.Sequential(
                nn.Conv3d(i, o, 3, padding=1),
                nn.InstanceNorm3d(o, affine=True),
                nn.LeakyReLU(0.01),
                nn.Conv3d(o, o, 3, padding=1),
                nn.InstanceNorm3d(o, affine=True),
                nn.LeakyReLU(0.01),
            )

        self.down = nn.ModuleList(block(i, o) for i, o in zip((1, *widths), widths))
        pairs = list(zip(widths[::-1], widths[-2::-1]))
        self.grow = nn.ModuleList(nn.ConvTranspose3d(i, o, 2, 2) for i, o in pairs)
        self.up = nn.ModuleList(block(2 * o, o) for _, o in pairs)
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if i else x)
            kept.append(x)
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([grow(x), kept[-2]], 1))
            kept.pop()
        return self.head(x)


@job()
def volumes_channels_last_compiled():
    """A 3D U-Net in channels-last layout, with a Dice loss."""
    model = VolumeUNet(pick((32, 64, 128), (4, 8, 8))).to(device)
    model = model.to(memory_format=torch.channels_last_3d)
    fast = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
    size = pick(96, 16)
    for _ in range(4):
        x = torch.randn(pick(2, 1), 1, size, size, size, device=device)
        x = x.contiguous(memory_format=torch.channels_last_3d)
        y = torch.randint(0, 4, (len(x), size, size, size), device=device)
        with autocast():
            logits = fast(x).float()
        truth = F.one_hot(y, 4).movedim(-1, 1).float()
        p = logits.softmax(1)
        overlap = (p * truth).sum((0, 2, 3, 4))
        dice = 2 * overlap / (p.sum((0, 2, 3, 4)) + truth.sum((0, 2, 3, 4)) + 1e-5)
        loss = F.cross_entropy(logits, y) + 1 - dice.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def adversaries_in_two_graph_trees():
    """A generator and a critic, both in CUDA graphs; each step is marked for them."""
    width, noise = pick(64, 8), pick(128, 8)
    up = lambda i, o: nn.Sequential(nn.ConvTranspose2d(i, o, 4, 2, 1), nn.ReLU())
    down = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 4, 2, 1), nn.LeakyReLU(0.2))
    generator = nn.Sequential(
        nn.Linear(noise, 8 * width * 16),
        nn.Unflatten(1, (8 * width, 4, 4)),
        up(8 * width, 4 * width),
        up(4 * width, 2 * width),
        up(2 * width, width),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    ).to(device)
    critic = nn.Sequential(
        down(3, width),
        down(width, 2 * width),
        down(2 * width, 4 * width),
        down(4 * width, 8 * width),
        nn.Flatten(),
        nn.Linear(8 * width * 16, 1),
    ).to(device)
    make = torch.compile(generator, mode="reduce-overhead")
    judge = torch.compile(critic, mode="reduce-overhead")
    first = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    second = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        real = torch.rand(pick(512, 2), 3, 64, 64, device=device) * 2 - 1
        with torch.no_grad():
            fake = make(torch.randn(len(real), noise, device=device)).clone()
        loss = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake)).mean()
        second.zero_grad()
        loss.backward()
        second.step()
        torch.compiler.cudagraph_mark_step_begin()
        gain = -judge(make(torch.randn(len(real), noise, device=device))).mean()
        first.zero_grad()
        gain.backward()
        first.step()
        yield


@job()
def partitioned_without_inductor():
    """The backend for finding faults: decompositions and the cut between passes, but no compiled kernels."""
    model = torchvision.models.convnext_tiny(num_classes=100, stochastic_depth_prob=0.0)
    model.to(device).train()
    fast = torch.compile(model, backend="aot_eager_decomp_partition")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    size = pick(224, 64)
    for _ in range(4):
        x = torch.randn(pick(40, 2), 3, size, size, device=device)
        y = torch.randint(0, 100, (len(x),), device=device)
        with autocast():
            loss = F.cross_entropy(fast(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def exported_then_compiled():
    """An encoder is exported with a dynamic batch, runs as it was exported, and then compiled."""
    width = pick(1024, 32)
    model = nn.Sequential(*[Block(width, pick(16, 4)) for _ in range(pick(6, 1))])
    model = model.to(device).half().eval() if not small else model.eval()
    dtype = next(model.parameters()).dtype

    def batches():
        for batch in (24, 64, 40):
            yield torch.randn(
                pick(batch, batch // 8), pick(512, 8), width, device=device, dtype=dtype
            )

    with torch.no_grad():
        sample = torch.randn(4, pick(512, 8), width, device=device, dtype=dtype)

        shape = {0: torch.export.Dim("batch", min=2, max=256)}
        program = torch.export.export(model, (sample,), dynamic_shapes=[shape])
        module = program.module()
        for x in batches():
            module(x).float().std().item()
            yield
        fast = torch.compile(module, dynamic=True)
        for x in batches():
            fast(x).float().std().item()
            yield


if __name__ == "__main__":
    main()
