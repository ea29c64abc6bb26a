"""Inference outside loops over batches."""
import torch
from PIL import Image
from torchvision import models, transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = models.resnet50(pretrained=True).to(device)
model.eval()


def load(path):
    net = models.resnet18(pretrained=True)
    net.to(device)
    net.eval()
    return net


def classify(path):
    net = load(path)
    net.eval()
    image = transforms.ToTensor()(Image.open(path)).unsqueeze(0).to(device)
    output = net(image)
    print(output.argmax(1).item())


def features(net, x):
    """Whoever calls it decides."""
    net.eval()
    return net(x)


def count(net):
    net.eval()
    return net(torch.rand(1, 3, 224, 224, device=device))


def saliency(net, image):
    net.eval()
    image = image.to(device)
    image.requires_grad_()
    score = net(image).max()
    score.backward()  # OOM112
    return image.grad


def attack(net, image, label, criterion):
    net.eval()
    delta = torch.zeros_like(image, requires_grad=True)
    for _ in range(10):
        loss = criterion(net(image + delta), label)
        loss.backward()  # OOM112
        delta.data += delta.grad.sign()
        delta.grad.zero_()
    return delta.detach()


def without(net, image):
    net.eval()
    with torch.inference_mode():
        return net(image.to(device))


@torch.no_grad()
def decorated(net, image):
    net.eval()
    return net(image.to(device))


def useless(net, image):
    net.eval()
    torch.no_grad()  # OOM203
    print(net(image.to(device)).argmax(1))  # OOM205


def useless_name(net, image):
    torch.no_grad  # OOM203
    with torch.no_grad():
        print(net(image.to(device)))


if __name__ == "__main__":
    print(model(torch.rand(2, 3, 224, 224).to(device)).shape)
