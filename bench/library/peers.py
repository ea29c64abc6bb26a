"""How many attempts each tool needs to find a batch size, and how good it is, on the virtual GPU.

    oomph run --gpu rtx-3060 --no-measure --quiet bench/library/peers.py --out bench/library/results/peers.jsonl

Composer's releases ask for torch before 2.7.1. It runs with the one here all the same, put beside the
others without its requirements: `pip install --no-deps --target DIR mosaicml==0.32.1 …`, PYTHONPATH=DIR.

Every tool gets the same training function. *True* is the largest batch with which three steps run, from
an empty cache, found by bisection, with the sizes next above tried too. An attempt is a size that a tool tries; wasted steps are optimizer steps
made or begun whose result is thrown away.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import time
import warnings

import torch
from torch import nn

import oomph
from oomph._training.release import release_caches

START = 256
"""What somebody types who does not know: the start for tools that only go down."""


class Gpt2(nn.Module):
    """GPT-2 of Hugging Face, 124 million parameters, over 256 tokens a sample."""

    def __init__(self):
        super().__init__()
        import transformers

        self.net = transformers.GPT2LMHeadModel(transformers.GPT2Config())

    def forward(self, ids):
        return self.net(input_ids=ids, labels=ids).loss


class Bert(nn.Module):
    """BERT base of Hugging Face with its masked-word loss, over 128 tokens a sample."""

    def __init__(self):
        super().__init__()
        import transformers

        self.net = transformers.BertForMaskedLM(transformers.BertConfig())

    def forward(self, ids):
        return self.net(input_ids=ids, labels=ids).loss


class Mlp(nn.Module):
    """Eight layers, 2048 wide."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8))
        )

    def forward(self, x):
        return self.layers(x).pow(2).mean()


class Vision(nn.Module):
    """ResNet-50 of torchvision, images of 224 by 224."""

    def __init__(self):
        super().__init__()
        import torchvision

        self.net = torchvision.models.resnet50()

    def forward(self, x):
        return self.net(x).logsumexp(1).mean()


JOBS = {
    "gpt2": (Gpt2, lambda n: torch.zeros(n, 256, dtype=torch.long)),
    "bert": (Bert, lambda n: torch.zeros(n, 128, dtype=torch.long)),
    "resnet50": (Vision, lambda n: torch.empty(n, 3, 224, 224)),
    "mlp": (Mlp, lambda n: torch.empty(n, 2048)),
}


