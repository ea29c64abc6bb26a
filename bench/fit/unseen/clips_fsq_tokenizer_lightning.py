"""Causal 3-D convolutional video tokenizer with finite scalar quantisation and a 3-D patch discriminator (Lightning,
manual optimisation, two optimizers, discriminator weight balanced by the gradients at the last layer)."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, n, frames=17, size=112):
        self.n, self.shape = n, (frames, size)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        t, s = self.shape
        g = torch.Generator().manual_seed(i)
        wave = torch.linspace(0, 6.28, s)
        freq, speed = 1 + 5 * torch.rand(3, 2, generator=g), torch.randn(3, generator=g)
        time = torch.arange(t).view(1, t, 1, 1) * speed.view(3, 1, 1, 1)
        fy, fx = freq.view(3, 2, 1, 1, 1).unbind(1)
        return torch.sin(fy * wave.view(1, 1, s, 1) + time) * torch.cos(
            fx * wave.view(1, 1, 1, s) - time
        )


class CausalConv3d(nn.Conv3d):
    def __init__(self, cin, cout, k=3, stride=(1, 1, 1)):
        super().__init__(cin, cout, k, stride=stride)
        kt, kh, kw = self.kernel_size
        self.pad = (kw // 2, kw // 2, kh // 2, kh // 2, kt - 1, 0)

    def forward(self, x):
        return super().forward(F.pad(x, self.pad, mode="replicate"))


class Res(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.a = nn.Sequential(nn.GroupNorm(16, cin), nn.SiLU(), CausalConv3d(cin, cout))
        self.b = nn.Sequential(nn.GroupNorm(16, cout), nn.SiLU(), CausalConv3d(cout, cout))
        self.skip = nn.Conv3d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.b(self.a(x))


class Up(nn.Module):
    def __init__(self, c, time):
        super().__init__()
        self.time, self.conv = time, CausalConv3d(c, c)

    def forward(self, x):
        x = F.interpolate(x, scale_factor=(2 if self.time else 1, 2, 2))
        return self.conv(x[:, :, 1:] if self.time else x)  # the first frame has no past


class FSQ(nn.Module):
    def __init__(self, levels=(8, 8, 8, 5, 5, 5)):
        super().__init__()
        self.register_buffer("levels", torch.tensor(levels).float().view(1, -1, 1, 1, 1))

    def forward(self, z):
        half = (self.levels - 1) / 2
        bounded = torch.tanh(z.float()) * half
        return (bounded + (bounded.round() - bounded).detach()) / half


def encoder(w=(64, 128, 256), codes=6):
    return nn.Sequential(
        CausalConv3d(3, w[0]), Res(w[0], w[0]), CausalConv3d(w[0], w[1], stride=(2, 2, 2)),
        Res(w[1], w[1]), CausalConv3d(w[1], w[2], stride=(2, 2, 2)), Res(w[2], w[2]), Res(w[2], w[2]),
        nn.GroupNorm(16, w[2]), nn.SiLU(), nn.Conv3d(w[2], codes, 1),
    )  # fmt: skip


def decoder(w=(64, 128, 256), codes=6):
    return nn.Sequential(
        CausalConv3d(codes, w[2]), Res(w[2], w[2]), Res(w[2], w[2]), Up(w[2], True),
        Res(w[2], w[1]), Up(w[1], True), Res(w[1], w[0]), Res(w[0], w[0]),
        nn.GroupNorm(16, w[0]), nn.SiLU(), CausalConv3d(w[0], 3),
    )  # fmt: skip


def discriminator(w=64):
    layers, c = [nn.Conv3d(3, w, 4, 2, 1), nn.LeakyReLU(0.2)], w
    for stride in [(2, 2, 2), (1, 2, 2)]:
        layers += [
            nn.Conv3d(c, 2 * c, (3, 4, 4), stride, 1),
            nn.GroupNorm(16, 2 * c),
            nn.LeakyReLU(0.2),
        ]
        c *= 2
    return nn.Sequential(*layers, nn.Conv3d(c, 1, 3, padding=1))


class Tokenizer(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.enc, self.quant, self.dec, self.disc = encoder(), FSQ(), decoder(), discriminator()

    def training_step(self, video, batch_idx):
        opt_g, opt_d = self.optimizers()
        recon = self.dec(self.quant(self.enc(video)))
        rec = (recon - video).abs().mean()
        self.toggle_optimizer(opt_g)
        adv = -self.disc(recon).mean()
        last = self.dec[-1].weight
        g_rec = torch.autograd.grad(rec, last, retain_graph=True)[0].norm()
        g_adv = torch.autograd.grad(adv, last, retain_graph=True)[0].norm()
        weight = (g_rec / (g_adv + 1e-4)).clamp(0, 1e3).detach()
        opt_g.zero_grad()
        self.manual_backward(rec + 0.1 * weight * adv)
        opt_g.step()
        self.untoggle_optimizer(opt_g)

        self.toggle_optimizer(opt_d)
        loss_d = F.relu(1 - self.disc(video)).mean() + F.relu(1 + self.disc(recon.detach())).mean()
        opt_d.zero_grad()
        self.manual_backward(loss_d)
        opt_d.step()
        self.untoggle_optimizer(opt_d)
        print(
            f"rec {rec.item():.4f} adv {adv.item():.4f} disc {loss_d.item():.4f} weight {weight.item():.2f}"
        )

    def configure_optimizers(self):
        ae = [*self.enc.parameters(), *self.dec.parameters()]
        return [
            torch.optim.AdamW(ae, lr=1e-4, betas=(0.5, 0.9)),
            torch.optim.AdamW(self.disc.parameters(), lr=1e-4, betas=(0.5, 0.9)),
        ]


if __name__ == "__main__":
    pl.seed_everything(11)
    trainer = pl.Trainer(
        max_epochs=1, limit_train_batches=3, accelerator="gpu", devices=1, precision="bf16-mixed", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Tokenizer(), DataLoader(Clips(12), batch_size=4))
