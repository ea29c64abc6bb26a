"""A vocoder speaks while it listens: chunk after chunk, and each begins with what the one before left behind."""

import os

import torch
from torch import nn


class CausalConv(nn.Conv1d):
    """Keeps the end of its input for the next chunk."""

    def __init__(self, i, o, k, dilation=1):
        super().__init__(i, o, k, dilation=dilation)
        self.past = None

    def reset(self):
        self.past = None

    def forward(self, x):
        need = (self.kernel_size[0] - 1) * self.dilation[0]
        if self.past is None:
            self.past = x.new_zeros(x.shape[0], x.shape[1], need)
        x = torch.cat([self.past, x], -1)
        self.past = x[..., -need:]
        return super().forward(x)


class Vocoder(nn.Module):
    def __init__(self, bands=80, width=96):
        super().__init__()
        self.enter = CausalConv(bands, width, 7)
        ups = []
        for factor in (8, 8, 4):
            ups += [nn.Upsample(scale_factor=factor), CausalConv(width, width, 5)]
            for dilation in (1, 3, 9):
                ups += [nn.LeakyReLU(0.1), CausalConv(width, width, 3, dilation)]
        self.ups = nn.Sequential(*ups)
        self.leave = CausalConv(width, 1, 7)

    def forward(self, mel):
        return torch.tanh(self.leave(self.ups(self.enter(mel))))

    def stream(self, mel, frames=8):
        for module in self.modules():
            if isinstance(module, CausalConv):
                module.reset()
        for chunk in mel.split(frames, -1):
            yield self(chunk).squeeze(1).tolist()


MENDED = os.environ.get("MENDED")
vocoder = Vocoder().to("cuda").eval()
if MENDED:
    torch.set_grad_enabled(False)
spoken = 0
for chunk in vocoder.stream(torch.randn(4, 80, 400, device="cuda")):
    spoken += len(chunk[0])
print(spoken, "samples")
