"""What levers save and cost on a GPU: peak and time of a step against the plain job.

    python bench/gpu/levers.py --out bench/gpu/results/NAME.json [--job gpt2 …] [--lever checkpoint …]
    python bench/gpu/levers.py --tiny --out FILE      # small models, to try the script (any CUDA GPU)

Each variant of a job has a process of its own; they take turns, round by round, and the median is kept:
of steps in rows, as loops train that do not read the loss in every step (`step_s`), and of steps that are
waited for one by one (`step_alone_s`), where the GPU idles at the beginning of each. `difference` is the
relative L2 distance of loss, gradients and updated parameters from the plain job's first step, with the
same weights, data and random state: 0 is bitwise, and "plain again" is the noise (less of it with
`--deterministic`). Peaks are those of a step that begins with all of the optimizer's state.
"""

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone

import torch

from oomph.levers import Levers
from oomph.levers._shared import blocks
from oomph.levers._shared.job import names


def gpt2(tiny):
    import transformers

    size = dict(n_layer=2, n_embd=128, n_head=2, vocab_size=8192) if tiny else {}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, **size))
    return model, text(8, 64 if tiny else 1024, model.config.vocab_size), torch.bfloat16, "adamw"


class DistilledLMHeadModel(torch.nn.Module):
    """A student with a third of its teacher's layers; returns the divergence of their words."""

    def __init__(self, tiny):
        super().__init__()
        import transformers

        size = dict(n_embd=128, n_head=2, vocab_size=8192) if tiny else {}
        make = lambda layers: transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, n_layer=layers, **size))  # noqa: E731  # fmt: skip
        self.student, self.teacher = make(4), make(2 if tiny else 12).requires_grad_(False)
        self.config = self.student.config

    def forward(self, input_ids):
        with torch.no_grad():
            wise = self.teacher(input_ids).logits.float().flatten(0, 1)
        logits = self.student(input_ids).logits.float().flatten(0, 1)
        of = torch.nn.functional
        return of.kl_div(of.log_softmax(logits / 2, -1), of.softmax(wise / 2, -1), reduction="batchmean") * 4  # fmt: skip


def distilled(tiny):
    model = DistilledLMHeadModel(tiny)
    batch, _ = text(8, 64 if tiny else 1024, model.config.vocab_size)
    return model, (batch, lambda m, b: m(b["input_ids"])), torch.bfloat16, "adamw"


def llama(tiny, layers=6):
    import transformers

    # Llama 1B, with a fourth of the layers where memory between variants is short.
    size = dict(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=4)  # fmt: skip
    if tiny:
        size.update(
            hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
        )
    config = transformers.LlamaConfig(max_position_embeddings=2048, use_cache=False, **size)
    model = transformers.LlamaForCausalLM(config).bfloat16()
    return model, text(4, 64 if tiny else 2048, config.vocab_size), None, "adamw"


def bert(tiny):
    import transformers

    size = dict(num_hidden_layers=2, hidden_size=128, num_attention_heads=2) if tiny else {}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**size))
    batch, _ = text(32, 64 if tiny else 512, 30000)
    return model, (dict(input_ids=batch["input_ids"], labels=batch["input_ids"][:, 0] % 2), hugging_face), torch.bfloat16, "adamw"  # fmt: skip


def vit(tiny):
    import torchvision

    return torchvision.models.vit_b_16(), images(4 if tiny else 64), torch.bfloat16, "adamw"


def resnet50(tiny):
    import torchvision

    return torchvision.models.resnet50(), images(4 if tiny else 64), None, "sgd"


def whole_llama(tiny):
    return llama(tiny, 22)


JOBS = dict(gpt2=gpt2, distilled_gpt2=distilled, resnet50=resnet50, vit_b_16=vit, bert_base=bert, llama1b_6_layers=llama, llama1b=whole_llama)  # fmt: skip
DETERMINISTIC = "OOMPH_BENCH_DETERMINISTIC"
ROW = 5
NOT_COMPARED = ["llama1b"]
"""Gradients of a billion parameters on the CPU take longer than the measurement."""


def hugging_face(model, batch):
    return model(**batch).loss


def text(rows, length, vocabulary):
    ids = torch.randint(vocabulary, (rows, length))
    return dict(input_ids=ids, labels=ids), hugging_face


def images(count):
    batch = dict(x=torch.randn(count, 3, 224, 224), y=torch.randint(1000, (count,)))
    return batch, lambda model, b: torch.nn.functional.cross_entropy(model(b["x"]), b["y"])


def repeated(model):
    """The blocks of the model, in the order in which they run."""
    return blocks.repeated(model)


