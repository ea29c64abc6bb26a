"""Another file's function makes the model; what is computed beside it is on the GPU."""

import torch
from models import load_model


class Voice:
    def __init__(self, path):
        self.model = load_model(path)
        self.vocoder = torch.hub.load("voices", "vocoder").cuda()

    def words(self, sound):
        return self.model(sound).argmax(1).tolist()  # OOM207
