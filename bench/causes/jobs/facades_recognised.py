"""Recognises facades: dense descriptors whitened over the whole street, then one table of codes."""

import os

import torch
import torch.nn.functional as F

MENDED = os.environ.get("MENDED")
IMAGES, PIXELS, CHANNELS, CODE = 180, 13_000, 96, 64


class Describer:
    """A frozen layer that gives each pixel a descriptor and a code."""

    def __init__(self):
        self.first = torch.randn(16, CHANNELS, device="cuda") / 4
        self.second = torch.randn(CHANNELS, CODE, device="cuda") / 10

    def describe(self, image, out=None):
        return torch.matmul(image.cuda(), self.first, out=out)

    def encode(self, descriptors):
        return torch.matmul(descriptors, self.second).sigmoid_()


class Street:
    def __init__(self, images):
        self.images = images
        self.describer = Describer()
        self.descriptors, self.codes = [], []

    def read(self):
        if MENDED:
            room = torch.empty(len(self.images), PIXELS, CHANNELS, device="cuda")
            self.descriptors = room.unbind(0)
        for n, image in enumerate(self.images):
            if MENDED:
                self.describer.describe(image, out=self.descriptors[n])
            else:
                self.descriptors.append(self.describer.describe(image))
            self.codes.append(self.describer.encode(self.descriptors[n]))

    def mean(self):
        return sum(d.mean(0) for d in self.descriptors) / len(self.descriptors)

    def table(self):
        self.descriptors = None
        return torch.stack(self.codes)


with torch.no_grad():
    street = Street([torch.rand(PIXELS, 16) for _ in range(IMAGES)])
    street.read()
    centre = street.mean()
    table = street.table()
    scores = F.cosine_similarity(table[:, :64].flatten(1), table[:1, :64].flatten(1))
    print("best:", scores.topk(3).indices.shape)
