"""How near `TrainStep` and the callbacks come to the largest batch that fits.

    oomph run --gpu h200 --no-measure --quiet bench/library/train_step_sizes.py --out FILE
    python bench/library/train_step_sizes.py --out FILE          # on a real GPU

A pair is a model and an amount of memory (`torch.cuda.set_per_process_memory_fraction`, which holds the allocator's reserved
memory). *True* is the largest batch with which a plain loop makes three steps, found by bisection; each size is tried in a
process of its own. Then, again in processes of their own, `TrainStep` gets:

- batches of 4 and of 16 times *true*: the largest part after the last step, as a share of *true*; in how many parts, and the
  fewest in which *true* samples at a time would do; attempts that failed; steps among the last four in which the allocator had to
  empty its cache;
- whole: batches of 92 % of *true*: in how many parts;
- after pressure: batches of 4 times *true*, while something else holds a third of the memory for some steps: the largest part
  then, and some steps after that is gone.

`--set unseen` takes the pairs that nobody looked at while sizes were chosen.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import platform
import sys
import time
import warnings
from datetime import datetime, timezone

import torch
import torch.nn.functional as F
from torch import nn

import oomph

GIB = 1 << 30
STEPS = 14
"""Of `TrainStep` with each batch; the last four count."""


def hugging_face(kind, config, length, **settings):
    def make():
        import transformers

        made = getattr(transformers, config)(**settings)
        model = getattr(transformers, kind)(made)

        def batch(n):
            ids = torch.ones(n, length, dtype=torch.long)
            return {"input_ids": ids, "labels": ids}

        return model, batch, lambda model, part: model(**part).loss

    return make


def vision(name, size, **settings):
    def make():
        import torchvision

        model = getattr(torchvision.models, name)(**settings)

        def batch(n):
            return torch.zeros(n, 3, size, size), torch.zeros(n, dtype=torch.long)

        return model, batch, lambda model, part: F.cross_entropy(model(part[0]).float(), part[1])

    return make


def own(model, batch, loss):
    return lambda: (model(), batch, loss)


def squares(model, part):
    return model(part).float().pow(2).mean()


class Recurrent(nn.Module):
    """An embedding, a recurrent network and a head over the vocabulary."""

    def __init__(self, kind, width, layers, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.net = kind(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        return F.cross_entropy(self.head(self.net(self.embed(ids))[0]).flatten(0, 1), ids.flatten())


class UNet(nn.Module):
    """Three levels of convolutions with GroupNorm."""

    def __init__(self, width):
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.inner = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip(sizes, sizes[1:]))
        self.up = nn.ModuleList(self.block(a + b, a) for a, b in zip(sizes, sizes[1:]))
        self.outer = nn.Conv2d(width, 3, 1)

    @staticmethod
    def block(inputs, outputs):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x):
        x, kept = self.inner(x), []
        for block in self.down:
            kept.append(x)
            x = block(F.avg_pool2d(x, 2))
        for block in reversed(self.up):
            x = block(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1))
        return self.outer(x)


class Mixer(nn.Module):
    """Mixes tokens and channels in turn."""

    def __init__(self, tokens, width, depth):
        super().__init__()
        self.tokens = nn.ModuleList(self.mlp(tokens) for _ in range(depth))
        self.channels = nn.ModuleList(self.mlp(width) for _ in range(depth))

    @staticmethod
    def mlp(width):
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        for tokens, channels in zip(self.tokens, self.channels):
            x = x + tokens(x.transpose(1, 2)).transpose(1, 2)
            x = x + channels(x)
        return x


class Waves(nn.Module):
    """Convolutions over sound."""

    def __init__(self, width, depth):
        super().__init__()
        self.first = nn.Conv1d(1, width, 16, stride=8)
        self.rest = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=2**n, dilation=2**n) for n in range(depth)
        )

    def forward(self, x):
        x = self.first(x)
        for layer in self.rest:
            x = x + F.gelu(layer(x))
        return x


class Decoder(nn.Module):
    """Pre-norm blocks with causal attention and gated products, in bf16 throughout."""

    def __init__(self, width, depth, heads, vocabulary):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(dict(
                norm=nn.RMSNorm(width), qkv=nn.Linear(width, 3 * width, bias=False), out=nn.Linear(width, width, bias=False),
                norm2=nn.RMSNorm(width), up=nn.Linear(width, 6 * width, bias=False), down=nn.Linear(3 * width, width, bias=False),
            ))
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.to(torch.bfloat16)

    def forward(self, ids):
        x = self.embed(ids)
        for b in self.blocks:
            q, k, v = (
                t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for t in b["qkv"](b["norm"](x)).chunk(3, -1)
            )
            x = x + b["out"](
                F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            )
            gate, up = b["up"](b["norm2"](x)).chunk(2, -1)
            x = x + b["down"](F.silu(gate) * up)
        return F.cross_entropy(self.head(x).float().flatten(0, 1), ids.flatten())


def mean(model, part):
    return model(part)


def ids(length):
    return lambda n: torch.ones(n, length, dtype=torch.long)


def adamw(parameters):
    return torch.optim.AdamW(parameters)


def fused(parameters):
    return torch.optim.AdamW(parameters, fused=True)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


# Name: a model with its batches and loss, GiB, the optimizer, autocast to bf16.
SEEN = {
    "gpt2_of_4": (hugging_face("GPT2LMHeadModel", "GPT2Config", 256, n_layer=4, use_cache=False), 6, adamw, False),
    "bert_of_4": (hugging_face("BertForMaskedLM", "BertConfig", 128, num_hidden_layers=4), 8, adamw, False),
    "resnet18": (vision("resnet18", 224), 4, momentum, False),
    "mlp": (own(lambda: nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(2048, 2048), nn.GELU()))), lambda n: torch.zeros(n, 2048), squares), 3, adamw, False),
    "vit_bf16": (vision("vit_b_32", 224), 10, fused, True),
    "lstm": (own(lambda: Recurrent(nn.LSTM, 512, 2, 8000), ids(128), mean), 3, adamw, False),
    "unet": (own(lambda: UNet(64), lambda n: torch.zeros(n, 3, 128, 128), squares), 5, adamw, False),
    "t5_of_3": (hugging_face("T5ForConditionalGeneration", "T5Config", 200, num_layers=3, decoder_start_token_id=0, use_cache=False), 7, adamw, False),
}  # fmt: skip
UNSEEN = {
    "gpt2_bf16": (hugging_face("GPT2LMHeadModel", "GPT2Config", 512, use_cache=False), 15, fused, True),
    "distilbert": (hugging_face("DistilBertForMaskedLM", "DistilBertConfig", 96), 12, adamw, False),
    "convnext_tiny": (vision("convnext_tiny", 192), 9, adamw, False),
    "mixer": (own(lambda: Mixer(196, 384, 6), lambda n: torch.zeros(n, 196, 384), squares), 5, momentum, False),
    "decoder_bf16": (own(lambda: Decoder(768, 6, 12, 32000), ids(320), mean), 6, adamw, False),
    "gru": (own(lambda: Recurrent(nn.GRU, 384, 3, 3000), ids(200), mean), 2, momentum, False),
    "waves": (own(lambda: Waves(128, 8), lambda n: torch.zeros(n, 1, 16000), squares), 4, adamw, False),
    "resnet34_bf16": (vision("resnet34", 160), 7, adamw, True),
}  # fmt: skip
SETS = dict(seen=SEEN, unseen=UNSEEN)


class Job:
    """A pair: its model and optimizer on the GPU, within its memory."""

    def __init__(self, pair):
        make, gib, optimizer, self.autocast = pair
        self.limit = gib * GIB
        torch.cuda.set_per_process_memory_fraction(self.limit / torch.cuda.mem_get_info()[1])
        torch.manual_seed(0)
        self.model, self.batch, self.loss = make()
        self.model.cuda()
        self.optimizer = optimizer(self.model.parameters())

    def step(self, batch):
        """As a plain loop makes it."""
        part = torch.utils._pytree.tree_map(lambda t: t.cuda(), batch)
        with torch.autocast("cuda", torch.bfloat16, self.autocast):
            loss = self.loss(self.model, part)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train_step(self, **options):
        return oomph.TrainStep(
            self.model, self.optimizer, self.loss, coupled="warn", check_loss=False,
            autocast=torch.bfloat16 if self.autocast else None, **options,
        )  # fmt: skip


def fits(pair, size):
    """Whether three plain steps fit."""
    job = Job(pair)
    try:
        for _ in range(3):
            job.step(job.batch(size))
    except torch.OutOfMemoryError:
        return False
    return True


def in_parts(pair, size):
    """`TrainStep` with a batch of so many samples."""
    job = Job(pair)
    step = job.train_step()
    batch, reports, flushes = job.batch(size), [], []
    for _ in range(STEPS):
        before = retries()
        reports.append(step(batch))
        flushes.append(retries() > before)
    return dict(
        size=size, parts=[r.micro_batches for r in reports], part=reports[-1].micro_batch,
        failed=step.failed_attempts, flushing=sum(flushes[-4:]), rungs=reports[-1].rungs,
    )  # fmt: skip


def after_pressure(pair, size):
    """While something else holds a third of the memory, and after it."""
    job = Job(pair)
    step = job.train_step(grow_after=4)
    batch = job.batch(size)
    found = dict(size=size, before=[step(batch).micro_batch for _ in range(4)])
    torch.cuda.empty_cache()
    other = torch.empty(job.limit // 3, dtype=torch.uint8, device="cuda")
    found["under"] = [step(batch).micro_batch for _ in range(4)]
    del other
    found["after"] = [step(batch).micro_batch for _ in range(16)]
    return dict(found, failed=step.failed_attempts)


def retries():
    return torch.cuda.memory_stats().get("num_alloc_retries", 0)


def _send(pipe, work, arguments):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        result = work(*arguments)
    except Exception as error:
        result = dict(error=f"{type(error).__name__}: {error}"[:300])
    pipe.send(result)


def fresh(work, *arguments):
    """The result of `work` in a new process: forked, so CUDA begins there and torch is imported here."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, work, arguments))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        return dict(error=f"ended with {process.exitcode}")
    finally:
        process.join()


