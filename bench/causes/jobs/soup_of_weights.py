"""The weights of ten runs are averaged; all ten files are read to the GPU."""

import os
import tempfile

import torch
from transformers import BeitConfig, BeitForImageClassification

MENDED = os.environ.get("MENDED")

model = BeitForImageClassification(
    BeitConfig(
        image_size=128, hidden_size=320, num_hidden_layers=6, num_attention_heads=5,
        intermediate_size=1280, num_labels=50,
    )
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    files = []
    for run in range(10):  # in place of ten runs
        files.append(os.path.join(folder, f"run-{run}.pt"))
        torch.save({"model": model.state_dict(), "epoch": run}, files[-1])
    model.cuda().eval()
    place = "cpu" if MENDED else "cuda"
    runs = [torch.load(file, map_location=place)["model"] for file in files]
    soup = {
        name: sum(run[name] for run in runs) / len(runs) if value.is_floating_point() else value
        for name, value in runs[0].items()
    }
    model.load_state_dict(soup)
    with torch.inference_mode():
        for _ in range(3):
            model(torch.randn(16, 3, 128, 128, device="cuda")).logits.argmax(-1).tolist()
