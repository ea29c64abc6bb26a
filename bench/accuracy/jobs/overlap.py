"""Copies and work side by side, as people write them: loaders, offloading, rings of buffers, graphs by hand.

As in streams.py nothing waits for the GPU after a step but what the job itself does.
"""

import collections
import queue
import threading

import torch
import torchvision
import transformers as T
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from job import device, job, main, pick, small
from parts import Block, CrossUNet, built

cuda = torch.cuda


@job(sync=False)
def pinned_data_loader_whole_epoch():
    """A data loader that pins, copies that do not wait, and a smaller batch at the end."""
    size = pick(128, 48)
    images = torch.randint(0, 256, (pick(1100, 5), 3, size, size), dtype=torch.uint8)
    data = TensorDataset(images, torch.randint(0, 200, (len(images),)))
    loader = DataLoader(data, batch_size=pick(256, 2), shuffle=True, pin_memory=not small)
    model = torchvision.models.googlenet(num_classes=200, aux_logits=True, init_weights=False)
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    total = torch.zeros((), device=device)
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        x = x.float() / 127.5 - 1
        out = model(x)
        loss = F.cross_entropy(out.logits, y)
        loss = loss + 0.3 * (
            F.cross_entropy(out.aux_logits1, y) + F.cross_entropy(out.aux_logits2, y)
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(x)
        yield
    (total / len(images)).item()


@job(sync=False)
def gradients_to_host_and_adam_there():
    """The optimizer and its states live on the host: gradients go there as they come, weights come back."""
    width = pick(1280, 48)
    embed = nn.Embedding(pick(20000, 50), width)
    blocks = [Block(width, pick(20, 4), causal=True) for _ in range(pick(8, 2))]
    model = nn.Sequential(embed, *blocks, nn.LayerNorm(width)).to(device)
    params = list(model.parameters())
    host = [torch.empty_like(p, device="cpu").copy_(p.detach()).pin_memory() for p in params]
    grads = [torch.zeros_like(h).pin_memory() for h in host]
    masters = [nn.Parameter(h) for h in host]
    for master, grad in zip(masters, grads):
        master.grad = grad
    adam = torch.optim.AdamW(masters, lr=1e-4, foreach=False)
    down = cuda.Stream()
    place = {p: i for i, p in enumerate(params)}

    def hook(p):
        down.wait_stream(cuda.current_stream())
        with cuda.stream(down):
            grads[place[p]].copy_(p.grad, non_blocking=True)
            p.grad.record_stream(down)
        p.grad = None

    for p in params:
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(3):
        ids = torch.randint(0, embed.num_embeddings, (pick(8, 2), pick(512, 9)), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            h = model(ids)
            loss = F.cross_entropy((h[:, :-1] @ embed.weight.T).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        down.synchronize()
        adam.step()
        with torch.no_grad():
            for p, master in zip(params, masters):
                p.copy_(master, non_blocking=True)
        yield loss.item()


@job(sync=False)
def ring_of_buffers_for_video():
    """Two fixed buffers take turns: one is filled from pinned memory while the other is computed on."""
    model = torchvision.models.video.r3d_18(num_classes=50).to(device).half().eval()
    shape = (pick(64, 1), 3, pick(16, 4), pick(112, 16), pick(112, 16))
    clips = [torch.randint(0, 256, shape, dtype=torch.uint8).pin_memory() for _ in range(3)]
    buffers = [torch.empty(shape, dtype=torch.uint8, device=device) for _ in range(2)]
    filled, used = [cuda.Event(), cuda.Event()], [cuda.Event(), cuda.Event()]
    copies = cuda.Stream()

    def fill(i):
        slot = i % 2
        with cuda.stream(copies):
            if i >= 2:
                copies.wait_event(used[slot])
            buffers[slot].copy_(clips[i % 3], non_blocking=True)
            filled[slot].record(copies)

    answers = []
    fill(0)
    with torch.inference_mode():
        for i in range(8):
            fill(i + 1)
            slot = i % 2
            cuda.current_stream().wait_event(filled[slot])
            x = buffers[slot].half().div_(255).sub_(0.45).div_(0.225)
            answers.append(model(x).softmax(1))
            used[slot].record()
            yield
        torch.cat(answers).argmax(1).tolist()


class OffloadActivations(torch.autograd.graph.saved_tensors_hooks):
    """Large saved tensors go to pinned memory on a side stream; what is on its way is held by a short queue."""

    def __init__(self, least=1 << 20, depth=2):
        self.side, self.least, self.depth = cuda.Stream(), least, depth
        self.waiting = collections.deque()
        super().__init__(self.pack, self.unpack)

    def pack(self, x):
        if x.numel() * x.element_size() < self.least or isinstance(x, nn.Parameter):
            return x
        self.side.wait_stream(cuda.current_stream())
        with cuda.stream(self.side):
            host = torch.empty(x.shape, dtype=x.dtype, pin_memory=not small)
            host.copy_(x, non_blocking=True)
            done = cuda.Event()
            done.record(self.side)
        self.waiting.append((x, done))
        while len(self.waiting) > self.depth:
            _, earlier = self.waiting.popleft()
            cuda.current_stream().wait_event(earlier)
        return host, done

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        self.waiting.clear()
        host, done = packed
        cuda.current_stream().wait_event(done)
        return host.to(device, non_blocking=True)


@job(sync=False)
def activations_offloaded_by_own_hooks():
    """Fine-tuning an encoder; large activations are on the host between forward and backward pass."""
    config = T.ElectraConfig(
        embedding_size=pick(768, 24),
        hidden_size=pick(768, 24),
        num_hidden_layers=pick(8, 2),
        num_attention_heads=12,
        intermediate_size=pick(3072, 48),
        num_labels=3,
    )
    model = built(T.ElectraForSequenceClassification, config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    for _ in range(3):
        ids = torch.randint(5, 30000, (pick(24, 2), pick(384, 8)), device=device)
        labels = torch.randint(0, 3, (len(ids),), device=device)
        with OffloadActivations(), torch.autocast(device, dtype=torch.bfloat16):
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


class StreamedExperts(nn.Module):
    """Each token goes to one expert of fixed capacity; every expert works on its own stream."""

    def __init__(self, width, count):
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )
        self.streams = [cuda.Stream() for _ in range(count)]

    def forward(self, x):
        flat = x.flatten(0, 1)
        score = self.gate(flat).float().softmax(-1)
        weight, chosen = score.topk(2 * len(flat) // len(self.experts), dim=0)
        here = cuda.current_stream()
        parts = []
        for i, (expert, stream) in enumerate(zip(self.experts, self.streams)):
            stream.wait_stream(here)
            with cuda.stream(stream):
                y = expert(flat[chosen[:, i]])
                parts.append(y * weight[:, i : i + 1].to(y.dtype))
        out = torch.zeros_like(flat)
        for i, (part, stream) in enumerate(zip(parts, self.streams)):
            here.wait_stream(stream)
            part.record_stream(here)
            out = out.index_add(0, chosen[:, i], part.to(out.dtype))
        return x + out.view_as(x)


@job(sync=False)
def experts_choose_on_their_streams():
    width = pick(768, 16)
    model = nn.Sequential(*[StreamedExperts(width, 4) for _ in range(pick(4, 2))]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(4):
        x = torch.randn(pick(16, 2), pick(512, 8), width, device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.mse_loss(model(x).float(), x.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@job(sync=False)
def captured_denoiser_replaced_by_another_size():
    """One step of a sampler is a CUDA graph; it is dropped for one of another size, the cache emptied."""
    unet = CrossUNet(4, pick((128, 256, 512), (16, 32)), pick(512, 32), pick(8, 4))
    unet = unet.to(device).half().eval()
    for res in (64, 96, 48):
        res = pick(res, res // 8)
        options = dict(device=device, dtype=torch.float16)
        x = torch.zeros(pick(32, 2), 4, res, res, **options)
        text = torch.zeros(len(x), 77, pick(512, 32), **options)
        t = torch.zeros(len(x), dtype=torch.long, device=device)
        with torch.no_grad():
            side = cuda.Stream()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                for _ in range(2):
                    unet(x, t, text)
            cuda.current_stream().wait_stream(side)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                noise = unet(x, t, text)
            x.normal_()
            text.normal_()
            for step in range(pick(20, 3)):
                t.fill_(980 - 49 * step)
                graph.replay()
                x.sub_(noise, alpha=0.05)
        picture = F.interpolate(x.float(), scale_factor=8).clamp(-1, 1).cpu()
        del graph, noise
        cuda.synchronize()
        cuda.empty_cache()
        yield picture.mean().item()


@job(sync=False)
def losses_read_two_steps_late():
    """Losses are copied into pinned memory without waiting and read when their event has passed."""
    model = torchvision.models.maxvit_t(num_classes=100).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=not small)
    slots = torch.zeros(8).pin_memory()
    pending, seen = collections.deque(), []
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    for step in range(6):
        x = torch.randn(pick(24, 1), 3, 224, 224, device=device)
        y = torch.randint(0, 100, (len(x),), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        slots[step].copy_(loss.detach(), non_blocking=True)
        done = cuda.Event()
        done.record()
        pending.append((step, done))
        if len(pending) > 2:
            earlier, done = pending.popleft()
            done.synchronize()
            seen.append(float(slots[earlier]))
        yield
    end.record()
    end.synchronize()
    start.elapsed_time(end)


@job(sync=False)
def table_on_host_rows_on_device():
    """A table too large for the device: the rows of a batch are gathered on the host, trained, written back."""
    rows, width = pick(4_000_000, 200), pick(64, 8)
    table = torch.zeros(rows, width)
    dense = nn.Sequential(
        nn.Linear(26 * width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
    ).to(device)
    optimizer = torch.optim.Adagrad(dense.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    back = cuda.Stream()
    for _ in range(5):
        skewed = torch.rand(pick(65536, 6), 26, generator=draw).pow(3)
        ids, inverse = (skewed * rows).long().clamp_(max=rows - 1).unique(return_inverse=True)
        inverse = inverse.pin_memory().to(device, non_blocking=True)
        held = table[ids].pin_memory().to(device, non_blocking=True).requires_grad_()
        x = F.embedding(inverse, held).flatten(1)
        clicked = (inverse[:, 0] % 2).float()
        loss = F.binary_cross_entropy_with_logits(dense(x).squeeze(1), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            held.sub_(held.grad, alpha=0.1)
        back.wait_stream(cuda.current_stream())
        with cuda.stream(back):
            written = held.detach().to("cpu", non_blocking=True)
            held.record_stream(back)
        back.synchronize()
        table[ids] = written
        yield loss.item()


@job(sync=False)
def loader_thread_with_a_queue():
    """A thread augments batches on the device, on its own stream, at most two ahead of training.

    How far ahead it is depends on timing, so reserved memory may change from run to run.
    """
    size, steps = pick(192, 64), 6
    ready = queue.Queue(maxsize=2)
    stream = cuda.Stream()
    source = torch.randint(0, 256, (pick(96, 2), 3, size + 32, size + 32), dtype=torch.uint8)
    source = source.pin_memory()

    def load():
        with cuda.stream(stream):
            for i in range(steps):
                x = source.to(device, non_blocking=True)
                x = x[:, :, i : i + size, 2 * i : 2 * i + size].float().div_(255)
                x = torch.where(torch.rand(len(x), 1, 1, 1, device=device) < 0.5, x.flip(3), x)
                y = torch.full((len(x),), i, device=device)
                event = cuda.Event()
                event.record(stream)
                ready.put((x, y, event))
        ready.put(None)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    model = torchvision.models.efficientnet_b0(num_classes=10).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y, event in iter(ready.get, None):
        cuda.current_stream().wait_event(event)
        x.record_stream(cuda.current_stream())
        y.record_stream(cuda.current_stream())
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
    thread.join()


if __name__ == "__main__":
    main()
