# Read shop awnings: fine-tuning MGP-STR (a ViT with three vocabularies: characters, BPE, word pieces)
# accelerate, fp16, EMA of the weights, OneCycle
import string

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import MgpstrConfig, MgpstrForSceneTextRecognition

ALPHABET = string.digits + string.ascii_lowercase  # 36, plus [GO] and [s]
BATCH_SIZE = 48
MAX_LEN = 27
STEPS = 14
HEADS = {"char": 1.0, "bpe": 1.0, "wp": 1.0}


class AwningDataset(Dataset):
    """Fake crops of awnings: stripes, with a block where a letter is."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, idx):
        rs = np.random.RandomState(idx)
        n = rs.randint(3, 16)
        word = rs.randint(0, len(ALPHABET), n)
        img = rs.rand(3, 1, 1) * 0.4 + 0.1 * np.sin(np.arange(128) / rs.uniform(2, 9))[None, None]
        img = np.broadcast_to(img, (3, 32, 128)) + rs.rand(3, 32, 128) * 0.1
        for k, letter in enumerate(word):
            x0 = 4 + k * 8
            glyph = np.random.RandomState(letter).rand(18, 6) > 0.5
            img[:, 7:25, x0 : x0 + 6] += glyph * 0.5
        char = np.full(MAX_LEN, -100)
        char[0], char[1 : n + 1], char[n + 1] = 0, word + 2, 1
        # not real tokenizers, only about as many ids, from the letters
        pieces = word[: n - n % 2].reshape(-1, 2) @ np.array([1361, 37])
        bpe, wp = np.full(MAX_LEN, -100), np.full(MAX_LEN, -100)
        m = len(pieces)
        bpe[0], bpe[1 : m + 1], bpe[m + 1] = 50256, pieces % 50257, 50256
        wp[0], wp[1 : m + 1], wp[m + 1] = 101, pieces % 30522, 102
        return {
            "pixel_values": torch.tensor(img, dtype=torch.float32),
            "char": torch.tensor(char),
            "bpe": torch.tensor(bpe),
            "wp": torch.tensor(wp),
        }


def multi_granularity_loss(logits, batch):
    losses = {}
    for (name, weight), out in zip(HEADS.items(), logits):
        losses[name] = weight * nn.functional.cross_entropy(
            out.flatten(0, 1), batch[name].flatten(), ignore_index=-100
        )
    losses["total"] = sum(losses.values())
    return losses


def train():
    set_seed(1337)
    accelerator = Accelerator(mixed_precision="fp16")
    model = MgpstrForSceneTextRecognition(MgpstrConfig(drop_path_rate=0.1, drop_rate=0.1))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999)).to(accelerator.device)
    dl = DataLoader(
        AwningDataset(BATCH_SIZE * STEPS), batch_size=BATCH_SIZE, shuffle=True, drop_last=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-4, total_steps=STEPS + 1)
    model, optimizer, dl, scheduler = accelerator.prepare(model, optimizer, dl, scheduler)

    model.train()
    bar = tqdm(dl, disable=not accelerator.is_main_process)
    for batch in bar:
        out = model(pixel_values=batch["pixel_values"])
        losses = multi_granularity_loss(out.logits, batch)
        accelerator.backward(losses["total"])
        accelerator.clip_grad_norm_(model.parameters(), 20.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        ema.update_parameters(model)
        bar.set_postfix({k: f"{v.item():.3f}" for k, v in losses.items()})

    # does the average read any better?
    ema.eval()
    with torch.no_grad():
        sample = next(iter(dl))
        char = ema(sample["pixel_values"]).logits[0].argmax(-1)
    valid = sample["char"] != -100
    print("char accuracy (ema):", (char == sample["char"])[valid].float().mean().item())


if __name__ == "__main__":
    train()
