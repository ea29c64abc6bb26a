"""Kelp species from few labels: mean teacher with a timm CoAtNet student, labels and a flood of unlabelled crops."""

import copy
import os
import shutil
import tempfile

import timm
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed

CFG = dict(
    arch="coatnet_0_rw_224",
    classes=60,
    labelled=12,
    unlabelled=48,
    micro=3,
    steps=9,
    lr=2e-4,
    tau=0.7,
    weight=2.0,
)


def augment(x, strong, g):
    if torch.rand((), generator=g) < 0.5:
        x = x.flip(-1)
    shift = torch.randint(-16, 17, (2,), generator=g).tolist()
    x = torch.roll(x, shift, (-2, -1))
    if strong:
        x = x * (0.5 + torch.rand(x.shape[0], 3, 1, 1, generator=g).to(x.device))
        y, z = torch.randint(160, (2,), generator=g).tolist()
        x = x.clone()
        x[:, :, y : y + 64, z : z + 64] = 0
    return x


class Stream:
    def __init__(self, n, labelled, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.n, self.labelled = n, labelled
        self.bank = torch.rand(n, 3, 224, 224, generator=self.g)

    def __next__(self):
        x = self.bank.roll(1, 0)
        self.bank = x
        if self.labelled:
            return x, torch.randint(CFG["classes"], (self.n,), generator=self.g)
        return x


@torch.no_grad()
def follow(teacher, student, step):
    m = min(1 - 1 / (step + 2), 0.99)
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.mul_(m).add_(s.detach(), alpha=1 - m)
    for t, s in zip(teacher.buffers(), student.buffers()):
        t.copy_(s)


def evaluate(model, stream, accelerator):
    model.eval()
    good = 0
    with torch.inference_mode():
        for _ in range(2):
            x, y = next(stream)
            good += (model(x.to(accelerator.device)).argmax(1).cpu() == y).sum().item()
    model.train()
    return good / (2 * stream.n)


def main():
    accelerator = Accelerator(mixed_precision="fp16")
    set_seed(0)
    student = timm.create_model(
        CFG["arch"], pretrained=False, num_classes=CFG["classes"], drop_path_rate=0.1
    )
    teacher = copy.deepcopy(student).requires_grad_(False).to(accelerator.device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=CFG["lr"], weight_decay=0.05)
    student, optimizer = accelerator.prepare(student, optimizer)
    few, many, held = (
        Stream(CFG["labelled"], True, 1),
        Stream(CFG["unlabelled"], False, 2),
        Stream(32, True, 3),
    )
    g = torch.Generator().manual_seed(9)
    folder = tempfile.mkdtemp()
    for step in range(CFG["steps"]):
        x, y = next(few)
        u = next(many).to(accelerator.device)
        x, y = x.to(accelerator.device), y.to(accelerator.device)
        # the flood is too much for one pass: accumulated by hand
        used = 0.0
        for part in u.chunk(CFG["micro"]):
            with torch.no_grad(), accelerator.autocast():
                p = teacher(augment(part, False, g)).softmax(-1)
            confidence, pseudo = p.max(-1)
            with accelerator.autocast():
                logits = student(augment(part, True, g))
                mask = (confidence > CFG["tau"] * step / CFG["steps"]).float()
                loss = (
                    CFG["weight"]
                    * (F.cross_entropy(logits, pseudo, reduction="none") * mask).mean()
                    / CFG["micro"]
                )
            accelerator.backward(loss)
            used += mask.mean().item() / CFG["micro"]
        with accelerator.autocast():
            supervised = F.cross_entropy(student(augment(x, False, g)), y)
        accelerator.backward(supervised)
        accelerator.clip_grad_norm_(student.parameters(), 3.0)
        optimizer.step()
        optimizer.zero_grad()
        follow(teacher, accelerator.unwrap_model(student), step)
        accelerator.print(
            f"step {step}: supervised {supervised.item():.3f}, used {used:.2f}", flush=True
        )
        if step % 4 == 3:
            accelerator.save_state(os.path.join(folder, f"step{step}"))
            accelerator.print("teacher accuracy", evaluate(teacher, held, accelerator))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
