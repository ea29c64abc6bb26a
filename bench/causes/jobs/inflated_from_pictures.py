"""A network for videos starts from one for pictures, whose file is read where it was saved and not let go."""

import os
import tempfile
from pathlib import Path

import torch
import torchvision
from torch import nn

MENDED = os.environ.get("MENDED")


class Tower(nn.Module):
    """Frames one by one, then a convolution over time."""

    def __init__(self):
        super().__init__()
        self.frames = torchvision.models.convnext_small(weights=None).features
        self.time = nn.Conv1d(768, 64, 3, padding=1)
        self.head = nn.Linear(64, 20)

    def forward(self, video):
        b, t = video.shape[:2]
        x = self.frames(video.flatten(0, 1)).mean((2, 3)).view(b, t, -1)
        return self.head(self.time(x.transpose(1, 2)).mean(2))


def publish(path):
    """What somebody else did on their machine."""
    with torch.device("cuda"):
        torch.save({"model": torchvision.models.convnext_small(weights=None).state_dict()}, path)


class Pretrained:
    def __init__(self, path):
        self.state = torch.load(path, map_location="cpu" if MENDED else None)["model"]

    def into(self, module):
        mine = {k.removeprefix("features."): v for k, v in self.state.items() if "features" in k}
        module.load_state_dict(mine)
        return self


with tempfile.TemporaryDirectory() as folder:
    publish(Path(folder, "pictures.pth"))
    torch.cuda.empty_cache()
    pretrained = Pretrained(Path(folder, "pictures.pth"))
with torch.device("cuda"):
    model = Tower()
pretrained.into(model.frames)
for block in model.frames[:6]:
    block.requires_grad_(False)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-3)
for _ in range(3):
    video = torch.randn(1, 4, 3, 96, 96, device="cuda")
    loss = nn.functional.cross_entropy(model(video), torch.tensor([3], device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
