"""Whether the rungs of `TrainStep`'s ladder leave the bits of the plain step, on a real GPU.

    python bench/gpu/training_rungs.py --out bench/gpu/results/h100_training_rungs.json

Six models train for four steps under deterministic kernels: a plain loop, twice (the control); `TrainStep` with
activations offloaded, with the optimizer's state on the CPU, with both, and with blocks checkpointed, as a checkpoint
of the step names them; and `TrainStep` within less and less of the memory that the plain loop reserved
(`torch.cuda.set_per_process_memory_fraction`), which must find its rungs by itself. A batch counts as one sample, so that it
is never split. Losses, parameters, buffers, the optimizer's state and the GPU's random state are compared bit for bit.

The optimizer with its state on the CPU steps parameter by parameter: `plain_single` is the plain loop with `foreach=False`, to
compare that with. `--small` is for a try on the virtual GPU (`oomph run --gpu h200 --compute 64GiB`).
"""

import argparse
import datetime
import json
import logging
import os
import sys
import time
import warnings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
import torch.nn.functional as F

import oomph

STEPS = 4
SHARES = (0.85, 0.65, 0.5, 0.4, 0.3)


def text(kind, config, batch, length, small, **tiny):
    import transformers

    settings = getattr(transformers, config)(**(tiny if small else {}))
    settings.use_cache = False
    model = getattr(transformers, kind)(settings)
    size = (2, 32) if small else (batch, length)

    def make(step):
        ids = torch.randint(
            settings.vocab_size, size, generator=torch.Generator().manual_seed(step), device="cpu"
        )
        return {"input_ids": ids, "labels": ids}

    return model, make, lambda model, part: model(**part).loss


def images(name, batch, size, small, **tiny):
    import torchvision

    model = getattr(torchvision.models, name)(**(tiny if small else {}))
    shape = (2, 3, 32 if small else size, 32 if small else size)

    def make(step):
        g = torch.Generator().manual_seed(step)
        count = shape[0] if small else batch
        return torch.randn(count, *shape[1:], generator=g), torch.randint(10, (count,), generator=g)

    return model, make, lambda model, part: F.cross_entropy(model(part[0]).float(), part[1])


JOBS = {
    "gpt2": lambda s: text(
        "GPT2LMHeadModel", "GPT2Config", 4, 1024, s, n_layer=3, n_embd=32, n_head=2, vocab_size=64
    ),
    "bert_bf16": lambda s: text(
        "BertForMaskedLM", "BertConfig", 16, 512, s,
        num_hidden_layers=3, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=64,
    ),
    "t5_small": lambda s: text(
        "T5ForConditionalGeneration", "T5Config", 16, 512, s,
        num_layers=2, d_model=32, d_ff=64, d_kv=16, num_heads=2, vocab_size=64, decoder_start_token_id=0,
    ) if s else t5_small(),
    "resnet50": lambda s: images("resnet18" if s else "resnet50", 64, 224, s),
    "vit_b_16": lambda s: vit(s),
    "convnext_tiny": lambda s: images("convnext_tiny", 32, 224, s),
}  # fmt: skip
AUTOCAST = {"bert_bf16": torch.bfloat16}


def t5_small():
    import transformers

    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(num_layers=6, decoder_start_token_id=0, use_cache=False)
    )

    def make(step):
        ids = torch.randint(
            32128, (16, 512), generator=torch.Generator().manual_seed(step), device="cpu"
        )
        return {"input_ids": ids, "labels": ids}

    return model, make, lambda model, part: model(**part).loss


def vit(small):
    """With dropout, which the model has and torchvision's default leaves at zero."""
    import torchvision

    size, count = (32, 2) if small else (224, 32)
    model = torchvision.models.VisionTransformer(
        size, 16, 2 if small else 12, 12, 768, 3072, dropout=0.1, attention_dropout=0.1
    )

    def batch(step):
        g = torch.Generator().manual_seed(step)
        return (
            torch.randn(count, 3, size, size, generator=g, device="cpu"),
            torch.randint(1000, (count,), generator=g, device="cpu"),
        )

    return model, batch, lambda model, part: F.cross_entropy(model(part[0]), part[1])


