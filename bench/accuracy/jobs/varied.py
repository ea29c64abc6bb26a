"""Training of many kinds: vision, language, retrieval, agents, adversaries, tables, series, recommenders."""

import copy
import math

import torch
import torchvision
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from job import device, job, main, pick
from parts import Block

CONF = "PYTORCH_CUDA_ALLOC_CONF"


class ConvAct(nn.Sequential):
    def __init__(self, i, o, kernel=3, stride=1, groups=1):
        super().__init__(
            nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(o, eps=1e-3, momentum=0.03),
            nn.SiLU(inplace=True),
        )


class Split(nn.Module):
    """A stage of YOLO: half of the channels pass, the rest goes through bottlenecks, all are joined."""

    def __init__(self, i, o, count, skip=True):
        super().__init__()
        self.half, self.skip = o // 2, skip
        self.first, self.last = ConvAct(i, o, 1), ConvAct((2 + count) * self.half, o, 1)
        self.steps = nn.ModuleList(
            nn.Sequential(ConvAct(self.half, self.half), ConvAct(self.half, self.half))
            for _ in range(count)
        )

    def forward(self, x):
        parts = list(self.first(x).chunk(2, 1))
        for step in self.steps:
            y = step(parts[-1])
            parts.append(parts[-1] + y if self.skip else y)
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    def __init__(self, w, classes, bins=16):
        super().__init__()
        self.stem = nn.Sequential(
            ConvAct(3, w, 3, 2), ConvAct(w, 2 * w, 3, 2), Split(2 * w, 2 * w, 1)
        )
        self.c3 = nn.Sequential(ConvAct(2 * w, 4 * w, 3, 2), Split(4 * w, 4 * w, 2))
        self.c4 = nn.Sequential(ConvAct(4 * w, 8 * w, 3, 2), Split(8 * w, 8 * w, 2))
        self.c5 = nn.Sequential(ConvAct(8 * w, 8 * w, 3, 2), Split(8 * w, 8 * w, 1))
        self.pool = ConvAct(32 * w, 8 * w, 1)
        self.up4, self.up3 = Split(16 * w, 8 * w, 1, False), Split(12 * w, 4 * w, 1, False)
        self.down4, self.out4 = ConvAct(4 * w, 4 * w, 3, 2), Split(12 * w, 8 * w, 1, False)
        self.down5, self.out5 = ConvAct(8 * w, 8 * w, 3, 2), Split(16 * w, 8 * w, 1, False)
        head = lambda i, o: nn.Sequential(
            ConvAct(i, 4 * w), ConvAct(4 * w, 4 * w), nn.Conv2d(4 * w, o, 1)
        )
        self.box = nn.ModuleList(head(i * w, 4 * bins) for i in (4, 8, 8))
        self.kind = nn.ModuleList(head(i * w, classes) for i in (4, 8, 8))

    def forward(self, x):
        c3 = self.c3(self.stem(x))
        c4 = self.c4(c3)
        pools = [self.c5(c4)]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        c5 = self.pool(torch.cat(pools, 1))
        up = lambda t: F.interpolate(t, scale_factor=2.0, mode="nearest")
        p4 = self.up4(torch.cat([up(c5), c4], 1))
        p3 = self.up3(torch.cat([up(p4), c3], 1))
        p4 = self.out4(torch.cat([self.down4(p3), p4], 1))
        p5 = self.out5(torch.cat([self.down5(p4), c5], 1))
        levels = (p3, p4, p5)
        join = lambda heads: torch.cat([h(p).flatten(2) for h, p in zip(heads, levels)], 2)
        return join(self.box).transpose(1, 2), join(self.kind).transpose(1, 2)


