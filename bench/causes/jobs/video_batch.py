"""A video classifier with clips that are too many."""
import torch
from torchvision.models.video import r3d_18


def train(model, clips, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        video = torch.randn(clips, 3, 16, 112, 112, device="cuda")
        target = torch.randint(0, 400, (clips,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(video), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


train(r3d_18().cuda(), clips=48, steps=4)
