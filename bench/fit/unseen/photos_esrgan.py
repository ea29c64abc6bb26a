"""Small photos made four times larger by ESRGAN: dense blocks in residuals, a relativistic critic, features of a frozen VGG-19, two batches of pixel loss to begin, two Adams, MultiStepLR."""

import torch
import torch.nn as nn
from torchvision.models import vgg19


class DenseResidualBlock(nn.Module):
    def __init__(self, filters, res_scale=0.2):
        super().__init__()
        self.res_scale = res_scale

        def block(in_features, non_linearity=True):
            layers = [nn.Conv2d(in_features, filters, 3, 1, 1, bias=True)]
            if non_linearity:
                layers += [nn.LeakyReLU()]
            return nn.Sequential(*layers)

        self.b1 = block(1 * filters)
        self.b2 = block(2 * filters)
        self.b3 = block(3 * filters)
        self.b4 = block(4 * filters)
        self.b5 = block(5 * filters, non_linearity=False)
        self.blocks = [self.b1, self.b2, self.b3, self.b4, self.b5]

    def forward(self, x):
        inputs = x
        for block in self.blocks:
            out = block(inputs)
            inputs = torch.cat([inputs, out], 1)
        return out.mul(self.res_scale) + x


class RRDB(nn.Module):
    def __init__(self, filters, res_scale=0.2):
        super().__init__()
        self.res_scale = res_scale
        self.dense_blocks = nn.Sequential(*(DenseResidualBlock(filters) for _ in range(3)))

    def forward(self, x):
        return self.dense_blocks(x).mul(self.res_scale) + x


class GeneratorRRDB(nn.Module):
    def __init__(self, channels=3, filters=64, num_res_blocks=8, num_upsample=2):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, 1, 1)
        self.res_blocks = nn.Sequential(*(RRDB(filters) for _ in range(num_res_blocks)))
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1)
        up = []
        for _ in range(num_upsample):
            up += [nn.Conv2d(filters, filters * 4, 3, 1, 1), nn.LeakyReLU(), nn.PixelShuffle(2)]
        self.upsampling = nn.Sequential(*up)
        self.conv3 = nn.Sequential(
            nn.Conv2d(filters, filters, 3, 1, 1),
            nn.LeakyReLU(),
            nn.Conv2d(filters, channels, 3, 1, 1),
        )

    def forward(self, x):
        out1 = self.conv1(x)
        out = torch.add(out1, self.conv2(self.res_blocks(out1)))
        return self.conv3(self.upsampling(out))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        layers, width = [], 3
        for i, w in enumerate((64, 128, 256, 512)):
            layers.append(nn.Conv2d(width, w, 3, 1, 1))
            if i > 0:
                layers.append(nn.BatchNorm2d(w))
            layers += [nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(w, w, 3, 2, 1)]
            layers += [nn.BatchNorm2d(w), nn.LeakyReLU(0.2, inplace=True)]
            width = w
        self.model = nn.Sequential(*layers, nn.Conv2d(width, 1, 3, 1, 1))

    def forward(self, img):
        return self.model(img)


class FeatureExtractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.vgg19_54 = nn.Sequential(*list(vgg19(weights=None).features.children())[:35])

    def forward(self, img):
        return self.vgg19_54(img)


hr, batch, warmup_batches = 128, 12, 2
generator = GeneratorRRDB().cuda()
discriminator = Discriminator().cuda()
feature_extractor = FeatureExtractor().cuda().eval()
criterion_GAN = nn.BCEWithLogitsLoss().cuda()
criterion_content = nn.L1Loss().cuda()
criterion_pixel = nn.L1Loss().cuda()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.9, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.9, 0.999))
scheduler_G = torch.optim.lr_scheduler.MultiStepLR(optimizer_G, [50_000, 100_000], 0.5)

for i in range(7):
    imgs_hr = torch.rand(batch, 3, hr, hr).cuda()
    imgs_lr = nn.functional.interpolate(imgs_hr, scale_factor=0.25, mode="area")
    valid = torch.ones(batch, 1, hr // 16, hr // 16).cuda()
    fake = torch.zeros(batch, 1, hr // 16, hr // 16).cuda()

    optimizer_G.zero_grad()
    gen_hr = generator(imgs_lr)
    loss_pixel = criterion_pixel(gen_hr, imgs_hr)
    if i < warmup_batches:
        loss_pixel.backward()
        optimizer_G.step()
        print(f"[Batch {i}] [G pixel: {loss_pixel.item():f}]")
        continue
    pred_real = discriminator(imgs_hr).detach()
    pred_fake = discriminator(gen_hr)
    loss_GAN = criterion_GAN(pred_fake - pred_real.mean(0, keepdim=True), valid)
    gen_features = feature_extractor(gen_hr)
    real_features = feature_extractor(imgs_hr).detach()
    loss_content = criterion_content(gen_features, real_features)
    loss_G = loss_content + 5e-3 * loss_GAN + 1e-2 * loss_pixel
    loss_G.backward()
    optimizer_G.step()
    scheduler_G.step()

    optimizer_D.zero_grad()
    pred_real = discriminator(imgs_hr)
    pred_fake = discriminator(gen_hr.detach())
    loss_real = criterion_GAN(pred_real - pred_fake.mean(0, keepdim=True), valid)
    loss_fake = criterion_GAN(pred_fake - pred_real.mean(0, keepdim=True), fake)
    loss_D = (loss_real + loss_fake) / 2
    loss_D.backward()
    optimizer_D.step()
    print(f"[Batch {i}] [D loss: {loss_D.item():f}] [G loss: {loss_G.item():f}]")