@job(**{CONF: "garbage_collection_threshold:0.8"})
def yolo_task_aligned_multi_scale():
    """A detector without anchors, in sizes that change; how many places count as positive depends on values."""
    classes, bins = 80, 16
    model = Yolo(pick(32, 4), classes).to(device, memory_format=torch.channels_last)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
    weights = torch.arange(bins, device=device).float()
    for step, side in enumerate(pick((640, 480, 736, 576, 640), (64, 96))):
        batch, objects = pick(16, 2), 12
        x = torch.rand(batch, 3, side, side, device=device)
        x = x.contiguous(memory_format=torch.channels_last)
        middle = torch.rand(batch, objects, 2, device=device) * side
        half = torch.rand(batch, objects, 2, device=device) * side / 5 + 6
        truth = torch.cat([middle - half, middle + half], -1).clamp(0, side)
        kind = torch.randint(0, classes, (batch, objects), device=device)
        at, strides = [], []
        for stride in (8, 16, 32):
            axis = (torch.arange(side // stride, device=device) + 0.5) * stride
            grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).view(-1, 2)
            at.append(grid)
            strides.append(torch.full((len(grid), 1), stride, device=device))
        at, strides = torch.cat(at), torch.cat(strides)
        with torch.autocast(device, dtype=torch.bfloat16):
            sides, logits = model(x)
        logits, sides = logits.float(), sides.float().unflatten(-1, (4, bins))
        lengths = (sides.softmax(-1) @ weights) * strides
        boxes = torch.cat([at - lengths[..., :2], at + lengths[..., 2:]], -1)
        with torch.no_grad():
            overlap = torch.stack(
                [torchvision.ops.box_iou(t, b) for t, b in zip(truth, boxes.detach())]
            )
            score = logits.sigmoid().gather(2, kind[:, None].expand(-1, len(at), -1))
            inside = (at > truth[:, :, None, :2]) & (at < truth[:, :, None, 2:])
            metric = score.mT.sqrt() * overlap.pow(6) * inside.all(-1)
            best = metric.topk(10, -1)
            mine = torch.zeros_like(metric).scatter_(-1, best.indices, 1.0) * (metric > 1e-9)
            twice = mine.sum(1, keepdim=True) > 1
            only = F.one_hot(overlap.argmax(1), objects).permute(0, 2, 1).float()
            mine = torch.where(twice, only, mine)
            taken, owner = mine.sum(1) > 0, mine.argmax(1)
            wanted = torch.zeros_like(logits)
            share = (metric / (metric.amax(-1, keepdim=True) + 1e-9) * mine).amax(1)
            wanted.scatter_(2, kind.gather(1, owner)[..., None], share[..., None])
        loss = F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
        loss = loss / share.sum().clamp(min=1)
        if taken.any():
            target = truth.gather(1, owner[..., None].expand(-1, -1, 4))[taken]
            loss = loss + 7.5 * torchvision.ops.complete_box_iou_loss(boxes[taken], target).mean()
            place = at.expand(batch, -1, -1)[taken]
            reach = torch.cat([place - target[:, :2], target[:, 2:] - place], 1)
            reach = reach / strides.expand(batch, -1, 1)[taken]
            reach = reach.clamp(0, bins - 1.01)
            low, flat = reach.long(), sides[taken].flatten(0, 1)
            left = F.cross_entropy(flat, low.flatten(), reduction="none").view_as(reach)
            right = F.cross_entropy(flat, low.flatten() + 1, reduction="none").view_as(reach)
            part = reach - low
            loss = loss + 1.5 * (left * (1 - part) + right * part).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            decay = 0.9999 * (1 - math.exp(-(step + 1) / 2000))
            for slow, fast in zip(average.state_dict().values(), model.state_dict().values()):
                if slow.is_floating_point():
                    slow.mul_(decay).add_(fast, alpha=1 - decay)
        yield loss.item()


@job()
def set_prediction_matched_on_host():
    """DETR by hand: costs of all pairs go to the host, which matches greedily; auxiliary losses in each layer."""
    width, queries, classes, depth = pick(256, 32), pick(100, 8), 91, pick(6, 2)
    body = torchvision.models.resnet50(norm_layer=torchvision.ops.FrozenBatchNorm2d)
    body = nn.Sequential(*list(body.children())[:-2])
    project = nn.Conv2d(2048, width, 1)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(width, 8, 8 * width, 0.1, batch_first=True), depth
    )
    decoder = nn.ModuleList(
        nn.TransformerDecoderLayer(width, 8, 8 * width, 0.1, batch_first=True) for _ in range(depth)
    )
    query = nn.Embedding(queries, width)
    kind, box = nn.Linear(width, classes + 1), nn.Sequential(nn.Linear(width, width), nn.ReLU())
    box.append(nn.Linear(width, 4))
    model = nn.ModuleList([body, project, encoder, decoder, query, kind, box]).to(device)
    optimizer = torch.optim.AdamW(
        [
            dict(params=body.parameters(), lr=1e-5),
            dict(params=[p for m in model[1:] for p in m.parameters()], lr=1e-4),
        ],
        weight_decay=1e-4,
    )

    def matched(cost):
        """The pairs of least cost, one after the other; cost is a list of queries × objects on the host."""
        pairs = []
        for one in cost:
            one, rows, columns = one.clone(), [], []
            for _ in range(one.shape[1]):
                at = int(one.argmin())
                row, column = divmod(at, one.shape[1])
                rows.append(row)
                columns.append(column)
                one[row], one[:, column] = math.inf, math.inf
            pairs.append((torch.tensor(rows), torch.tensor(columns)))
        return pairs

    for height, wide in pick(
        ((640, 800), (800, 704), (512, 768), (736, 992)), ((64, 96), (96, 64))
    ):
        batch = pick(4, 2)
        x = torch.randn(batch, 3, height, wide, device=device)
        counts = torch.randint(1, queries // 4 + 2, (batch,)).tolist()
        truth = [torch.rand(n, 4, device=device) * 0.4 + 0.3 for n in counts]
        kinds = [torch.randint(0, classes, (n,), device=device) for n in counts]
        h = project(body(x)).flatten(2).transpose(1, 2)
        at = torch.arange(h.shape[1], device=device)[:, None] * torch.logspace(
            0, -4, width // 2, device=device
        )
        place = torch.cat([at.sin(), at.cos()], 1)
        memory = encoder(h + place)
        y = query.weight.expand(batch, -1, -1)
        loss = 0
        for layer in decoder:
            y = layer(y, memory)
            logits, boxes = kind(y), box(y).sigmoid()
            with torch.no_grad():
                near = torch.cdist(boxes.flatten(0, 1), torch.cat(truth), p=1)
                likely = logits.flatten(0, 1).softmax(-1)[:, torch.cat(kinds)]
                cost = (5 * near - likely).view(batch, queries, -1).cpu()
                pairs = matched([c[i] for i, c in enumerate(cost.split(counts, -1))])
            labels = torch.full((batch, queries), classes, device=device)
            for i, (rows, columns) in enumerate(pairs):
                labels[i, rows] = kinds[i][columns]
            weight = torch.ones(classes + 1, device=device)
            weight[-1] = 0.1
            loss = loss + F.cross_entropy(logits.transpose(1, 2), labels, weight)
            which = torch.cat([torch.full_like(r, i) for i, (r, _) in enumerate(pairs)])
            rows = torch.cat([r for r, _ in pairs])
            target = torch.cat([t[c] for t, (_, c) in zip(truth, pairs)])
            found = boxes[which, rows]
            corners = lambda b: torchvision.ops.box_convert(b, "cxcywh", "xyxy")
            loss = loss + 5 * F.l1_loss(found, target, reduction="sum") / len(rows)
            loss = loss + torchvision.ops.generalized_box_iou_loss(
                corners(found), corners(target), reduction="mean"
            )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        yield loss.item()


@job()
def segmentation_lovasz_hard_pixels():
    """A two-branch net for streets: hard pixels by a quantile, Lovász's loss by sorting each class, aux heads."""
    classes, w = 19, pick(64, 8)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.detail = nn.Sequential(
                ConvAct(3, w, 3, 2),
                ConvAct(w, w),
                ConvAct(w, w, 3, 2),
                ConvAct(w, w),
                ConvAct(w, 2 * w, 3, 2),
                ConvAct(2 * w, 2 * w),
            )
            body = torchvision.models.mobilenet_v2().features
            self.early, self.late = body[:7], body[7:-1]
            self.context = nn.ModuleList([ConvAct(320, 2 * w, 1), ConvAct(320, 2 * w, 1)])
            self.fuse = nn.ModuleList([ConvAct(4 * w, 2 * w), nn.Conv2d(2 * w, 2 * w, 1)])
            self.head = nn.Sequential(
                ConvAct(2 * w, 4 * w), nn.Dropout(0.1), nn.Conv2d(4 * w, classes, 1)
            )
            self.aux = nn.Conv2d(32, classes, 1)

        def forward(self, x):
            size = x.shape[2:]
            fine = self.detail(x)
            early = self.early(x)
            deep = self.late(early)
            whole = self.context[1](deep.mean((2, 3), keepdim=True))
            deep = self.context[0](deep) + whole
            deep = F.interpolate(deep, size=fine.shape[2:], mode="bilinear", align_corners=False)
            y = self.fuse[0](torch.cat([fine, deep], 1))
            y = y + y * self.fuse[1](y.mean((2, 3), keepdim=True)).sigmoid()
            outs = [self.head(y)] + ([self.aux(early)] if self.training else [])
            return [F.interpolate(o, size=size, mode="bilinear", align_corners=False) for o in outs]

    def lovasz(logits, labels):
        likely = logits.softmax(1).permute(0, 2, 3, 1).reshape(-1, classes)
        labels, losses = labels.flatten(), []
        for c in range(classes):
            own = (labels == c).float()
            off, order = (own - likely[:, c]).abs().sort(descending=True)
            own = own[order]
            joint = own.sum() - own.cumsum(0)
            union = own.sum() + (1 - own).cumsum(0)
            jaccard = 1 - joint / union
            slope = torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])
            losses.append(off @ slope)
        return torch.stack(losses).mean()

    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=True)
    poly = torch.optim.lr_scheduler.PolynomialLR(optimizer, 1000, 0.9)
    for _ in range(4):
        x = torch.randn(pick(8, 2), 3, pick(512, 64), pick(1024, 96), device=device)
        labels = torch.randint(0, classes, (len(x), *x.shape[2:]), device=device)
        main_out, aux = model(x)
        each = F.cross_entropy(main_out, labels, reduction="none").flatten()
        hard = each.topk(each.numel() // 16).values.mean()
        loss = hard + lovasz(main_out, labels) + 0.4 * F.cross_entropy(aux, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        poly.step()
        yield loss.item()
    model.eval()
    optimizer.zero_grad()
    torch.cuda.empty_cache()
    with torch.no_grad():
        confusion = torch.zeros(classes**2, dtype=torch.long, device=device)
        for _ in range(2):
            x = torch.randn(1, 3, pick(1024, 64), pick(2048, 128), device=device)
            guess = model(x)[0].softmax(1) + model(x.flip(3))[0].flip(3).softmax(1)
            less = model(F.interpolate(x, scale_factor=0.75, mode="bilinear"))[0].softmax(1)
            guess += F.interpolate(less, size=x.shape[2:], mode="bilinear")
            guess = guess.argmax(1)
            labels = torch.randint(0, classes, guess.shape, device=device)
            confusion += torch.bincount((labels * classes + guess).flatten(), minlength=classes**2)
    yield confusion.view(classes, classes).diagonal().sum().item()


class NoisyLinear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.mean, self.spread = nn.Linear(i, o), nn.Linear(i, o)
        nn.init.constant_(self.spread.weight, 0.5 / math.sqrt(i))
        nn.init.constant_(self.spread.bias, 0.5 / math.sqrt(i))

    def forward(self, x):
        f = lambda n: (lambda e: e.sign() * e.abs().sqrt())(torch.randn(n, device=x.device))
        a, b = f(self.mean.in_features), f(self.mean.out_features)
        weight = self.mean.weight + self.spread.weight * torch.outer(b, a)
        return F.linear(x, weight, self.mean.bias + self.spread.bias * b)


@job()
def rainbow_prioritized_frames():
    """Rainbow: frames as bytes on the host, a tree of priorities there, distributions over returns, noisy nets."""
    atoms, actions, room = 51, 18, pick(20000, 60)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            w = pick(128, 4)
            self.body = nn.Sequential(
                nn.Conv2d(4, w, 8, 4), nn.ReLU(), nn.Conv2d(w, 2 * w, 4, 2), nn.ReLU()
            )
            self.body.extend([nn.Conv2d(2 * w, 2 * w, 3), nn.ReLU(), nn.Flatten()])
            hidden = pick(1024, 16)
            self.value = nn.Sequential(
                NoisyLinear(98 * w, hidden), nn.ReLU(), NoisyLinear(hidden, atoms)
            )
            self.gain = nn.Sequential(
                NoisyLinear(98 * w, hidden), nn.ReLU(), NoisyLinear(hidden, atoms * actions)
            )

        def forward(self, x, log=False):
            h = self.body(x.float().div_(255))
            gain = self.gain(h).view(-1, actions, atoms)
            q = self.value(h)[:, None] + gain - gain.mean(1, keepdim=True)
            return q.log_softmax(-1) if log else q.softmax(-1)

    net, target = Net().to(device), Net().to(device)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-5, eps=1.5e-4)
    support = torch.linspace(-10, 10, atoms, device=device)
    frames = torch.randint(0, 256, (room, 84, 84), dtype=torch.uint8)
    acts, rewards = torch.randint(0, actions, (room,)), torch.randn(room)
    priority = torch.ones(room - 8)
    batch = pick(1024, 4)
    for step in range(5):
        at = torch.multinomial(priority, batch, replacement=True)
        share = priority[at] / priority.sum()
        weight = (len(priority) * share).pow(-0.5)
        weight = (weight / weight.max()).pin_memory().to(device, non_blocking=True)
        window = torch.arange(4)
        now = frames[at[:, None] + window].pin_memory().to(device, non_blocking=True)
        then = frames[at[:, None] + window + 3].pin_memory().to(device, non_blocking=True)
        a, r = acts[at + 3].to(device), rewards[at + 3].to(device)
        log = net(now, log=True)[torch.arange(batch, device=device), a]
        with torch.no_grad():
            best = (net(then) * support).sum(-1).argmax(-1)
            p = target(then)[torch.arange(batch, device=device), best]
            z = (r[:, None] + 0.99**3 * support).clamp(-10, 10)
            b = (z + 10) / (20 / (atoms - 1))
            low, high = b.floor().long(), b.ceil().long()
            low[(high > 0) & (low == high)] -= 1
            high[(low < atoms - 1) & (low == high)] += 1
            m = torch.zeros(batch, atoms, device=device)
            start = torch.arange(batch, device=device)[:, None] * atoms
            m.view(-1).index_add_(0, (low + start).view(-1), (p * (high.float() - b)).view(-1))
            m.view(-1).index_add_(0, (high + start).view(-1), (p * (b - low.float())).view(-1))
        each = -(m * log).sum(1)
        optimizer.zero_grad()
        (weight * each).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        priority[at] = each.detach().cpu().pow(0.5)
        if step % 2:
            target.load_state_dict(net.state_dict())
        yield each.mean().item()


class Modulated(nn.Module):
    """StyleGAN2's convolution: weights scaled for each picture, all of them in one grouped convolution."""

    def __init__(self, i, o, style, kernel=3, up=False, demodulate=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i, kernel, kernel))
        self.style, self.bias = nn.Linear(style, i), nn.Parameter(torch.zeros(o))
        self.strength = nn.Parameter(torch.zeros(()))
        self.up, self.demodulate = up, demodulate
        blur = torch.tensor([1.0, 3.0, 3.0, 1.0])
        self.register_buffer("blur", (blur[:, None] * blur / 64)[None, None])

    def forward(self, x, w):
        b, i, h, wide = x.shape
        s = self.style(w) + 1
        weight = self.weight[None] * s[:, None, :, None, None] / math.sqrt(i * 9)
        if self.demodulate:
            weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
        if self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            c = x.shape[1]
            x = F.conv2d(F.pad(x, (2, 1, 2, 1)), self.blur.expand(c, 1, 4, 4), groups=c)
            h, wide = 2 * h, 2 * wide
        x = x.reshape(1, b * i, h, wide)
        pad = self.weight.shape[-1] // 2
        x = F.conv2d(x, weight.flatten(0, 1), padding=pad, groups=b).view(b, -1, h, wide)
        if self.demodulate:
            x = x + self.strength * torch.randn(b, 1, h, wide, device=x.device)
            return F.leaky_relu(x + self.bias[:, None, None], 0.2) * math.sqrt(2)
        return x + self.bias[:, None, None]


