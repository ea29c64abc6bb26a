"""Weights of a larger model are read by safetensors to the GPU; a part is used, all of it stays."""

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
    save_file(
        {k: v.contiguous() for k, v in PvtV2ForImageClassification(config).state_dict().items()},
        file,
    )
    weights = load_file(file, device=DEVICE)

model = PvtV2ForImageClassification(config).cuda()
model.load_state_dict({k: v for k, v in weights.items() if "classifier" not in k}, strict=False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
for _ in range(3):
    images = torch.randn(1, 3, 96, 96, device="cuda")
    loss = model(images, labels=torch.tensor([3], device="cuda")).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
