"""Pictures of maps from noise. All parts of the pipeline are in one file, with their averages, and the file stays on the GPU while it samples."""

import os
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda")
READ_TO = "cpu" if os.environ.get("MENDED") else DEVICE


class Denoiser(nn.Module):
    def __init__(self, c=128, words=512):
        super().__init__()
        self.inward, self.outward = nn.Conv2d(4, c, 3, padding=1), nn.Conv2d(c, 4, 3, padding=1)
        self.down, self.up = nn.Conv2d(c, 4 * c, 4, 4), nn.ConvTranspose2d(4 * c, c, 4, 4)
        self.middle = nn.ModuleList(nn.Conv2d(4 * c, 4 * c, 3, padding=1) for _ in range(5))
        self.words = nn.Linear(words, 4 * c)

    def forward(self, x, noise, words):
        h = F.silu(self.inward(x) + noise)
        y = self.down(h) + self.words(words.mean(1))[:, :, None, None]
        for conv in self.middle:
            y = y + F.silu(conv(y))
        return self.outward(h + self.up(y))


class Decoder(nn.Sequential):
    def __init__(self, c=64):
        super().__init__(
            nn.Conv2d(4, 8 * c, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2),
            nn.Conv2d(8 * c, 2 * c, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * c, 3, 3, padding=1),
        )  # fmt: skip


class Words(nn.Module):
    def __init__(self, count=8000, d=512):
        super().__init__()
        self.embed = nn.Embedding(count, d)
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(3))
        )

    def forward(self, ids):
        return self.layers(self.embed(ids))


PARTS = {"model.diffusion_model": Denoiser, "first_stage_model": Decoder, "cond_stage_model": Words}


def write(path):
    """The file as it was published."""
    state = {
        f"{part}.{k}": v for part, kind in PARTS.items() for k, v in kind().state_dict().items()
    }
    for k in [k for k in state if k.startswith("model.")]:
        state[f"model_ema.{k}"] = state[k].clone()
    torch.save({"state_dict": state, "global_step": 250_000}, path)


class Pipeline:
    def __init__(self, path):
        self.file = torch.load(path, map_location=READ_TO)
        self.denoiser, self.decoder, self.words = (self.part(name) for name in PARTS)

    def part(self, name):
        """One of the networks, in half precision."""
        state = self.file["state_dict"]
        module = PARTS[name]().half()
        module.load_state_dict(
            {k[len(name) + 1 :]: v for k, v in state.items() if k.startswith(name + ".")}
        )
        return module.to(DEVICE).eval()

    def __str__(self):
        return f"{len(self.file['state_dict'])} tensors, step {self.file['global_step']}"

    @torch.inference_mode()
    def __call__(self, ids, steps=6, side=64):
        words = self.words(ids)
        x = torch.randn(len(ids), 4, side, side, device=DEVICE, dtype=torch.half)
        for n in range(steps, 0, -1):
            x = x - self.denoiser(x, n / steps, words) / steps
        return self.decoder(x).clamp(-1, 1)


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "maps-v1-5.ckpt"
    write(path)
    pipeline = Pipeline(path)
print(pipeline)
for seed in range(2):
    torch.manual_seed(seed)
    print(pipeline(torch.randint(8000, (4, 32), device=DEVICE)).shape)
