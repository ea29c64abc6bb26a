"""Training loops of a fixed rhythm that print how long their steps take.

    python steady.py JOB [--steps 200] [--small] [--out FILE]

The time is that of every tenth of the steps, waiting for the GPU only at its ends, as training does; FILE
gets them in milliseconds a step. Each job is as a script would write it; `lightning` and `trainer` train
through their frameworks.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Timer:
    """Times blocks of steps."""

    def __init__(self, steps):
        self.size, self.done, self.began, self.blocks = max(1, steps // 10), 0, None, []

    def step(self):
        if self.done % self.size == 0:
            torch.cuda.synchronize()
            now = time.perf_counter()
            if self.began is not None:
                self.blocks.append((now - self.began) / self.size * 1e3)
            self.began = now
        self.done += 1


def images(batch, size, classes=1000):
    return torch.randn(batch, 3, size, size, device="cuda"), torch.randint(classes, (batch,), device="cuda")  # fmt: skip


def vision(name, batch, size=224):
    def job(small):
        import torchvision

        model = getattr(torchvision.models, name)().cuda()
        x, y = images(2 if small else batch, 64 if small else size)
        return model, lambda: F.cross_entropy(model(x).float(), y)

    return job


def text(model, batch, length, **more):
    ids = torch.randint(model.config.vocab_size, (batch, length), device="cuda")
    return lambda: model(input_ids=ids, labels=ids, **more).loss


def gpt2(small):
    import transformers

    size = dict(n_layer=2, n_embd=64, n_head=2, vocab_size=512) if small else {}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, **size)).cuda()
    return model, text(model, 2 if small else 8, 64 if small else 1024)


def t5_small(small):
    import transformers

    size = dict(num_layers=2, d_model=64, d_ff=64, vocab_size=512) if small else {}
    config = transformers.T5Config(
        decoder_start_token_id=0, use_cache=False, **(size or dict(num_layers=6))
    )
    model = transformers.T5ForConditionalGeneration(config).cuda()
    return model, text(model, 2 if small else 16, 32 if small else 256)


def bert(small):
    import transformers

    size = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=2, vocab_size=512, intermediate_size=64) if small else {}  # fmt: skip
    model = transformers.BertForMaskedLM(transformers.BertConfig(**size)).cuda()
    return model, text(model, 2 if small else 16, 64 if small else 256)


def llama(small):
    import transformers

    size = dict(vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16)  # fmt: skip
    if small:
        size.update(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=2)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False, **size)).cuda()
    return model, text(model, 2 if small else 4, 64 if small else 1024)


def launch_bound(small):
    model = nn.Sequential(
        *(layer for _ in range(40) for layer in (nn.Linear(64, 64), nn.ReLU()))
    ).cuda()
    x = torch.randn(32, 64, device="cuda")
    return model, lambda: model(x).square().mean()


def lstm(small):
    embed, net, head = (
        nn.Embedding(10000, 512),
        nn.LSTM(512, 512, 2, batch_first=True),
        nn.Linear(512, 10000),
    )
    model = nn.ModuleList((embed, net, head)).cuda()
    ids = torch.randint(10000, (4 if small else 64, 16 if small else 128), device="cuda")
    return model, lambda: F.cross_entropy(head(net(embed(ids))[0]).flatten(0, 1), ids.flatten())


def autoencoder(small):
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU())

    model = nn.Sequential(
        block(3, 64), nn.MaxPool2d(2), block(64, 128), nn.MaxPool2d(2), block(128, 128), nn.Upsample(scale_factor=2),
        block(128, 64), nn.Upsample(scale_factor=2), nn.Conv2d(64, 3, 3, padding=1),
    ).cuda()  # fmt: skip
    x = images(2 if small else 32, 32 if small else 128)[0]
    return model, lambda: F.mse_loss(model(x), x)


JOBS = {
    "swin_t": vision("swin_t", 64),
    "resnet152": vision("resnet152", 64),
    "resnet18": vision("resnet18", 64),
    "t5_small": t5_small,
    "gpt2": gpt2,
    "bert": bert,
    "llama": llama,
    "launch_bound": launch_bound,
    "lstm": lstm,
    "autoencoder": autoencoder,
}
BF16 = ("swin_t", "t5_small", "gpt2", "bert", "llama", "resnet152")


def loop(name, steps, small):
    torch.manual_seed(0)
    model, loss_of = JOBS[name](small)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    timer = Timer(steps)
    for _ in range(steps + 1):
        timer.step()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=name in BF16):
            loss = loss_of()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return timer


class Tokens(torch.utils.data.Dataset):
    """Random tokens, labelled with themselves."""

    def __init__(self, count, length):
        self.ids = torch.randint(512, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, at):
        return dict(input_ids=self.ids[at], labels=self.ids[at])


def small_gpt():
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=6, n_embd=384, n_head=6, vocab_size=512, use_cache=False)
    )


def lightning(steps, small):
    try:
        import lightning
    except ImportError:
        import pytorch_lightning as lightning

    timer = Timer(steps)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = small_gpt()

        def training_step(self, batch, index):
            timer.step()
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    loader = torch.utils.data.DataLoader(Tokens((steps + 1) * 8, 256), batch_size=8)
    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, max_steps=steps + 1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), loader)
    return timer


def trainer(steps, small):
    import tempfile

    import transformers

    timer = Timer(steps)

    class Timed(transformers.TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            timer.step()

    with tempfile.TemporaryDirectory() as directory:
        arguments = transformers.TrainingArguments(
            directory, per_device_train_batch_size=8, max_steps=steps + 1, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        transformers.Trainer(
            small_gpt(), arguments, train_dataset=Tokens((steps + 1) * 8, 256), callbacks=[Timed()]
        ).train()
    return timer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("job", choices=[*JOBS, "lightning", "trainer"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--small", action="store_true", help="to try the script without a GPU")
    parser.add_argument("--plan", help="applied by the script itself")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.plan:
        import oomph

        oomph.apply(options.plan)
    if options.job in JOBS:
        timer = loop(options.job, options.steps, options.small)
    else:
        timer = dict(lightning=lightning, trainer=trainer)[options.job](
            options.steps, options.small
        )
    if options.out:
        with open(options.out, "w") as file:
            json.dump(dict(ms=timer.blocks, peak=torch.cuda.max_memory_allocated()), file)


if __name__ == "__main__":
    main()
