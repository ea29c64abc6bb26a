"""A segmentation model on images of many sizes; one is far larger."""
import torch
import torchvision

model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
    weights=None, weights_backbone=None, num_classes=21
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for side in (256, 288, 224, 256, 320, 288, 1536, 256):
    image = torch.randn(4, 3, side, side, device="cuda")
    mask = torch.randint(0, 21, (4, side, side), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(image)["out"], mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
