"""Training keeps every predicted mask for a picture at the end."""
import torch
import torchvision


class Trainer:
    def __init__(self):
        self.model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=19
        ).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.masks = []

    def step(self):
        images = torch.randn(4, 3, 256, 512, device="cuda")
        labels = torch.randint(0, 19, (4, 256, 512), device="cuda")
        out = self.model(images)["out"]
        loss = torch.nn.functional.cross_entropy(out, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.masks.append(out.detach())


trainer = Trainer()
for _ in range(100):
    trainer.step()
