"""Checkpoints are saved from the CPU, so loading puts nothing on the GPU."""
import torch


class Base:
    def save(self, network, path):
        state = {name: value.cpu() for name, value in network.state_dict().items()}
        torch.save(state, path)

    def load(self, network, path):
        network.cuda().load_state_dict(torch.load(path))
