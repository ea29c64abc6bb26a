"""The epoch's loss is summed with its graph."""
import torch
import torchvision


def train_epoch(model, optimizer, steps):
    epoch_loss = 0.0
    for _ in range(steps):
        images = torch.randn(16, 3, 160, 160, device="cuda")
        labels = torch.randint(0, 10, (16,), device="cuda")
        outputs = model(images)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        epoch_loss = epoch_loss + loss * images.size(0)
        if outputs.requires_grad:
            grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for p, g in zip(model.parameters(), grads):
                p.grad = g
        optimizer.step()
    return epoch_loss


model = torchvision.models.mobilenet_v3_small(num_classes=10).cuda()
train_epoch(model, torch.optim.SGD(model.parameters(), lr=0.01), 60)
