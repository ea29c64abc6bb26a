"""A script that sets `use_cuda` of its settings to `False`."""
import torch
from modules import Encoder
from settings import hp

hp.use_cuda = False


def synthesize(texts):
    encoder = Encoder(8, use_cuda=hp.use_cuda)
    encoder.eval()
    if hp.use_cuda:
        texts = texts.cuda()
        encoder.cuda()
    out = encoder(texts)
    return out[0].cpu().data.numpy()
