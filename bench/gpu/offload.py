"""What offloading costs on a GPU, and how much of it the step hides.

    python bench/gpu/offload.py OUT.jsonl [--jobs gpt2 …] [--most SECONDS] [--tiny]
    oomph run --gpu h200 --steps 3 bench/gpu/offload.py --script gpt2      # the same job, for the planner

For each job: the plain step, then shares of its activations in host memory (`save_on_cpu` with `most`), half of its blocks
(`offload_activations`), and the optimizer's state on the host, with and without a step inside the backward pass. Each is a
process of its own, forked before CUDA is there. Times are those between the ends of steps on the GPU (events), medians of the
second half. `copied_bytes` is what a step sends to the host; `link` what the link takes, measured alone.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from forked import forked

STEPS = 10


def gpt2(tiny):
    import transformers

    size = dict(n_layer=2, n_embd=128, n_head=2) if tiny else {}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, **size)).cuda()
    return model, *text(model, 8, 64 if tiny else 1024)


def llama(tiny):
    import transformers

    size = dict(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=6,
                num_attention_heads=32, num_key_value_heads=4)  # fmt: skip
    if tiny:
        size.update(
            hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
        )
    config = transformers.LlamaConfig(max_position_embeddings=2048, use_cache=False, **size)
    model = transformers.LlamaForCausalLM(config).bfloat16().cuda()
    return model, *text(model, 4, 64 if tiny else 2048)


def vit(tiny):
    import torchvision

    return images(torchvision.models.vit_b_16().cuda(), 4 if tiny else 128)


def resnet(tiny):
    import torchvision

    return images(torchvision.models.resnet50().cuda(), 4 if tiny else 64)


def text(model, batch, length):
    tokens = torch.randint(30000, (batch, length), device="cuda")
    return lambda: model(input_ids=tokens, labels=tokens).loss, model.config.model_type == "gpt2"


def images(model, batch):
    pixels = torch.randn(batch, 3, 224, 224, device="cuda")
    classes = torch.randint(1000, (batch,), device="cuda")
    loss = lambda: torch.nn.functional.cross_entropy(model(pixels), classes)  # noqa: E731
    return model, loss, type(model).__name__ == "VisionTransformer"


JOBS = dict(gpt2=gpt2, vit=vit, resnet=resnet, llama=llama)
BLOCKS = dict(
    gpt2=[f"GPT2LMHeadModel.transformer.h.{i}" for i in range(6)],
    vit=[f"VisionTransformer.encoder.layers.encoder_layer_{i}" for i in range(6)],
    resnet=[f"ResNet.layer{n}.{i}" for n, size in enumerate((3, 4), 1) for i in range(size)],
    llama=[f"LlamaForCausalLM.model.layers.{i}" for i in range(3)],
)  # The first half; at `--tiny` those that are there.


def train(job, tiny, steps, ended):
    """The job as a script; `ended` is called at the end of each step."""
    torch.manual_seed(0)
    model, loss, casts = JOBS[job](tiny)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=casts):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        ended()


def measure(job, tiny, levers):
    """One variant, in this process."""
    from oomph.levers import Levers
    from oomph.levers._shared import host_copies

    applied = Levers(levers)
    applied.install()
    copied = [0]
    send = host_copies.Transfers._send

    def counted(self, entry):
        copied[0] += entry.nbytes
        send(self, entry)

    host_copies.Transfers._send = counted
    events, host, held = [], [], [0]

    def ended():
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        host.append(time.perf_counter())
        held[0] = torch.cuda.memory_allocated()
        if len(events) == 2:
            torch.cuda.reset_peak_memory_stats()

    train(job, tiny, STEPS, ended)
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) / 1e3 for a, b in zip(events[:-1], events[1:], strict=True)]
    return dict(
        step_s=times,
        host_step_s=[b - a for a, b in zip(host[:-1], host[1:], strict=True)],
        allocated_bytes=torch.cuda.max_memory_allocated(),
        reserved_bytes=torch.cuda.max_memory_reserved(),
        held_bytes=held[0],
        copied_bytes=copied[0] // STEPS,
        levers=applied.report(),
        gpu=torch.cuda.get_device_name(0),
        torch=torch.__version__,
    )


def link():
    """Bytes a second: out, back, and both at once."""
    size = 256 << 20
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = {}
    for name in ("out", "back", "both", "both"):  # the first is to warm up
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(8):
            if name != "back":
                with torch.cuda.stream(streams[0]):
                    host[0].copy_(device[0], non_blocking=True)
            if name != "out":
                with torch.cuda.stream(streams[1]):
                    device[1].copy_(host[1], non_blocking=True)
        torch.cuda.synchronize()
        found[name] = 8 * size / (time.perf_counter() - began)
    return found


def variants(job, activations):
    """Names and levers."""
    on_cpu, early = dict(name="optimizer_on_cpu"), dict(name="step_in_backward")
    for share in (0.25, 0.5, 0.1, 1.0):
        most = {} if share == 1.0 else dict(most=int(share * activations))
        yield f"save_on_cpu {share:.0%}", [dict(name="save_on_cpu", in_flight=128 << 20, **most)]
    yield "optimizer_on_cpu", [on_cpu]
    yield "optimizer_on_cpu + step_in_backward", [on_cpu, early]
    yield "offload_activations half", [dict(name="offload_activations", modules=BLOCKS[job])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--only", default="", help="variants whose name has this")
    parser.add_argument("--skip", help="but none whose name has this")
    parser.add_argument("--most", type=float, default=140, help="seconds after which no run begins")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--script", choices=JOBS, help="only train, as a script")
    options = parser.parse_args()
    if options.script:
        train(options.script, options.tiny, STEPS, lambda: None)
        return
    began = time.time()
    # What takes long to import is there before the processes part.
    import torchvision  # noqa: F401
    import transformers

    _ = transformers.GPT2LMHeadModel, transformers.LlamaForCausalLM
    with options.out.open("a") as file:

        def note(**row):
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(say(row), flush=True)

        note(kind="link", measured=forked(link))
        for job in options.jobs:
            plain = forked(measure, job, options.tiny, [])
            note(job=job, kind="plain", measured=plain)
            activations = plain.get("allocated_bytes", 0) - plain.get("held_bytes", 0)
            for name, levers in variants(job, activations):
                if time.time() - began > options.most:
                    print("the time is up", file=sys.stderr)
                    return
                if options.only not in name or options.skip and options.skip in name:
                    continue
                found = forked(measure, job, options.tiny, levers)
                note(job=job, kind=name, levers=levers, measured=found, ratio=ratio(found, plain))


def settled(found):
    """Seconds of a step: the median of the second half."""
    return statistics.median(found["step_s"][len(found["step_s"]) // 2 :])


def ratio(found, plain):
    return settled(found) / settled(plain) if "step_s" in found and "step_s" in plain else None


def say(row):
    """The row for people."""
    measured = row["measured"]
    if "step_s" not in measured:
        return f"{row.get('job', '')} {row['kind']} {measured}"
    time_ratio = f" {row['ratio']:.2f}" if row.get("ratio") else ""
    return (
        f"{row['job']:7} {row['kind']:36} {1e3 * settled(measured):7.1f} ms{time_ratio} "
        f"peak {measured['allocated_bytes'] / 2**20:.0f} copied {measured['copied_bytes'] / 2**20:.0f} MiB"
    )


if __name__ == "__main__":
    main()