def share(modules, part):
    """`part` of the modules, evenly spread."""
    count = max(1, round(len(modules) * part))
    return [modules[int(i * len(modules) / count)] for i in range(count)]


CHEAP = ("LayerNorm", "LlamaRMSNorm", "BatchNorm2d", "ReLU", "GELU", "GELUActivation", "NewGELUActivation", "SiLU", "SiLUActivation")  # fmt: skip
"""Classes of modules that take little time for the bytes of their results."""
WIDE = (
    ".c_fc",
    ".intermediate.dense",
    ".mlp.0",
    ".gate_proj",
    ".up_proj",
    ".conv3",
    ".downsample.0",
)
"""Products whose results are wider than what they are made of, by the ends of their names."""
HALF = dict(
    BertForSequenceClassification=[("intermediate.dense", 12), ("intermediate.intermediate_act_fn", 12), ("output.LayerNorm", 11), ("attention.output.LayerNorm", 3)],
    VisionTransformer=[("mlp.0", 12), ("mlp.1", 12), ("ln_2", 12), ("ln_1", 7)],
    ResNet=[("conv3", 16), ("bn1", 14), ("bn2", 14), ("relu", 14), ("downsample.0", 4)],
)  # fmt: skip
"""Modules that give up most bytes for their time, in so many of the blocks, until half of what is saved is
gone; found with `oomph run --gpu h200`."""


def cheap(model, wide):
    """Modules for `recompute`, with or without products."""
    # What is added to another tensor is saved by nobody.
    return [
        name
        for name, module in names(model).items()
        if (type(module).__name__ in CHEAP and not name.endswith((".bn3", ".downsample.1")))
        or (wide and name.endswith(WIDE))
    ]


def half(model):
    """The modules of `HALF`."""
    blocks = repeated(model)
    chosen = [
        f"{block}.{part}" for part, count in HALF[type(model).__name__] for block in blocks[:count]
    ]
    known = names(model)
    outside = ["ResNet.bn1", "ResNet.relu"]  # on the largest images of all
    return "recompute", dict(modules=[name for name in (*outside, *chosen) if name in known])


def variants(model):
    """`{name: (lever, parameters)}`; functions of the modules that repeat."""
    every = repeated(model)
    found = {
        "plain": None,
        "plain again": None,
        "checkpoint every block": ("checkpoint", dict(modules=every)),
        "checkpoint half of the blocks": ("checkpoint", dict(modules=share(every, 0.5))),
        "recompute": ("recompute", dict(modules=cheap(model, False))),
        "recompute with products": ("recompute", dict(modules=cheap(model, True))),
        "recompute, chunked_cross_entropy 8": [
            ("recompute", dict(modules=cheap(model, False))),
            ("chunked_cross_entropy", dict(chunks=8)),
        ],
        "offload 25 %": ("offload_activations", dict(modules=share(every, 0.25))),
        "offload 50 %": ("offload_activations", dict(modules=share(every, 0.5))),
        "offload 100 %": ("offload_activations", dict(modules=every)),
        "save_on_cpu": "save_on_cpu",
        "split_forward 2": ("split_forward", dict(parts=2)),
        "split_forward 4": ("split_forward", dict(parts=4)),
        "step_in_backward": ("step_in_backward", {}),
        "gradients_on_cpu": ("gradients_on_cpu", {}),
        "gradients_on_cpu, optimizer_on_cpu": [("gradients_on_cpu", {}), ("optimizer_on_cpu", {})],
        "gradients_on_cpu, split_forward 4": [
            ("gradients_on_cpu", {}),
            ("split_forward", dict(parts=4)),
        ],
        "optimizer_8bit": ("optimizer_8bit", {}),
        "optimizer_on_cpu": ("optimizer_on_cpu", {}),
        "step_in_backward, optimizer_on_cpu": [("step_in_backward", {}), ("optimizer_on_cpu", {})],
        "chunked_cross_entropy 8": ("chunked_cross_entropy", dict(chunks=8)),
    }
    if type(model).__name__ in HALF:
        fused = ("optimizer_step", dict(kind="fused"))
        found["half of the activations"] = half(model)
        found["fused step"] = fused
        found["fused step, half of the activations"] = [fused, half(model)]
    written_out = [name for name, module in names(model).items() if type(module).__name__ in ("LlamaRMSNorm", "NewGELUActivation")]  # fmt: skip
    if written_out:
        fused = ("fused_modules", dict(modules=written_out))
        found["one kernel"] = fused
        found["one kernel, recompute"] = [fused, ("recompute", dict(modules=cheap(model, False)))]
        found["one kernel, recompute with products"] = [
            fused,
            ("recompute", dict(modules=cheap(model, True))),
        ]
    adam = type(model).__name__ not in ("ResNet", "VisionTransformer")
    vocabulary = type(model).__name__.endswith("LMHeadModel") or type(model).__name__.endswith(
        "CausalLM"
    )
    # What a job has no use for is left out; compiling an optimizer takes its time.
    left_out = ([] if adam else ["optimizer_8bit"]) + ([] if vocabulary else ["chunked_cross_entropy 8", "recompute, chunked_cross_entropy 8"])  # fmt: skip
    return {name: lever for name, lever in found.items() if name not in left_out}