class Training:
    """One job from its beginning; everything that four steps leave."""

    def __init__(self, job, small, foreach=None):
        torch.manual_seed(11)
        with torch.device("cuda"):
            self.model, self.make, self.loss = JOBS[job](small)
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=foreach)
        self.autocast = AUTOCAST.get(job)
        torch.manual_seed(12)

    def batch(self, step):
        made = self.make(step)
        if isinstance(made, dict):
            return {k: v.cuda() for k, v in made.items()}
        return tuple(t.cuda() for t in made)

    def plain(self):
        losses = []
        for step in range(STEPS):
            with torch.autocast("cuda", self.autocast or torch.bfloat16, bool(self.autocast)):
                loss = self.loss(self.model, self.batch(step))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        return losses

    def train_step(self, rungs):
        step = oomph.TrainStep(
            self.model, self.optimizer, self.loss, autocast=self.autocast,
            samples=lambda batch: 1, part=lambda batch, start, stop: batch,
        )  # fmt: skip
        if rungs:
            state = step.state_dict()
            step.load_state_dict(dict(state, rungs=rungs))
        reports = [step(self.make(n)) for n in range(STEPS)]
        self.errors = [e for r in reports for e in r.errors]
        self.rungs = reports[-1].rungs
        return [r.loss for r in reports]

    def everything(self, losses):
        found = {f"loss {i}": loss for i, loss in enumerate(losses)}
        found |= {f"model {k}": v for k, v in self.model.state_dict().items()}
        for index, p in enumerate(self.model.parameters()):
            for key, value in self.optimizer.state.get(p, {}).items():
                found[f"optimizer {index} {key}"] = torch.as_tensor(value)
        found["random state"] = torch.cuda.get_rng_state()
        return {k: v.detach().cpu().contiguous() for k, v in found.items()}


def bits(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def compare(mine, other):
    """Names of what differs."""
    if other is None:
        return ["everything: it stopped"]
    if mine.keys() != other.keys():
        return sorted(mine.keys() ^ other.keys())
    return [k for k in mine if not torch.equal(bits(mine[k]), bits(other[k]))]


def run(job, small, how, limit=None, foreach=None):
    oomph.free()
    torch.cuda.reset_peak_memory_stats()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total) if limit else 1.0)
    row, state = {}, None
    try:
        training = Training(job, small, foreach)
        losses = how(training)
        torch.cuda.synchronize()
        state = training.everything(losses)
        row.update(errors=getattr(training, "errors", []), rungs=getattr(training, "rungs", []))
    except (oomph.CannotFit, oomph.Refused, oomph.StateLost, RuntimeError) as error:
        row["stopped"] = f"{type(error).__name__}: {error}"[:300]
    row["peak_allocated"] = torch.cuda.max_memory_allocated()
    row["peak_reserved"] = torch.cuda.max_memory_reserved()
    torch.cuda.set_per_process_memory_fraction(1.0)
    return row, state


def root_of(job, small):
    with torch.device("meta"):
        return type(JOBS[job](small)[0]).__name__


def measure(job, small, keep):
    plain, expected = run(job, small, Training.plain)
    if expected is None:
        keep(dict(job=job, variant="plain", **plain))
        return
    again, same = run(job, small, Training.plain)
    keep(dict(job=job, variant="plain again", differs=compare(expected, same), **again))
    single, by_one = run(job, small, Training.plain, foreach=False)
    keep(dict(job=job, variant="plain, foreach=False", differs=compare(expected, by_one), **single))
    del same
    root = [root_of(job, small)]
    offload, on_cpu = dict(name="offload_activations", modules=root), dict(name="optimizer_on_cpu")
    for name, rungs in {
        "no rung": [],
        "offload_activations": [offload],
        "optimizer_on_cpu": [on_cpu],
        "both": [offload, on_cpu],
    }.items():
        row, state = run(job, small, lambda training, rungs=rungs: training.train_step(rungs))
        if state is not None:
            row["differs"] = compare(expected, state)
            row["differs_from_single"] = compare(by_one, state)
        keep(dict(job=job, variant=name, **row))
        del state
    for share in SHARES:
        limit = int(plain["peak_reserved"] * share)
        row, state = run(job, small, lambda training: training.train_step([]), limit)
        if state is not None:
            row["differs"] = compare(expected, state)
            row["differs_from_single"] = compare(by_one, state)
        keep(dict(job=job, variant=f"within {share:.0%}", limit=limit, **row))
        if state is None:
            break


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--jobs", nargs="*", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no job after so long")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("a GPU is needed")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.use_deterministic_algorithms(True)  # warnings alone leave attention's backward as it is
    began = time.time()
    result = dict(
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command="python " + " ".join(sys.argv), machine=torch.cuda.get_device_name(),
        torch=torch.__version__, rows=[],
    )  # fmt: skip

    def keep(row):
        row["seconds"] = round(time.time() - began, 1)
        differs, single = row.get("differs"), row.get("differs_from_single")
        row.update({k: dict(count=len(v), first=v[:3]) for k, v in (("differs", differs), ("differs_from_single", single)) if v is not None})  # fmt: skip
        result["rows"].append(row)
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)
        said = row.get("stopped") or f"{len(differs or [])} differ" + (
            f", {len(single)} from foreach=False" if single is not None else ""
        )
        print(f"{row['job']:14} {row['variant']:22} {said} {row.get('rungs') or ''}", flush=True)

    for job in options.jobs:
        if time.time() - began > options.seconds:
            print("the time is up")
            break
        measure(job, options.small, keep)


if __name__ == "__main__":
    main()
