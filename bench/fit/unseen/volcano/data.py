import torch
from torch.utils.data import DataLoader, IterableDataset


class Frames(IterableDataset):
    def __init__(self, batches, batch, size, landmarks, seed):
        self.batches, self.batch, self.size, self.landmarks, self.seed = (
            batches,
            batch,
            size,
            landmarks,
            seed,
        )

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        side = self.size // 4
        axis = torch.arange(side).float()
        for _ in range(self.batches):
            points = torch.rand(self.batch, self.landmarks, 2, generator=g) * side
            dy = (axis[None, None] - points[..., 1:]) ** 2
            dx = (axis[None, None] - points[..., :1]) ** 2
            maps = torch.exp(-(dy[..., :, None] + dx[..., None, :]) / 8)
            frame = torch.nn.functional.interpolate(maps.amax(1, keepdim=True), scale_factor=4)
            yield {
                "frame": frame + 0.1 * torch.rand(frame.shape, generator=g),
                "maps": maps,
                "points": points,
            }


def make_loaders(cfg, landmarks):
    make = lambda n, seed: DataLoader(
        Frames(n, cfg["batch"], cfg["size"], landmarks, seed), batch_size=None, pin_memory=True
    )
    return make(cfg["train"], 0), make(cfg["val"], 1)
