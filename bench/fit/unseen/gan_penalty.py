"""WGAN with gradient penalty; the critic trains twice for each step of the generator."""

import torch
from torch import autograd, nn, optim

NZ, NGF, NDF, BATCH, SIDE = 128, 64, 64, 48, 64


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)


def make_generator():
    layers = [nn.ConvTranspose2d(NZ, NGF * 8, 4, 1, 0, bias=False), nn.BatchNorm2d(NGF * 8)]
    layers.append(nn.ReLU(True))
    c = NGF * 8
    for _ in range(3):
        layers += [
            nn.ConvTranspose2d(c, c // 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(c // 2),
            nn.ReLU(True),
        ]
        c //= 2
    layers += [nn.ConvTranspose2d(c, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return nn.Sequential(*layers)


def make_critic():
    layers, c = [nn.Conv2d(3, NDF, 3, 1, 1), nn.LeakyReLU(0.2)], NDF
    for _ in range(4):
        layers += [nn.Conv2d(c, c * 2, 4, 2, 1), nn.LeakyReLU(0.2)]
        c *= 2
    layers += [nn.Flatten(), nn.Linear(c * (SIDE // 16) ** 2, 1)]
    return nn.Sequential(*layers)


def gradient_penalty(critic, real, fake, weight=10.0):
    eps = torch.rand(real.size(0), 1, 1, 1, device=real.device)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    out = critic(mixed)
    (grad,) = autograd.grad(
        outputs=out,
        inputs=mixed,
        grad_outputs=torch.ones_like(out),
        create_graph=True,
        retain_graph=True,
    )
    return weight * ((grad.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


netG, netD = make_generator().cuda(), make_critic().cuda()
netG.apply(weights_init)
netD.apply(weights_init)
optG = optim.Adam(netG.parameters(), lr=1e-4, betas=(0.0, 0.9))
optD = optim.Adam(netD.parameters(), lr=1e-4, betas=(0.0, 0.9))

for it in range(2):
    for p in netD.parameters():
        p.requires_grad = True
    for _ in range(2):
        real = torch.rand(BATCH, 3, SIDE, SIDE, device="cuda") * 2 - 1
        with torch.no_grad():
            fake = netG(torch.randn(BATCH, NZ, 1, 1, device="cuda"))
        netD.zero_grad()
        d_loss = netD(fake).mean() - netD(real).mean() + gradient_penalty(netD, real, fake)
        d_loss.backward()
        optD.step()
    for p in netD.parameters():
        p.requires_grad = False
    netG.zero_grad()
    g_loss = -netD(netG(torch.randn(BATCH, NZ, 1, 1, device="cuda"))).mean()
    g_loss.backward()
    optG.step()
    print("[%d] D %.3f G %.3f" % (it, d_loss.item(), g_loss.item()))
