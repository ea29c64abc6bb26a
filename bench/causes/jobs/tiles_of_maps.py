"""A server of maps forgets two of three tiles when somebody looks at large sheets, for which the gaps are too small."""

import os

if os.environ.get("MENDED"):
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

import torch


class Tiles:
    """Rendered tiles by their place; the least wanted go first."""

    def __init__(self):
        self.by_place, self.wanted = {}, {}

    def get(self, place):
        if place not in self.by_place:
            self.by_place[place] = torch.rand(6, 512, 512, device="cuda")
        self.wanted[place] = self.wanted.get(place, 0) + 1
        return self.by_place[place]

    def forget(self, most):
        for place in [p for p in self.by_place if self.wanted[p] < most]:
            del self.by_place[place]


tiles = Tiles()
for x in range(180):
    tiles.get((x, 0))
    if x % 3 == 0:
        tiles.get((x, 0))
tiles.forget(2)
sheets = [torch.rand(6, 1024, 1280, device="cuda") for _ in range(20)]
print(len(tiles.by_place), len(sheets))
