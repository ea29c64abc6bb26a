"""accelerate trains a large MLP-Mixer, one picture at a time, eight to a step, without momentum."""

import os

import timm
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

half = bool(os.environ.get("MENDED"))


def training_function():
    accelerator = Accelerator(gradient_accumulation_steps=8)
    data = TensorDataset(torch.rand(16, 3, 224, 224), torch.arange(16) % 10)
    with accelerator.main_process_first(), torch.device(accelerator.device):
        model = timm.create_model("mixer_l16_224", num_classes=10)
    if half:
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=1))
    for picture, label in loader:
        with accelerator.accumulate(model):
            scores = model(picture.to(next(model.parameters()).dtype))
            accelerator.backward(torch.nn.functional.cross_entropy(scores.float(), label))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()


if __name__ == "__main__":
    training_function()
