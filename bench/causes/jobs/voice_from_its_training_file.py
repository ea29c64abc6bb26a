"""A vocoder speaks. Its file is from training, so the judges of its voice and their optimizer come to the GPU with it."""

import os
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class Vocoder(nn.Module):
    def __init__(self, mels=80, c=256):
        super().__init__()
        self.enter = nn.Conv1d(mels, c, 7, padding=3)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(c >> n, c >> (n + 1), 2 * f, f, f // 2 + f % 2, output_padding=f % 2)
            for n, f in enumerate((8, 8, 4))
        )
        self.leave = nn.Conv1d(c >> 3, 1, 7, padding=3)

    def forward(self, mel):
        x = self.enter(mel)
        for up in self.ups:
            x = up(F.leaky_relu(x, 0.1))
        return torch.tanh(self.leave(x))


class Judges(nn.ModuleList):
    """One for each rhythm of the signal."""

    def __init__(self, rhythms=(2, 3, 5, 7, 11)):
        super().__init__()
        for _ in rhythms:
            layers, i = [], 1
            for o in (64, 256, 1024, 1536):
                layers += [nn.Conv2d(i, o, (5, 1), (3, 1), (2, 0)), nn.LeakyReLU(0.1)]
                i = o
            self.append(nn.Sequential(*layers, nn.Conv2d(i, 1, (3, 1), padding=(1, 0))))


def as_training_left_it(path):
    """What the last hour of training wrote."""
    vocoder, judges = Vocoder().cuda(), Judges().cuda()
    moments = [
        {"exp_avg": torch.zeros_like(w), "exp_avg_sq": torch.zeros_like(w)}
        for w in judges.parameters()
    ]
    torch.save(
        {
            "vocoder": vocoder.state_dict(),
            "judges": judges.state_dict(),
            "judges_optimizer": {"state": dict(enumerate(moments)), "param_groups": []},
            "steps": 400_000,
        },
        path,
    )


class Speaker:
    def __init__(self, path):
        self.file = torch.load(path, map_location="cpu" if MENDED else None)
        self.vocoder = Vocoder().cuda().eval()
        self.vocoder.load_state_dict(self.file["vocoder"])

    @torch.inference_mode()
    def speak(self, mel):
        return self.vocoder(mel.cuda()).squeeze(1).cpu()

    def about(self):
        return f"trained for {self.file['steps']} steps"


with tempfile.TemporaryDirectory() as place:
    path = Path(place) / "g_00400000.pt"
    as_training_left_it(path)
    speaker = Speaker(path)
    print(speaker.about())
    for seconds in (4, 12, 30):
        print(speaker.speak(torch.rand(8, 80, seconds * 86)).shape)
