"""Adversarial training with two optimizers, in its usual forms."""
import torch
from torch import autograd, nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
netG = nn.Sequential(nn.Linear(8, 8)).to(device)
netD = nn.Sequential(nn.Linear(8, 1)).to(device)
optimizerD = torch.optim.Adam(netD.parameters())
optimizerG = torch.optim.Adam(netG.parameters())
criterion = nn.BCELoss()
fixed_noise = torch.randn(64, 8, device=device)


def tutorial(dataloader, img_list, G_losses, D_losses):
    for epoch in range(5):
        for i, data in enumerate(dataloader, 0):
            netD.zero_grad()
            real = data[0].to(device)
            label = torch.ones(real.size(0), device=device)
            output = netD(real).view(-1)
            errD_real = criterion(output, label)
            errD_real.backward()
            noise = torch.randn(real.size(0), 8, device=device)
            fake = netG(noise)
            label.fill_(0)
            errD_fake = criterion(netD(fake.detach()).view(-1), label)
            errD_fake.backward()
            optimizerD.step()
            netG.zero_grad()
            errG = criterion(netD(fake).view(-1), label)
            errG.backward()
            optimizerG.step()
            G_losses.append(errG.item())  # OOM614
            D_losses.append(errD_real.item() + errD_fake.item())
            if i % 500 == 0:
                with torch.no_grad():
                    img_list.append(netG(fixed_noise).detach().cpu())


def not_detached(dataloader):
    for real in dataloader:
        real = real.to(device)
        fake = netG(torch.randn(real.size(0), 8, device=device))
        optimizerD.zero_grad()
        loss_d = -torch.mean(netD(real)) + torch.mean(netD(fake))  # OOM109
        loss_d.backward()
        optimizerD.step()
        optimizerG.zero_grad()
        loss_g = -torch.mean(netD(netG(torch.randn(real.size(0), 8, device=device))))
        loss_g.backward()
        optimizerG.step()


def nested(dataloader):
    for real in dataloader:
        real = real.to(device)
        noise = torch.randn(real.size(0), 8, device=device)
        optimizerD.zero_grad()
        loss_d = criterion(netD(real), real) + criterion(netD(netG(noise)), real)  # OOM109
        loss_d.backward()
        optimizerD.step()


def sums(dataloader):
    running_d = 0
    for real in dataloader:
        real = real.to(device)
        fake = netG(torch.randn(real.size(0), 8, device=device)).detach()  # OOM207
        errD = criterion(netD(fake), real)
        optimizerD.zero_grad()  # OOM416
        errD.backward()
        optimizerD.step()
        running_d += errD  # OOM101
    return running_d


def wgan_gp(dataloader, lambda_gp):
    for real in dataloader:
        real = real.to(device)
        with torch.no_grad():
            fake = netG(torch.randn(real.size(0), 8, device=device))
        alpha = torch.rand(real.size(0), 1, device=device)
        mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        out = netD(mixed)
        grads = autograd.grad(out, mixed, torch.ones_like(out), create_graph=True, retain_graph=True)[0]
        penalty = ((grads.norm(2, dim=1) - 1) ** 2).mean()
        loss_d = netD(fake).mean() - netD(real).mean() + lambda_gp * penalty
        optimizerD.zero_grad()  # OOM416
        loss_d.backward()
        optimizerD.step()


def retained(dataloader):
    for real in dataloader:
        real = real.to(device)
        fake = netG(torch.randn(real.size(0), 8, device=device))
        optimizerD.zero_grad()
        loss_d = criterion(netD(fake), real)  # OOM109
        loss_d.backward(retain_graph=True)
        optimizerG.zero_grad()
        loss_g = criterion(netD(fake), real)
        optimizerD.step()
        loss_g.backward()
        optimizerG.step()


def shown(dataloader, writer, make_grid):
    for real in dataloader:
        real = real.to(device)
        optimizerD.zero_grad()
        loss_d = criterion(netD(real), real)
        loss_d.backward()
        optimizerD.step()
        samples = netG(fixed_noise).cpu()  # OOM201
        writer.add_image("samples", make_grid(samples))
        with torch.no_grad():
            quiet = netG(fixed_noise).cpu()
        writer.add_image("quiet", make_grid(quiet))


def only_detached(dataloader):
    for real in dataloader:
        real = real.to(device)
        made = netG(fixed_noise)  # OOM201
        optimizerD.zero_grad()
        loss_d = criterion(netD(real), real) + criterion(netD(made.detach()), real)
        loss_d.backward()
        optimizerD.step()
