"""Settings of an optimizer in a file that trains nothing."""
import torch

from encoders import Encoder

settings = {"optim": "rmsprop", "batch_size": 128}
encoder = Encoder(**settings)
encoder.load_state_dict(torch.load("encoder.pickle"))
encoder = torch.nn.DataParallel(encoder.cuda())
