"""What the image jobs share: random images with classes, so that nothing has to be downloaded."""

import torch
from torch.utils.data import Dataset


class RandomImages(Dataset):
    """Images of 3 channels with one of 1000 classes."""

    def __init__(self, samples, size=224):
        self.samples, self.size = samples, size

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, self.size, self.size, generator=generator)
        return image, torch.randint(1000, (), generator=generator)
