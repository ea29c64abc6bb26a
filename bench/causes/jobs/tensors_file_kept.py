"""A file with weights and their averages is read by safetensors to the GPU; all of it stays there."""

import os
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import PvtV2Config, PvtV2ForImageClassification

DEVICE = "cpu" if os.environ.get("MENDED") else "cuda"

config = PvtV2Config(
    hidden_sizes=[64, 128, 320, 512], depths=[3, 4, 18, 3], mlp_ratios=[8, 8, 4, 4], num_labels=7
)
with tempfile.TemporaryDirectory() as place:
    file = os.path.join(place, "model.safetensors")
    found = PvtV2ForImageClassification(config).state_dict()
    save_file(
        {f"{kind}.{k}": v.clone() for kind in ("last", "average") for k, v in found.items()}, file
    )
    weights = load_file(file, device=DEVICE)

model = PvtV2ForImageClassification(config).cuda()
model.load_state_dict({k: weights[f"average.{k}"] for k in model.state_dict()})
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(3):
    images = torch.randn(1, 3, 96, 96, device="cuda")
    loss = model(images, labels=torch.tensor([3], device="cuda")).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
