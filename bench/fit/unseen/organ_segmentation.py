"""A 3-D U-Net labels organs in volumes; Dice loss, fp16 with a scaler."""

import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __init__(self, n, side):
        self.n, self.side = n, side

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        shape = (self.side, self.side, self.side)
        return {
            "image": torch.randn(1, *shape, generator=g),
            "label": torch.randint(0, 5, shape, generator=g),
        }


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, padding=1, bias=False),
        nn.InstanceNorm3d(cout, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(cout, cout, 3, padding=1, bias=False),
        nn.InstanceNorm3d(cout, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )


class UNet3D(nn.Module):
    def __init__(self, classes=5, widths=(24, 48, 96, 192)):
        super().__init__()
        self.down = nn.ModuleList()
        c = 1
        for w in widths:
            self.down.append(conv_block(c, w))
            c = w
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for w in reversed(widths[:-1]):
            self.up.append(nn.ConvTranspose3d(c, w, 2, 2))
            self.merge.append(conv_block(2 * w, w))
            c = w
        self.head = nn.Conv3d(c, classes, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            if i:
                x = nn.functional.max_pool3d(x, 2)
            x = block(x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([up(x), skips.pop()], dim=1))
        return self.head(x)


def dice_ce(logits, target):
    ce = nn.functional.cross_entropy(logits, target)
    probs = logits.float().softmax(1)
    onehot = nn.functional.one_hot(target, logits.shape[1]).permute(0, 4, 1, 2, 3).float()
    inter = (probs * onehot).sum((2, 3, 4))
    dice = (2 * inter + 1e-5) / (probs.sum((2, 3, 4)) + onehot.sum((2, 3, 4)) + 1e-5)
    return ce + 1 - dice[:, 1:].mean()


device = torch.device("cuda")
net = UNet3D().to(device)
opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5)
scaler = GradScaler("cuda")
loader = DataLoader(Volumes(10, 96), batch_size=2, pin_memory=False)
for it, batch in enumerate(loader):
    image, label = batch["image"].to(device), batch["label"].to(device)
    opt.zero_grad()
    with autocast("cuda", dtype=torch.float16):
        loss = dice_ce(net(image), label)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 12)
    scaler.step(opt)
    scaler.update()
    print(f"it {it} loss {loss.item():.4f}")
