"""An image classifier with batches that are too large."""
import torch
import torchvision

model = torchvision.models.efficientnet_b3(num_classes=100).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(4):
    images = torch.randn(96, 3, 300, 300, device="cuda")
    labels = torch.randint(0, 100, (96,), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