def true_largest(pair):
    """By doubling, then bisection."""
    good, bad = 0, 8
    while fresh(fits, pair, bad) is True:
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        if fresh(fits, pair, middle) is True:
            good = middle
        else:
            bad = middle
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=os.devnull)
    parser.add_argument("--set", choices=list(SETS), default="seen")
    parser.add_argument("--pairs", nargs="*")
    parser.add_argument("--what", nargs="*", default=["4", "16", "whole", "pressure"])
    parser.add_argument("--true", type=json.loads, default={}, help="JSON: largest batches known")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no pair after so long")
    options = parser.parse_args()
    import torchvision  # noqa: F401
    import transformers  # noqa: F401

    began = time.time()
    out = open(options.out, "a")
    out.write(json.dumps(dict(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"), command=" ".join(sys.argv),
        torch=torch.__version__, python=platform.python_version(), cores=os.cpu_count(), machine=fresh(torch.cuda.get_device_name),
    )) + "\n")  # fmt: skip
    for name, pair in SETS[options.set].items():
        if options.pairs and name not in options.pairs:
            continue
        if time.time() - began > options.seconds:
            print("the time is up")
            break
        true = options.true.get(name) or true_largest(pair)
        row = dict(pair=name, set=options.set, gib=pair[1], true=true)
        for times in (4, 16):
            if str(times) in options.what:
                found = row[f"of_{times}"] = fresh(in_parts, pair, times * true)
                if "part" in found:
                    found["share"] = round(found["part"] / true, 4)
        if "whole" in options.what:
            row["whole"] = fresh(in_parts, pair, max(1, int(0.92 * true)))
        if "pressure" in options.what:
            row["pressure"] = fresh(after_pressure, pair, 4 * true)
        row["seconds"] = round(time.time() - began, 1)
        out.write(json.dumps(row) + "\n")
        out.flush()
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
