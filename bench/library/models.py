"""The small models of the sweeps, with a batch and a loss each."""

import torch
from torch import nn


class Transformer(nn.Module):
    """Two encoder blocks with dropout over an embedding, and a head over a small vocabulary."""

    def __init__(self, vocabulary=61, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Cnn(nn.Module):
    """Convolutions with BatchNorm: its batches must not be split."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1),
        )  # fmt: skip
        self.head = nn.Linear(16, 5)

    def forward(self, images):
        return self.head(self.features(images).mean((2, 3)))


class Residual(nn.Module):
    """Residual blocks with BatchNorm and dropout, which can be checkpointed and must not be split."""

    def __init__(self, width=8, depth=3):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
                nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(width, 5)

    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def mlp(device="cpu"):
    model = nn.Sequential(
        nn.Linear(12, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 4)
    ).to(device)  # fmt: skip

    def batch(seed, size=6):
        g = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(size, 12, generator=g), "y": torch.randn(size, 4, generator=g)}

    return model, batch, lambda model, part: (model(part["x"]) - part["y"]).pow(2).mean()


def transformer(device="cpu"):
    model = Transformer().to(device)

    def batch(seed, size=6):
        g = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 61, (size, 10), generator=g)
        for row, length in enumerate(torch.randint(2, 11, (size,), generator=g).tolist()):
            labels[row, length:] = -100
        return {"ids": torch.randint(0, 61, (size, 10), generator=g), "labels": labels}

    def loss(model, part):
        return nn.functional.cross_entropy(
            model(part["ids"]).flatten(0, 1), part["labels"].flatten()
        )

    return model, batch, loss


def residual(device="cpu"):
    return cnn(device, Residual)


def cnn(device="cpu", kind=Cnn):
    model = kind().to(device)

    def batch(seed, size=6):
        g = torch.Generator().manual_seed(seed)
        return (torch.randn(size, 3, 8, 8, generator=g), torch.randint(0, 5, (size,), generator=g))

    return model, batch, lambda model, part: nn.functional.cross_entropy(model(part[0]), part[1])


MODELS = {"mlp": mlp, "transformer": transformer, "cnn": cnn, "residual": residual}
WEIGHTS = {"mlp": "samples", "transformer": "labels", "cnn": "samples", "residual": "samples"}
