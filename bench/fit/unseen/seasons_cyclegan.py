"""CycleGAN, summer to winter: two generators, two discriminators, identity loss, a pool of old fakes, 256 px, batch of two."""

import itertools
import random

import torch
import torch.nn as nn


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(c, c, 3), nn.InstanceNorm2d(c), nn.ReLU(True),
            nn.ReflectionPad2d(1), nn.Conv2d(c, c, 3), nn.InstanceNorm2d(c),
        )  # fmt: skip

    def forward(self, x):
        return x + self.f(x)


def generator(ngf=64, blocks=9):
    net = [nn.ReflectionPad2d(3), nn.Conv2d(3, ngf, 7), nn.InstanceNorm2d(ngf), nn.ReLU(True)]
    c = ngf
    for _ in range(2):
        net += [nn.Conv2d(c, 2 * c, 3, 2, 1), nn.InstanceNorm2d(2 * c), nn.ReLU(True)]
        c *= 2
    net += [Residual(c) for _ in range(blocks)]
    for _ in range(2):
        net += [nn.ConvTranspose2d(c, c // 2, 3, 2, 1, 1), nn.InstanceNorm2d(c // 2), nn.ReLU(True)]
        c //= 2
    return nn.Sequential(*net, nn.ReflectionPad2d(3), nn.Conv2d(c, 3, 7), nn.Tanh())


def discriminator(ndf=64):
    net, c = [nn.Conv2d(3, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True)], ndf
    for stride in (2, 2, 1):
        net += [
            nn.Conv2d(c, 2 * c, 4, stride, 1),
            nn.InstanceNorm2d(2 * c),
            nn.LeakyReLU(0.2, True),
        ]
        c *= 2
    return nn.Sequential(*net, nn.Conv2d(c, 1, 4, 1, 1))


class Pool:
    def __init__(self, size=50):
        self.size, self.images = size, []

    def query(self, batch):
        out = []
        for image in batch.detach():
            if len(self.images) < self.size:
                self.images.append(image.clone())
                out.append(image)
            elif random.random() > 0.5:
                k = random.randrange(self.size)
                out.append(self.images[k])
                self.images[k] = image.clone()
            else:
                out.append(image)
        return torch.stack(out)


class CycleGAN:
    def __init__(self, lam=10.0, idt=0.5):
        self.lam, self.idt = lam, idt
        self.G_A, self.G_B = generator().cuda(), generator().cuda()
        self.D_A, self.D_B = discriminator().cuda(), discriminator().cuda()
        both = itertools.chain(self.G_A.parameters(), self.G_B.parameters())
        self.opt_G = torch.optim.Adam(both, lr=2e-4, betas=(0.5, 0.999))
        both = itertools.chain(self.D_A.parameters(), self.D_B.parameters())
        self.opt_D = torch.optim.Adam(both, lr=2e-4, betas=(0.5, 0.999))
        self.pool_A, self.pool_B = Pool(), Pool()
        self.l1 = nn.L1Loss()

    @staticmethod
    def gan(pred, real):
        return ((pred - float(real)) ** 2).mean()

    @staticmethod
    def freeze(nets, flag):
        for net in nets:
            for p in net.parameters():
                p.requires_grad = not flag

    def step(self, a, b):
        fake_b, fake_a = self.G_A(a), self.G_B(b)
        self.freeze([self.D_A, self.D_B], True)
        self.opt_G.zero_grad()
        loss = self.gan(self.D_A(fake_b), 1) + self.gan(self.D_B(fake_a), 1)
        loss = loss + self.lam * (self.l1(self.G_B(fake_b), a) + self.l1(self.G_A(fake_a), b))
        loss = loss + self.lam * self.idt * (self.l1(self.G_A(b), b) + self.l1(self.G_B(a), a))
        loss.backward()
        self.opt_G.step()

        self.freeze([self.D_A, self.D_B], False)
        self.opt_D.zero_grad()
        d = 0.0
        for net, real, fake in (
            (self.D_A, b, self.pool_B.query(fake_b)),
            (self.D_B, a, self.pool_A.query(fake_a)),
        ):
            part = 0.5 * (self.gan(net(real), 1) + self.gan(net(fake), 0))
            part.backward()
            d += part.item()
        self.opt_D.step()
        return loss.item(), d


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    model = CycleGAN()
    for i in range(6):
        summer = torch.rand(2, 3, 256, 256, device="cuda") * 2 - 1
        winter = torch.rand(2, 3, 256, 256, device="cuda") * 2 - 1
        print(i, "G %.3f D %.3f" % model.step(summer, winter))