def serve(pipe, lever, make, tiny, reference):
    """The process of one variant."""
    variant = Variant("", lever, make, tiny, reference)
    while True:
        what, *arguments = pipe.recv()
        try:
            pipe.send(("answer", getattr(variant, what)(*arguments)))
        except SystemExit as refusal:
            pipe.send(("refused", str(refusal)[:500]))
        except Exception as error:
            pipe.send(("failure", f"{type(error).__name__}: {error}"[:500]))


class Variant:
    """One job under one lever, in a process of its own that takes turns with the others."""

    def __init__(self, name, lever, make, tiny, reference):
        self.name, self.lever, self.make, self.tiny, self.reference = name, lever, make, tiny, reference  # fmt: skip
        self.times, self.alone, self.row = [], [], dict(name=name)

    def begin(self):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, self.lever, self.make, self.tiny, self.reference), daemon=True)  # fmt: skip
        self.process.start()
        other.close()
        self.pipe.send(("setup",))

    def ask(self, what, *arguments):
        """The answer of the process; a failure ends its part in the measurement."""
        if "failure" in self.row or "refused" in self.row:
            return None
        try:
            self.pipe.send((what, *arguments))
            kind, answer = self.pipe.recv()
        except (EOFError, OSError):
            kind, answer = "failure", "its process died"
        if kind != "answer":
            self.row[kind] = answer
            return None
        return answer

    def end(self):
        self.process.kill()
        self.process.join()

    # ---- in its process ----

    def setup(self):
        if DETERMINISTIC in os.environ:
            torch.use_deterministic_algorithms(True, warn_only=True)
        self.levers = None
        if self.lever not in (None, "save_on_cpu"):
            chosen = [self.lever] if isinstance(self.lever, tuple) else self.lever
            self.levers = Levers([dict(name=name, **parameters) for name, parameters in chosen])
            self.levers.install()
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.model, (self.batch, self.loss), self.autocast, kind = self.make(self.tiny)
        self.model.train()
        if kind == "sgd":
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        torch.cuda.synchronize()

    def forward_backward(self):
        saving = torch.autograd.graph.save_on_cpu(pin_memory=True) if self.lever == "save_on_cpu" else contextlib.nullcontext()  # fmt: skip
        with torch.autocast("cuda", torch.bfloat16, enabled=self.autocast is not None), saving:
            loss = self.loss(self.model, self.batch)
        self.after_forward = torch.cuda.memory_allocated()
        loss.backward()
        return loss.detach()

    def one(self):
        self.forward_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def first(self):
        """The first step, compared with the plain job's."""
        torch.manual_seed(1)
        loss = self.forward_backward().cpu()
        gradients = [None if p.grad is None else p.grad.cpu() for p in self.model.parameters()]
        self.optimizer.step()
        self.optimizer.zero_grad()
        updated = [p.detach().cpu() for p in self.model.parameters()]
        mine = loss, gradients, updated
        if not os.path.exists(self.reference):
            torch.save(mine, self.reference)
            return dict(loss=loss.item())
        plain = torch.load(self.reference)
        return dict(
            loss=loss.item(),
            difference=dict(
                loss=distance([loss], [plain[0]]),
                gradients=distance(gradients, plain[1]),
                updated_parameters=distance(updated, plain[2]),
            ),
        )

    def peak(self):
        """Of a step that begins with all of the optimizer's state."""
        self.one()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        self.one()
        torch.cuda.synchronize()
        result = dict(
            peak_allocated_bytes=torch.cuda.max_memory_allocated(),
            peak_reserved_bytes=torch.cuda.max_memory_reserved(),
            held_between_steps_bytes=held,
            saved_for_backward_bytes=self.after_forward - held,
        )
        self.rest()
        return result

    def steps(self, count, row):
        """Seconds of a step, `count` times: of `row` steps, between which nobody waits for the GPU."""
        self.one()  # memory is cut again, and clocks are up
        times = []
        for _ in range(count):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(row):
                self.one()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / row)
        self.rest()
        return times

    def rest(self):
        """Leave the memory to the others."""
        gc.collect()
        torch.cuda.empty_cache()

    def report(self):
        if not self.levers:
            return None
        reports = self.levers.report()
        return reports[0] if len(reports) == 1 else dict(levers=reports)


