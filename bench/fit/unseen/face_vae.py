"""A convolutional VAE with a perceptual term from a frozen VGG; half of the model is a list."""

import torch
import torchvision
from torch import nn, optim
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self, latent=256, widths=(32, 64, 128, 256, 512)):
        super().__init__()
        enc, c = [], 3
        for w in widths:
            enc.append(nn.Sequential(nn.Conv2d(c, w, 3, 2, 1), nn.BatchNorm2d(w), nn.LeakyReLU()))
            c = w
        self.encoder = nn.Sequential(*enc)
        self.fc_mu, self.fc_var = nn.Linear(c * 16, latent), nn.Linear(c * 16, latent)
        self.decoder_input = nn.Linear(latent, c * 16)
        dec = []
        for w in [*reversed(widths[:-1]), 32]:
            dec.append(
                nn.Sequential(
                    nn.ConvTranspose2d(c, w, 3, 2, 1, output_padding=1),
                    nn.BatchNorm2d(w),
                    nn.LeakyReLU(),
                )
            )
            c = w
        self.decoder = nn.Sequential(*dec)
        self.final = nn.Sequential(nn.Conv2d(c, 3, 3, padding=1), nn.Tanh())

    def encode(self, x):
        h = torch.flatten(self.encoder(x), 1)
        return [self.fc_mu(h), self.fc_var(h)]

    def reparameterize(self, mu, logvar):
        return torch.randn_like(mu) * torch.exp(0.5 * logvar) + mu

    def decode(self, z):
        return self.final(self.decoder(self.decoder_input(z).view(len(z), -1, 4, 4)))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return [self.decode(self.reparameterize(mu, logvar)), x, mu, logvar]


def loss_function(recons, x, mu, logvar, vgg, kld_weight):
    rec = F.mse_loss(recons, x)
    perceptual = F.l1_loss(vgg(recons), vgg(x))
    kld = torch.mean(-0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp(), dim=1), dim=0)
    return {
        "loss": rec + 0.1 * perceptual + kld_weight * kld,
        "rec": rec.detach(),
        "kld": -kld.detach(),
    }


vgg = torchvision.models.vgg16(weights=None).features[:16].cuda().eval()
for p in vgg.parameters():
    p.requires_grad = False
model = VAE().cuda()
optimizer = optim.Adam(model.parameters(), lr=5e-3)
scheduler = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
for epoch in range(2):
    for _ in range(3):
        batch = (torch.rand(48, 3, 128, 128) * 2 - 1).cuda()
        results = loss_function(*model(batch), vgg, kld_weight=0.00025)
        optimizer.zero_grad()
        results["loss"].backward()
        optimizer.step()
        print({k: v.item() for k, v in results.items()})
    scheduler.step()
