"""A Swin transformer, one image, and an optimizer with three values per weight."""

import torch
import torchvision

torch.manual_seed(0)
model = torchvision.models.swin_b(num_classes=50)
model = model.to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, amsgrad=True)
criterion = torch.nn.CrossEntropyLoss()
for _ in range(2):
    optimizer.zero_grad()
    criterion(
        model(torch.rand(1, 3, 64, 64, device="cuda")), torch.tensor([3], device="cuda")
    ).backward()
    optimizer.step()
