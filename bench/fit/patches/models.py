from torch import nn


class MixerBlock(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.mix(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, width=384, depth=8, classes=100):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.layers = nn.Sequential(*[MixerBlock(196, width) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.layers(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def create_model(name, **kw):
    return {"mixer": Mixer}[name](**kw)
