"""What the text jobs share: random tokens, so that nothing has to be downloaded."""

import torch
from torch.utils.data import Dataset


class RandomText(Dataset):
    """Sequences of random tokens with one of two classes."""

    def __init__(self, samples, length, vocabulary):
        self.samples, self.length, self.vocabulary = samples, length, vocabulary

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocabulary, (self.length,), generator=generator)
        return tokens, torch.randint(2, (), generator=generator)