@job()
def style_gan_lazy_regularization():
    """StyleGAN2: R1 and path lengths, each differentiated twice, every second step only; a moving average."""
    style, widths = pick(512, 16), pick((512, 512, 512, 256, 128, 64), (16, 8, 8))

    class Generator(nn.Module):
        def __init__(self):
            super().__init__()
            mapping = []
            for _ in range(8):
                mapping += [nn.Linear(style, style), nn.LeakyReLU(0.2)]
            self.mapping = nn.Sequential(*mapping)
            self.start = nn.Parameter(torch.randn(1, widths[0], 4, 4))
            self.first = Modulated(widths[0], widths[0], style)
            self.layers, self.rgb = nn.ModuleList(), nn.ModuleList()
            for i, o in zip(widths, widths[1:]):
                self.layers.append(
                    nn.ModuleList([Modulated(i, o, style, up=True), Modulated(o, o, style)])
                )
                self.rgb.append(Modulated(o, 3, style, 1, demodulate=False))

        def forward(self, w):
            x, picture = self.first(self.start.expand(len(w), -1, -1, -1), w), None
            for (one, two), rgb in zip(self.layers, self.rgb):
                x = two(one(x, w), w)
                now = rgb(x, w)
                if picture is not None:
                    now = now + F.interpolate(
                        picture, scale_factor=2, mode="bilinear", align_corners=False
                    )
                picture = now
            return picture

    class Residual(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            act = nn.LeakyReLU(0.2)
            self.body = nn.Sequential(nn.Conv2d(i, i, 3, 1, 1), act, nn.Conv2d(i, o, 3, 1, 1), act)
            self.skip = nn.Conv2d(i, o, 1, bias=False)

        def forward(self, x):
            return F.avg_pool2d(self.body(x) + self.skip(x), 2) / math.sqrt(2)

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            back = widths[::-1]
            self.stem = nn.Conv2d(3, back[0], 1)
            self.body = nn.Sequential(*[Residual(i, o) for i, o in zip(back, back[1:])])
            self.end = nn.Conv2d(back[-1] + 1, back[-1], 3, padding=1)
            self.out = nn.Sequential(nn.Linear(16 * back[-1], style), nn.LeakyReLU(0.2))
            self.out.append(nn.Linear(style, 1))

        def forward(self, x):
            h = self.body(self.stem(x))
            group = h.view(-1, len(h) // 2, *h.shape[1:]) if len(h) % 2 == 0 else h[None]
            spread = (group.var(0, unbiased=False) + 1e-8).sqrt().mean((1, 2, 3))
            spread = spread.repeat(len(group))[:, None, None, None].expand(-1, -1, 4, 4)
            return self.out(F.leaky_relu(self.end(torch.cat([h, spread], 1)), 0.2).flatten(1))

    g, d = Generator().to(device), Critic().to(device)
    average = copy.deepcopy(g).requires_grad_(False)
    og = torch.optim.Adam(g.parameters(), lr=2e-3, betas=(0.0, 0.99))
    od = torch.optim.Adam(d.parameters(), lr=2e-3, betas=(0.0, 0.99))
    batch, usual = pick(16, 4), torch.zeros((), device=device)
    side = 4 * 2 ** (len(widths) - 1)
    for step in range(4):
        real = torch.randn(batch, 3, side, side, device=device)
        d.requires_grad_(True)
        with torch.no_grad():
            fake = g(g.mapping(torch.randn(batch, style, device=device)))
        loss = F.softplus(d(fake)).mean() + F.softplus(-d(real)).mean()
        od.zero_grad()
        loss.backward()
        od.step()
        if step % 2 == 0:
            real.requires_grad_()
            (slope,) = torch.autograd.grad(d(real).sum(), real, create_graph=True)
            od.zero_grad()
            (5 * 16 * slope.square().sum((1, 2, 3)).mean()).backward()
            od.step()
            real.requires_grad_(False)
        d.requires_grad_(False)
        w = g.mapping(torch.randn(batch, style, device=device))
        loss = F.softplus(-d(g(w))).mean()
        og.zero_grad()
        loss.backward()
        og.step()
        if step % 2:
            w = g.mapping(torch.randn(batch // 2, style, device=device))
            picture = g(w)
            noise = torch.randn_like(picture) / side
            (slope,) = torch.autograd.grad((picture * noise).sum(), w, create_graph=True)
            length = slope.square().sum(1).sqrt()
            usual = usual.lerp(length.mean().detach(), 0.01)
            og.zero_grad()
            (2 * (length - usual).square().mean()).backward()
            og.step()
        for slow, fast in zip(average.parameters(), g.parameters()):
            slow.copy_(fast.detach().lerp(slow, 0.999))
        yield loss.item()


@job()
def quantized_picture_autoencoder():
    """VQGAN: codes by distances, a perceptual loss by VGG's features, the adversary's weight by two gradients."""
    w, codes, size = pick(96, 8), pick(4096, 32), pick(256, 8)

    def residual(i, o):
        return nn.Sequential(
            nn.GroupNorm(8, i),
            nn.SiLU(),
            nn.Conv2d(i, o, 3, padding=1),
            nn.GroupNorm(8, o),
            nn.SiLU(),
        ).append(nn.Conv2d(o, o, 3, padding=1))

    encoder = nn.Sequential(nn.Conv2d(3, w, 3, padding=1))
    for i, o in ((w, w), (w, 2 * w), (2 * w, 2 * w), (2 * w, 4 * w)):
        encoder.extend([residual(i, o), nn.Conv2d(o, o, 3, 2, 1)])
    encoder.append(nn.Conv2d(4 * w, size, 1))
    decoder = nn.Sequential(nn.Conv2d(size, 4 * w, 1))
    for i, o in ((4 * w, 2 * w), (2 * w, 2 * w), (2 * w, w), (w, w)):
        decoder.extend([residual(i, o), nn.Upsample(scale_factor=2), nn.Conv2d(o, o, 3, 1, 1)])
    decoder.extend([nn.GroupNorm(8, w), nn.SiLU(), nn.Conv2d(w, 3, 3, padding=1)])
    book = nn.Embedding(codes, size)
    model = nn.ModuleList([encoder, decoder, book]).to(device)
    vgg = torchvision.models.vgg16().features[:23].to(device).eval().requires_grad_(False)
    critic = nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2))
    for i, o in ((64, 128), (128, 256)):
        critic.extend([nn.Conv2d(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.LeakyReLU(0.2)])
    critic.append(nn.Conv2d(256, 1, 4, 1, 1)).to(device)
    og = torch.optim.Adam(model.parameters(), lr=4.5e-6, betas=(0.5, 0.9))
    od = torch.optim.Adam(critic.parameters(), lr=4.5e-6, betas=(0.5, 0.9))
    for _ in range(3):
        x = torch.rand(pick(8, 2), 3, pick(256, 32), pick(256, 32), device=device) * 2 - 1
        z = encoder(x)
        flat = z.permute(0, 2, 3, 1).reshape(-1, size)
        away = flat.square().sum(1, keepdim=True) + book.weight.square().sum(1)
        away = torch.addmm(away, flat, book.weight.T, alpha=-2)
        index = away.argmin(1)
        q = book(index).view(len(z), *z.shape[2:], size).permute(0, 3, 1, 2)
        commit = F.mse_loss(q.detach(), z) * 0.25 + F.mse_loss(q, z.detach())
        made = decoder(z + (q - z).detach())
        likeness, a, b = (x - made).abs().mean(), x, made
        for i, layer in enumerate(vgg):
            a, b = layer(a), layer(b)
            if i in (3, 8, 15, 22):
                likeness = likeness + (F.normalize(a) - F.normalize(b)).square().sum(1).mean()
        fooled = -critic(made).mean()
        last = decoder[-1].weight
        one = torch.autograd.grad(likeness, last, retain_graph=True)[0].norm()
        two = torch.autograd.grad(fooled, last, retain_graph=True)[0].norm()
        weight = (one / (two + 1e-4)).clamp(0, 1e4).detach()
        og.zero_grad()
        (likeness + commit + 0.8 * weight * fooled).backward()
        og.step()
        loss = F.relu(1 - critic(x)).mean() + F.relu(1 + critic(made.detach())).mean()
        od.zero_grad()
        loss.backward()
        od.step()
        used = index.unique().numel()
        yield used


@job()
def features_by_hooks_distilled():
    """A teacher's features are taken by forward hooks; relations between pictures are matched too."""
    names = ("layer2", "layer3", "layer4")
    teacher = torchvision.models.wide_resnet50_2(num_classes=200).to(device).eval()
    student = torchvision.models.resnet18(num_classes=200).to(device).train()
    teacher.requires_grad_(False)
    kept = {}

    def keep(owner, name):
        def hook(module, inputs, output):
            kept[owner, name] = output

        return hook

    for name in names:
        teacher.get_submodule(name).register_forward_hook(keep("teacher", name))
        student.get_submodule(name).register_forward_hook(keep("student", name))
    bridges = nn.ModuleDict()
    with torch.no_grad():
        probe = torch.randn(2, 3, 64, 64, device=device)
        teacher(probe), student(probe)
    for n in names:
        i, o = kept["student", n].shape[1], kept["teacher", n].shape[1]
        bridges[n] = nn.Conv2d(i, o, 1).to(device)
    optimizer = torch.optim.SGD(
        [*student.parameters(), *bridges.parameters()],
        lr=0.05,
        momentum=0.9,
        fused=device == "cuda",
    )
    for batch in pick((64, 64, 48), (4, 3)):
        x = torch.randn(batch, 3, pick(224, 64), pick(224, 64), device=device)
        y = torch.randint(0, 200, (batch,), device=device)
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
            soft = teacher(x)
        with torch.autocast(device, dtype=torch.bfloat16):
            out = student(x)
        loss = F.cross_entropy(out.float(), y)
        loss = loss + 4 * F.kl_div(
            F.log_softmax(out.float() / 2, -1),
            F.softmax(soft.float() / 2, -1),
            reduction="batchmean",
        )
        for name in names:
            s, t = bridges[name](kept["student", name].float()), kept["teacher", name].float()
            loss = loss + F.mse_loss(
                F.normalize(s.square().mean(1).flatten(1)),
                F.normalize(t.square().mean(1).flatten(1)),
            )
            s, t = s.mean((2, 3)), t.mean((2, 3))
            ds, dt = torch.pdist(s), torch.pdist(t)
            loss = loss + F.smooth_l1_loss(ds / ds.mean(), dt / dt.mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def private_gradients_per_sample():
    """DP-SGD: each picture's gradient by vmap over grad in chunks, clipped, summed, noise added."""
    norm = lambda c: nn.GroupNorm(8, c)
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), norm(64), nn.Tanh())
    for i, o in pick(((64, 128), (128, 256), (256, 256)), ((64, 64),)):
        model.extend([nn.Conv2d(i, o, 3, padding=1), norm(o), nn.Tanh(), nn.AvgPool2d(2)])
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(o, 10)]).to(device)
    params = {k: p.detach() for k, p in model.named_parameters()}
    moments = {k: torch.zeros_like(p) for k, p in params.items()}

    def loss(params, x, y):
        return F.cross_entropy(functional_call(model, params, (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=pick(256, 3))
    for _ in range(3):
        total = {k: torch.zeros_like(p) for k, p in params.items()}
        for _ in range(2):
            x = torch.randn(pick(512, 4), 3, 32, 32, device=device)
            y = torch.randint(0, 10, (len(x),), device=device)
            grads = each(params, x, y)
            size = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
            factor = (1.0 / (size + 1e-6)).clamp(max=1)
            for k, g in grads.items():
                total[k] += torch.einsum("n,n...->...", factor, g)
            del grads
        for k, p in params.items():
            noisy = (total[k] + 1.1 * torch.randn_like(p)) / pick(1024, 8)
            moments[k].mul_(0.9).add_(noisy)
            p.sub_(moments[k], alpha=0.1)
        yield size.mean().item()


@job()
def projected_conflicting_gradients():
    """Depth, normals and classes of pixels from one encoder; conflicting gradients are projected (PCGrad)."""
    body = torchvision.models.resnet34()
    body = nn.Sequential(*list(body.children())[:-2])
    head = lambda o: nn.Sequential(
        nn.ConvTranspose2d(512, 128, 4, 4), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4, 4), nn.ReLU()
    ).append(nn.Sequential(nn.Conv2d(64, o, 1), nn.Upsample(scale_factor=2, mode="bilinear")))
    heads = nn.ModuleDict(dict(depth=head(1), normal=head(3), kind=head(13)))
    model = nn.ModuleDict(dict(body=body, heads=heads)).to(device)
    shared = list(body.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    order = torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randn(pick(12, 2), 3, pick(288, 64), pick(384, 64), device=device)
        size = x.shape[2:]
        depth = torch.rand(len(x), 1, *size, device=device) + 0.1
        normal = F.normalize(torch.randn(len(x), 3, *size, device=device))
        kind = torch.randint(-1, 13, (len(x), *size), device=device)
        h = body(x)
        out = {k: head(h) for k, head in heads.items()}
        ratio = (F.softplus(out["depth"]) + 1e-3).log() - depth.log()
        losses = [
            ratio.square().mean() - 0.5 * ratio.mean().square(),
            (1 - F.cosine_similarity(out["normal"], normal)).mean(),
            F.cross_entropy(out["kind"], kind, ignore_index=-1),
        ]
        optimizer.zero_grad()
        flat = []
        for i, loss in enumerate(losses):
            loss.backward(retain_graph=i < 2)
            flat.append(torch.cat([p.grad.flatten() for p in shared]))
            for p in shared:
                p.grad = None
        mixed = [f.clone() for f in flat]
        for i, f in enumerate(mixed):
            for j in torch.randperm(3, generator=order).tolist():
                inner = f @ flat[j]
                if i != j and inner < 0:
                    f -= inner / flat[j].square().sum() * flat[j]
        total = torch.stack(mixed).sum(0)
        for p, g in zip(shared, total.split([p.numel() for p in shared])):
            p.grad = g.view_as(p)
        optimizer.step()
        yield [loss.item() for loss in losses]


@job()
def feature_tokens_for_tables():
    """FT-Transformer: a token for each column, piecewise-linear codes of numbers, an evaluation with AUC by sort."""
    numbers, kinds, bins, width = pick(60, 4), pick(20, 2), pick(48, 5), pick(192, 16)
    edges = torch.sort(torch.randn(numbers, bins + 1), dim=1).values.to(device)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(numbers, bins, width) / bins)
            self.bias = nn.Parameter(torch.zeros(numbers, width))
            self.embed = nn.Embedding(100 * kinds, width)
            self.first = nn.Parameter(torch.zeros(1, 1, width))
            self.blocks = nn.ModuleList(Block(width, 8, expand=2) for _ in range(pick(4, 1)))
            self.out = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

        def forward(self, number, kind):
            low, high = edges[:, :-1], edges[:, 1:]
            code = ((number[..., None] - low) / (high - low + 1e-6)).clamp(0, 1)
            tokens = torch.einsum("nfb,fbd->nfd", code, self.weight) + self.bias
            shift = torch.arange(kinds, device=kind.device) * 100
            x = [self.first.expand(len(number), -1, -1), tokens, self.embed(kind + shift)]
            x = torch.cat(x, 1)
            for block in self.blocks:
                x = block(x)
            return self.out(x[:, 0])[:, 0]

    model = Net().to(device)
    skip = {p for n, p in model.named_parameters() if "norm" in n or n.endswith("bias")}
    optimizer = torch.optim.AdamW(
        [
            dict(params=[p for p in model.parameters() if p not in skip], weight_decay=1e-5),
            dict(params=list(skip), weight_decay=0.0),
        ],
        lr=1e-4,
        fused=device == "cuda",
    )
    rows = pick(60000, 50)
    table = torch.randn(rows, numbers, device=device)
    table[torch.rand_like(table) < 0.05] = 0.0
    kind = torch.randint(0, 100, (rows, kinds), device=device)
    label = (torch.rand(rows, device=device) < 0.3).float()
    order = torch.randperm(rows, device=device)
    for i in range(4):
        model.train()
        batch = order[i * pick(4096, 8) : (i + 1) * pick(4096, 8)]
        out = model(table[batch], kind[batch])
        loss = F.binary_cross_entropy_with_logits(out, label[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
    model.eval()
    with torch.inference_mode():
        out = torch.cat([model(t, k) for t, k in zip(table.split(8192), kind.split(8192))])
        rank = out.argsort().argsort().double() + 1
        positive = label.sum()
        area = (rank[label.bool()].sum() - positive * (positive + 1) / 2) / positive
    yield (area / (rows - positive)).item()


@job()
def ensemble_of_forecasters_by_vmap():
    """N-BEATS for thousands of series: twelve members at once by stacked weights and vmap, other data for each."""
    back, ahead, width = pick(168, 12), pick(48, 4), pick(512, 8)

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [nn.Linear(back, width), nn.ReLU()]
            for _ in range(3):
                layers += [nn.Linear(width, width), nn.ReLU()]
            self.body = nn.Sequential(*layers)
            self.theta = nn.Linear(width, 16)
            grid = torch.linspace(-1, 1, back + ahead)[:, None]
            wave = torch.cat([grid**i for i in range(4)], 1)
            wave = torch.cat(
                [
                    wave,
                    *[f(math.pi * i * grid) for i in range(1, 7) for f in (torch.sin, torch.cos)],
                ],
                1,
            )
            self.register_buffer("basis", wave)

        def forward(self, x):
            return (self.theta(self.body(x)) @ self.basis.T).split([back, ahead], -1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList(Stage() for _ in range(pick(10, 2)))

        def forward(self, x):
            total = 0
            for stage in self.stages:
                past, future = stage(x)
                x, total = x - past, total + future
            return total

    members = [Net().to(device) for _ in range(pick(12, 2))]
    params, buffers = stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")
    optimizer = torch.optim.Adamax(params.values(), lr=1e-3)
    run = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)))
    series = torch.randn(pick(4000, 20), pick(2000, 40), device=device).cumsum(1)
    for _ in range(5):
        which = torch.randint(0, len(series), (len(members), pick(2048, 5)), device=device)
        start = torch.randint(0, series.shape[1] - back - ahead, which.shape, device=device)
        at = start[..., None] + torch.arange(back + ahead, device=device)
        window = series[which[..., None], at]
        scale = window[..., :back].abs().mean(-1, keepdim=True) + 1e-3
        past, future = (window / scale).split([back, ahead], -1)
        guess = run(params, buffers, past)
        q = torch.where(guess < future, 0.6 * (future - guess), 0.4 * (guess - future))
        loss = q.mean((1, 2)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job()
def compiled_cross_network_bags():
    """A click model: bags of hashed features of any length, a cross network, compiled; row-wise Adagrad by hand."""
    tables, rows, width = pick(24, 3), pick(400000, 50), pick(64, 8)
    bags = nn.ModuleList(
        nn.EmbeddingBag(rows, width, mode="mean", device=device) for _ in range(tables)
    )
    size = tables * width + 13

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            rank = pick(256, 8)
            self.down = nn.ModuleList(nn.Linear(size, rank, bias=False) for _ in range(4))
            self.up = nn.ModuleList(nn.Linear(rank, size) for _ in range(4))
            self.deep = nn.Sequential(nn.Linear(size, pick(1024, 8)), nn.ReLU(), nn.Dropout(0.2))
            self.deep.extend([nn.Linear(pick(1024, 8), pick(1024, 8)), nn.ReLU()])
            self.out = nn.Linear(size + pick(1024, 8), 1)

        def forward(self, x):
            y = x
            for down, up in zip(self.down, self.up):
                y = x * up(down(y)) + y
            return self.out(torch.cat([y, self.deep(x)], 1))[:, 0]

    net = torch.compile(Cross().to(device))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    squares = [torch.zeros(rows, 1, device=device) for _ in range(tables)]
    draw = torch.Generator().manual_seed(9)
    for _ in range(5):
        batch, found = pick(16384, 6), []
        for bag in bags:
            lengths = torch.randint(1, 8, (batch,), generator=draw)
            offsets = F.pad(lengths.cumsum(0)[:-1], (1, 0))
            ids = torch.randint(0, rows, (int(lengths.sum()),), generator=draw)
            found.append(bag(ids.to(device), offsets.to(device)))
        dense = torch.rand(batch, 13, device=device).log1p()
        out = net(torch.cat([dense, *found], 1))
        loss = F.binary_cross_entropy_with_logits(out, (torch.rand_like(out) < 0.2).float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for bag, square in zip(bags, squares):
                g = bag.weight.grad
                square += g.square().mean(1, keepdim=True)
                bag.weight.addcdiv_(g, square.sqrt() + 1e-8, value=-0.02)
                bag.weight.grad = None
        yield loss.item()


class ChunkedCrossEntropy(torch.autograd.Function):
    """The head and its loss in chunks of rows; gradients are computed at once, logits never kept."""

    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk):
        total = hidden.new_zeros((), dtype=torch.float32)
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        for i in range(0, len(hidden), chunk):
            part, label = hidden[i : i + chunk], labels[i : i + chunk]
            logits = (part @ weight.t()).float()
            log = logits.logsumexp(-1, keepdim=True)
            total += (log[:, 0] - logits.gather(1, label[:, None])[:, 0]).sum()
            logits.sub_(log).exp_()
            logits.scatter_add_(1, label[:, None], logits.new_full((len(label), 1), -1))
            d = (logits / len(hidden)).to(hidden.dtype)
            d_hidden[i : i + chunk] = d @ weight
            d_weight += (d.t() @ part).float()
        ctx.save_for_backward(d_hidden, d_weight.to(weight.dtype))
        return total / len(hidden)

    @staticmethod
    def backward(ctx, above):
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * above, d_weight * above, None, None


@job()
def loss_in_chunks_large_vocabulary():
    """A bfloat16 GPT with tied weights: the head and the loss over 128,000 words go in chunks, logits are never kept."""
    vocab, width, length = pick(128000, 300), pick(1536, 48), pick(2048, 12)
    with torch.device(device):
        embed, place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        blocks = nn.ModuleList(Block(width, 12, causal=True) for _ in range(pick(12, 2)))
        norm = nn.LayerNorm(width)
    model = nn.ModuleList([embed, place, blocks, norm]).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
    for batch in pick((6, 8, 6), (2, 3)):
        ids = torch.randint(0, vocab, (batch, length + 1), device=device)
        x = embed(ids[:, :-1]) + place.weight
        for block in blocks:
            x = block(x)
        x = norm(x).flatten(0, 1)
        loss = ChunkedCrossEntropy.apply(x, embed.weight, ids[:, 1:].flatten(), pick(2048, 5))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


@job(**{CONF: "expandable_segments:True"})
def self_distillation_many_crops():
    """DINO: two large and six small crops, a teacher as a moving average, a centre, a head with weight norm."""
    width, prototypes, patch = pick(384, 24), pick(65536, 50), 16

    class ViT(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(3, width, patch, patch)
            self.first = nn.Parameter(torch.zeros(1, 1, width))
            self.place = nn.Parameter(torch.randn(1, width, 14, 14) * 0.02)
            self.blocks = nn.ModuleList(Block(width, 6) for _ in range(pick(12, 2)))
            self.norm = nn.LayerNorm(width)
            hidden = pick(2048, 16)
            self.head = nn.Sequential(
                nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden)
            )
            self.head.extend([nn.GELU(), nn.Linear(hidden, 256)])
            last = nn.Linear(256, prototypes, bias=False)
            self.last = nn.utils.parametrizations.weight_norm(last)

        def forward(self, x):
            h = self.patch(x)
            place = F.interpolate(self.place, size=h.shape[2:], mode="bicubic", align_corners=False)
            h = (h + place).flatten(2).transpose(1, 2)
            h = torch.cat([self.first.expand(len(h), -1, -1), h], 1)
            for block in self.blocks:
                h = block(h)
            return self.last(F.normalize(self.head(self.norm(h)[:, 0]), dim=-1))

    student, teacher = ViT().to(device), ViT().to(device)
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4, weight_decay=0.04)
    centre = torch.zeros(1, prototypes, device=device)
    batch = pick(40, 2)
    for _ in range(4):
        large = [
            torch.randn(batch, 3, pick(224, 48), pick(224, 48), device=device) for _ in range(2)
        ]
        little = [
            torch.randn(batch, 3, pick(96, 32), pick(96, 32), device=device) for _ in range(6)
        ]
        with torch.autocast(device, dtype=torch.bfloat16):
            with torch.no_grad():
                wanted = teacher(torch.cat(large)).float()
            out = torch.cat([student(torch.cat(large)), student(torch.cat(little))]).float()
        sure = ((wanted - centre) / 0.04).softmax(-1).detach().chunk(2)
        loss, pairs = 0, 0
        for i, q in enumerate(sure):
            for j, v in enumerate((out / 0.1).chunk(8)):
                if i != j:
                    loss = loss - (q * v.log_softmax(-1)).sum(-1).mean()
                    pairs += 1
        optimizer.zero_grad()
        (loss / pairs).backward()
        nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        optimizer.step()
        with torch.no_grad():
            centre.mul_(0.9).add_(wanted.mean(0, keepdim=True), alpha=0.1)
            slow, fast = list(teacher.parameters()), list(student.parameters())
            torch._foreach_mul_(slow, 0.996)
            torch._foreach_add_(slow, fast, alpha=0.004)
        yield loss.item()


@job()
def dreamed_rollouts():
    """Dreamer: a recurrent model of the world with categorical states, then an actor that learns in imagination."""
    deter, groups, kinds, acts = pick(1024, 16), pick(32, 3), pick(32, 4), 6
    stoch, w = groups * kinds, pick(64, 4)
    act = nn.SiLU
    encoder = nn.Sequential(nn.Conv2d(3, w, 4, 2, 1), act(), nn.Conv2d(w, 2 * w, 4, 2, 1), act())
    encoder.extend([nn.Conv2d(2 * w, 4 * w, 4, 2, 1), act(), nn.Flatten()])
    mlp = lambda i, o: nn.Sequential(
        nn.Linear(i, deter), nn.LayerNorm(deter), act(), nn.Linear(deter, o)
    )
    into, cell = nn.Sequential(nn.Linear(stoch + acts, deter), act()), nn.GRUCell(deter, deter)
    prior, posterior = mlp(deter, stoch), mlp(deter + 4 * w * 64, stoch)
    decoder = nn.Sequential(nn.Linear(deter + stoch, 4 * w * 64), nn.Unflatten(1, (4 * w, 8, 8)))
    decoder.extend([nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1), act()])
    decoder.extend(
        [nn.ConvTranspose2d(2 * w, w, 4, 2, 1), act(), nn.ConvTranspose2d(w, 3, 4, 2, 1)]
    )
    reward, cont = mlp(deter + stoch, 255), mlp(deter + stoch, 1)
    world = nn.ModuleList([encoder, into, cell, prior, posterior, decoder, reward, cont]).to(device)
    actor, critic = mlp(deter + stoch, acts).to(device), mlp(deter + stoch, 1).to(device)
    slow = copy.deepcopy(critic).requires_grad_(False)
    ow, oa, oc = (
        torch.optim.Adam(m.parameters(), lr=1e-4, eps=1e-8) for m in (world, actor, critic)
    )

    def sample(logits):
        """Straight-through samples with one per cent of uniform noise."""
        p = 0.99 * logits.unflatten(-1, (groups, kinds)).softmax(-1) + 0.01 / kinds
        dist = torch.distributions.OneHotCategoricalStraightThrough(probs=p)
        return dist.rsample().flatten(-2), dist

    def divergence(a, b):
        return torch.distributions.kl_divergence(a, b).sum(-1).clamp(min=1.0).mean()

    fixed = lambda p: torch.distributions.OneHotCategorical(probs=p.probs.detach())
    for _ in range(3):
        batch, steps = pick(16, 2), pick(64, 4)
        picture = torch.rand(batch, steps, 3, 64, 64, device=device)
        action = F.one_hot(torch.randint(0, acts, (batch, steps), device=device), acts).float()
        embedded = encoder(picture.flatten(0, 1)).unflatten(0, (batch, steps))
        h = torch.zeros(batch, deter, device=device)
        z, states, loss_kl = torch.zeros(batch, stoch, device=device), [], 0
        for t in range(steps):
            h = cell(into(torch.cat([z, action[:, t]], -1)), h)
            _, guess = sample(prior(h))
            z, seen = sample(posterior(torch.cat([h, embedded[:, t]], -1)))
            loss_kl = (
                loss_kl
                + 0.5 * divergence(fixed(seen), guess)
                + 0.1 * divergence(seen, fixed(guess))
            )
            states.append(torch.cat([h, z], -1))
        flat = torch.stack(states, 1).flatten(0, 1)
        loss = (
            F.mse_loss(decoder(flat), picture.flatten(0, 1), reduction="none").sum((1, 2, 3)).mean()
        )
        bins = torch.randint(0, 255, (len(flat),), device=device)
        loss = loss + F.cross_entropy(reward(flat), bins) + loss_kl / steps
        loss = loss + F.binary_cross_entropy_with_logits(
            cont(flat), torch.ones(len(flat), 1, device=device)
        )
        ow.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(world.parameters(), 1000.0)
        ow.step()
        h, z = flat.detach().split([deter, stoch], -1)
        dreams, logs, noise = [torch.cat([h, z], -1)], [], []
        world.requires_grad_(False)
        for _ in range(pick(15, 3)):
            dist = torch.distributions.Categorical(logits=actor(dreams[-1]))
            a = dist.sample()
            logs.append(dist.log_prob(a))
            noise.append(dist.entropy())
            with torch.no_grad():
                h = cell(into(torch.cat([z, F.one_hot(a, acts).float()], -1)), h)
                z, _ = sample(prior(h))
            dreams.append(torch.cat([h, z], -1))
        with torch.no_grad():
            stack = torch.stack(dreams)
            paid = (reward(stack).softmax(-1) * torch.linspace(-20, 20, 255, device=device)).sum(-1)
            value, live = slow(stack)[..., 0], 0.997 * cont(stack)[..., 0].sigmoid()
            returns = [value[-1]]
            for t in reversed(range(len(stack) - 1)):
                ahead = 0.05 * value[t + 1] + 0.95 * returns[0]
                returns.insert(0, paid[t + 1] + live[t + 1] * ahead)
            returns = torch.stack(returns[:-1])
            low, high = torch.quantile(
                returns[:, :1000].flatten(), returns.new_tensor([0.05, 0.95])
            )
            gain = (returns - value[:-1]) / (high - low).clamp(min=1)
        oa.zero_grad()
        (-(gain * torch.stack(logs)) - 3e-4 * torch.stack(noise)).mean().backward()
        oa.step()
        oc.zero_grad()
        F.mse_loss(critic(stack[:-1])[..., 0], returns).backward()
        oc.step()
        world.requires_grad_(True)
        for p, q in zip(slow.parameters(), critic.parameters()):
            p.lerp_(q.detach(), 0.02)
        yield loss.item()


if __name__ == "__main__":
    main()
