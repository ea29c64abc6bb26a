"""pix2pix in Lightning with manual optimization: U-Net generator, PatchGAN, L1 weight of 100, 256 px."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.rand(3, 256, 256) * 2 - 1, torch.rand(3, 256, 256) * 2 - 1


def down(i, o, norm=True):
    return nn.Sequential(
        nn.LeakyReLU(0.2),
        nn.Conv2d(i, o, 4, 2, 1, bias=not norm),
        nn.BatchNorm2d(o) if norm else nn.Identity(),
    )


def up(i, o, drop=False):
    return nn.Sequential(
        nn.ReLU(),
        nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False),
        nn.BatchNorm2d(o),
        nn.Dropout(0.5 if drop else 0.0),
    )


class UNet(nn.Module):
    def __init__(self, ngf=64):
        super().__init__()
        self.first = nn.Conv2d(3, ngf, 4, 2, 1)
        widths = [ngf, ngf * 2, ngf * 4, ngf * 8, ngf * 8, ngf * 8, ngf * 8]
        self.downs = nn.ModuleList(down(a, b) for a, b in zip(widths, widths[1:]))
        self.ups = nn.ModuleList()
        for k in range(len(widths) - 1, 0, -1):
            inner = widths[k] if k == len(widths) - 1 else 2 * widths[k]
            self.ups.append(up(inner, widths[k - 1], drop=k > 3))
        self.last = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(2 * ngf, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x):
        skips = [self.first(x)]
        for layer in self.downs:
            skips.append(layer(skips[-1]))
        y = skips.pop()
        for layer in self.ups:
            y = torch.cat([layer(y), skips.pop()], 1)
        return self.last(y)


def patchgan(ndf=64):
    layers = [nn.Conv2d(6, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True)]
    for k, stride in ((1, 2), (2, 2), (4, 1)):
        layers += [
            nn.Conv2d(ndf * k, ndf * k * 2, 4, stride, 1, bias=False),
            nn.BatchNorm2d(ndf * k * 2),
            nn.LeakyReLU(0.2, True),
        ]
    return nn.Sequential(*layers, nn.Conv2d(ndf * 8, 1, 4, 1, 1))


class Pix2Pix(L.LightningModule):
    def __init__(self, l1=100.0):
        super().__init__()
        self.automatic_optimization = False
        self.l1 = l1
        self.G, self.D = UNet(), patchgan()
        self.bce = nn.BCEWithLogitsLoss()

    def judge(self, plan, photo, real):
        logits = self.D(torch.cat([plan, photo], 1))
        return self.bce(logits, torch.full_like(logits, float(real)))

    def training_step(self, batch, _):
        plan, photo = batch
        opt_g, opt_d = self.optimizers()
        fake = self.G(plan)

        self.toggle_optimizer(opt_d)
        d_loss = 0.5 * (self.judge(plan, photo, True) + self.judge(plan, fake.detach(), False))
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()
        self.untoggle_optimizer(opt_d)

        self.toggle_optimizer(opt_g)
        g_loss = self.judge(plan, fake, True) + self.l1 * nn.functional.l1_loss(fake, photo)
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.untoggle_optimizer(opt_g)
        print(f"D {d_loss.item():.3f} G {g_loss.item():.3f}")

    def configure_optimizers(self):
        kw = dict(lr=2e-4, betas=(0.5, 0.999))
        return torch.optim.Adam(self.G.parameters(), **kw), torch.optim.Adam(
            self.D.parameters(), **kw
        )


if __name__ == "__main__":
    L.seed_everything(2, verbose=False)
    L.Trainer(
        accelerator="cuda",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Pix2Pix(), DataLoader(Pairs(24 * 7), batch_size=24, shuffle=True))