class Job:
    """A model, an optimizer and a step; counts steps."""

    def __init__(self, name):
        torch.manual_seed(0)
        kind, self.batch = JOBS[name]
        with torch.device("cuda"):
            self.model = kind()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.steps = 0

    def step(self, batch):
        self.steps += 1
        self.model(batch.cuda()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def fits(name, size, steps=3):
    job = Job(name)
    try:
        for _ in range(steps):
            job.step(job.batch(size))
        good = True
    except torch.OutOfMemoryError:
        good = False
    del job
    release_caches()
    return good


def true_largest(name):
    """By bisection, and verified: it fits once more, and none of four larger sizes does."""
    tried = {}

    def fits_(size):
        tried[size] = fits(name, size)
        return tried[size]

    good, bad = 1, 2
    while fits_(bad):
        good, bad = bad, bad * 2
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits_(middle) else (good, middle)
    while True:
        # Allocators cut and round: a larger size may fit where one in between does not.
        above = [good + 1 + i * max(1, good // 100) for i in range(4)]
        larger = [size for size in above if tried.get(size) or fits_(size)]
        if not larger:
            break
        good = max(larger)
    while not fits_(good):  # it fitted once only, by luck of what came before
        good -= 1
    return good


def find(name, tolerance):
    job = Job(name)
    found = oomph.find_batch_size(
        job.step, job.batch, model=job.model, optimizer=job.optimizer, tolerance=tolerance
    )
    search = [p for p in found.probes]
    return dict(
        size=found.largest,
        recommended=found.recommended,
        attempts=len(search),
        failures=sum(not p.fits for p in search),
        wasted_steps=job.steps,
    )


def train_step(name, true):
    """A batch of four times the largest: parts and retries until the size is settled."""
    job = Job(name)
    step = oomph.TrainStep(
        job.model, job.optimizer, lambda model, part: model(part), coupled="warn", check_loss=False
    )
    calls = []
    forward = job.model.forward
    job.model.forward = lambda *a: (calls.append(1), forward(*a))[1]
    batch, parts = job.batch(4 * true), []
    for _ in range(6):
        parts.append(step(batch).micro_batches)
    useful = sum(parts)
    return dict(
        size=-(-4 * true // parts[-1]),
        parts=parts,
        attempts=len(set(parts)) + step.failed_attempts,
        failures=step.failed_attempts,
        wasted_forwards=len(calls) - useful,
        wasted_steps=step.failed_attempts,
    )


def accelerate_finder(name, **options):
    from accelerate.utils import find_executable_batch_size

    tried, steps = [], [0]

    @find_executable_batch_size(starting_batch_size=START, **options)
    def train(batch_size):
        tried.append(batch_size)
        job = Job(name)
        try:
            for _ in range(3):
                job.step(job.batch(batch_size))
        finally:
            steps[0] += job.steps

    train()
    return dict(
        size=tried[-1], attempts=len(tried), failures=len(tried) - 1, wasted_steps=steps[0] - 3
    )


def lightning_finder(name, mode):
    import lightning.pytorch as lightning
    from lightning.pytorch.tuner import Tuner

    tried, steps = [], [0]

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.job = [Job(name)]
            self.model = self.job[0].model
            self.batch_size = 2

        def training_step(self, batch, index):
            if not tried or tried[-1] != self.batch_size:
                tried.append(self.batch_size)
            steps[0] += 1
            return self.model(batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

        def train_dataloader(self):
            one = self.job[0].batch(1)[0]
            data = [one] * 400_000
            return torch.utils.data.DataLoader(data, batch_size=self.batch_size)

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        size = Tuner(trainer).scale_batch_size(
            module, mode=mode, steps_per_trial=3, init_val=2, max_trials=12
        )
    return dict(size=size, attempts=len(tried), failures=None, wasted_steps=steps[0])


def composer_auto(name, true):
    """Composer's automatic micro-batching over batches of four times the largest."""
    import composer
    from composer.models import ComposerModel

    tried, useful = [], [0]

    class Model(ComposerModel):
        def __init__(self):
            super().__init__()
            self.job = [Job(name)]
            self.inner = self.job[0].model

        def forward(self, batch):
            tried.append(len(batch))
            return self.inner(batch)

        def loss(self, outputs, batch, *args, **kwargs):
            return outputs

    model = Model()
    one = model.job[0].batch(1)[0]
    loader = torch.utils.data.DataLoader([one] * (4 * true * 4), batch_size=4 * true)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        trainer = composer.Trainer(
            model=model, train_dataloader=loader, max_duration="4ba", device="gpu",
            optimizers=torch.optim.AdamW(model.parameters()), device_train_microbatch_size="auto",
            progress_bar=False, log_to_console=False,
        )  # fmt: skip
        trainer.fit()
    size = trainer.state.device_train_microbatch_size
    sizes = list(dict.fromkeys(tried))
    useful = 4 * -(-4 * true // size)
    return dict(
        size=size, attempts=len(sizes), failures=len(sizes) - 1,
        wasted_forwards=len(tried) - useful, wasted_steps=len(sizes) - 1, composer=composer.__version__,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out")
    parser.add_argument("--jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--tools", help="only those whose name contains this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    out = open(options.out, "a") if options.out else open(os.devnull, "w")
    for name in options.jobs:
        true = true_largest(name)
        tools = {
            "oomph.find_batch_size": lambda: find(name, 0.005),
            "oomph.find_batch_size tolerance=0": lambda: find(name, 0.0),
            "oomph.TrainStep": lambda: train_step(name, true),
            "accelerate find_executable_batch_size": lambda: accelerate_finder(name),
            "accelerate, halving": lambda: accelerate_halving(name),
            "lightning power": lambda: lightning_finder(name, "power"),
            "lightning binsearch": lambda: lightning_finder(name, "binsearch"),
            "composer auto": lambda: composer_auto(name, true),
        }
        for tool, run in tools.items():
            if options.tools and options.tools not in tool:
                continue
            if tool.endswith("tolerance=0") and true < 200:
                continue  # a size of less than 200 is exact anyway
            release_caches()
            began = time.time()
            try:
                result = run()
            except Exception as error:
                result = dict(error=f"{type(error).__name__}: {error}"[:300])
            oomph.free()
            result = dict(job=name, tool=tool, true=true, **result)
            result["seconds"] = round(time.time() - began, 1)
            if result.get("size"):
                result["share"] = round(result["size"] / true, 4)
            print(json.dumps(result), flush=True)
            out.write(json.dumps(result) + "\n")
            out.flush()


def accelerate_halving(name):
    """As its documentation once had it: halve after every error."""
    sizes = [START]

    def halve():
        sizes.append(sizes[-1] // 2)
        return sizes[-1]

    return accelerate_finder(name, reduce_batch_size_fn=halve)


if __name__ == "__main__":
    sys.exit(main())