def distance(a, b):
    """Relative L2 distance of two lists of tensors; None where one of them has none."""
    pairs = [(x.double(), y.double()) for x, y in zip(a, b) if x is not None and y is not None]
    if not pairs:
        return None
    apart = sum((x - y).square().sum() for x, y in pairs).item()
    return (apart / sum(y.square().sum() for _, y in pairs).item()) ** 0.5 if apart else 0.0


def measure(job, only, tiny, rounds):
    reference = os.path.join("/dev/shm", f"oomph-levers-{os.getpid()}.pt")
    with torch.device("meta"):
        chosen = variants(JOBS[job](tiny)[0])
    wanted = {k: v for k, v in chosen.items() if not only or k.startswith(("plain", *only))}
    running = [Variant(name, lever, JOBS[job], tiny, reference) for name, lever in wanted.items()]
    try:
        # Processes start at once; from then on one works at a time.
        for variant in running:
            variant.begin()
        for variant in running:
            kind, answer = variant.pipe.recv()
            if kind != "answer":
                variant.row[kind] = answer
        for variant in running:
            if job not in NOT_COMPARED:
                variant.row.update(variant.ask("first") or {})
            variant.row.update(variant.ask("peak") or {})
        for _ in range(rounds):
            for variant in running:
                variant.times += variant.ask("steps", 3, ROW) or []
                variant.alone += variant.ask("steps", 2, 1) or []
        for variant in running:
            variant.row.update(variant.ask("report") or {}, name=variant.name)
    finally:
        for variant in running:
            variant.end()
        if os.path.exists(reference):
            os.remove(reference)
    rows = []
    for variant in running:
        row = dict(job=job, **variant.row, steps_s=variant.times, alone_s=variant.alone)
        if variant.times and variant.alone:
            row["step_s"] = statistics.median(variant.times)
            row["step_alone_s"] = statistics.median(variant.alone)
        rows.append(row)
    plain = rows[0]
    for row in rows:
        if "step_s" in row and "step_s" in plain:
            row["time_ratio"] = row["step_s"] / plain["step_s"]
            row["time_ratio_alone"] = row["step_alone_s"] / plain["step_alone_s"]
            row["saved_bytes"] = plain["peak_allocated_bytes"] - row["peak_allocated_bytes"]
            activations = plain["peak_allocated_bytes"] - plain["held_between_steps_bytes"]
            row["saved_share_of_activations"] = row["saved_bytes"] / activations
            row["saved_share_for_backward"] = 1 - row["saved_for_backward_bytes"] / plain["saved_for_backward_bytes"]  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--job", nargs="*", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--lever", nargs="*", default=[], help="beginnings of variants' names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--deterministic", action="store_true", help="kernels that give the same bits each time: exact levers then differ by 0")  # fmt: skip
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    if arguments.deterministic:
        os.environ.update({DETERMINISTIC: "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
    # CUDA begins in the processes of the variants, never in this one.
    began = time.time()
    result = dict(
        gpu=subprocess.run(
            [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name(0))"],
            capture_output=True,
            text=True,
        ).stdout.strip(),  # fmt: skip
        machine=platform.processor() or platform.machine(),
        cpus=os.cpu_count(),
        torch=torch.__version__,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command="python bench/gpu/levers.py " + " ".join(sys.argv[1:]),
        rows=[],
    )
    if not result["gpu"]:
        parser.error(
            "torch finds no CUDA GPU; real times need one (oomph run --gpu h200 to try the script)"
        )
    for job in arguments.job:
        rows = measure(job, arguments.lever, arguments.tiny, arguments.rounds)
        result["rows"] += rows
        result["seconds"] = time.time() - began
        # After each job, so that nothing is lost when time runs out.
        os.makedirs(os.path.dirname(os.path.abspath(arguments.out)), exist_ok=True)
        with open(arguments.out, "w") as file:
            json.dump(result, file, indent=1)
        for row in rows:
            if "step_s" in row and "time_ratio" in row:
                near = row.get("difference") or dict(loss=0, gradients=0)
                text = (
                    f"{row['step_s'] * 1e3:8.1f} ms {row['time_ratio']:6.3f}x ({row['time_ratio_alone']:.3f}x alone)  peak {row['peak_allocated_bytes'] / 2**20:7.0f} MiB  "
                    f"{row['saved_share_of_activations']:6.1%} of activations ({row['saved_share_for_backward']:6.1%} after the forward pass)  loss {near['loss']:.1e}  gradients {near['gradients']}"
                )
            else:
                text = row.get("refused") or row.get("failure") or "the plain job failed"
            print(f"{job:18} {row['name']:30} {text}", flush=True)


if __name__ == "__main__":
    main()
