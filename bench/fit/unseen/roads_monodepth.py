"""Depth of roads without labels as in Monodepth2: ResNet-18 U-Net for disparity, a network for poses, neighbours warped into the frame, SSIM and L1, minimum over frames, four scales."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import resnet18

H, W, BATCH = 192, 640, 8
SCALES = [0, 1, 2, 3]


def conv_block(i, o):
    return nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(i, o, 3), nn.ELU(inplace=True))


class ResnetEncoder(nn.Module):
    def __init__(self, num_input_images=1):
        super().__init__()
        self.encoder = resnet18(weights=None)
        if num_input_images > 1:
            self.encoder.conv1 = nn.Conv2d(3 * num_input_images, 64, 7, 2, 3, bias=False)

    def forward(self, x):
        e = self.encoder
        self.features = []
        x = (x - 0.45) / 0.225
        x = e.relu(e.bn1(e.conv1(x)))
        self.features.append(x)
        self.features.append(e.layer1(e.maxpool(x)))
        for layer in (e.layer2, e.layer3, e.layer4):
            self.features.append(layer(self.features[-1]))
        return self.features


class DepthDecoder(nn.Module):
    def __init__(self, enc=(64, 64, 128, 256, 512), dec=(16, 32, 64, 128, 256)):
        super().__init__()
        self.convs = nn.ModuleDict()
        for i in range(4, -1, -1):
            self.convs[f"up{i}0"] = conv_block(enc[-1] if i == 4 else dec[i + 1], dec[i])
            self.convs[f"up{i}1"] = conv_block(dec[i] + (enc[i - 1] if i > 0 else 0), dec[i])
        for s in SCALES:
            self.convs[f"disp{s}"] = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(dec[s], 1, 3))

    def forward(self, features):
        outputs = {}
        x = features[-1]
        for i in range(4, -1, -1):
            x = F.interpolate(self.convs[f"up{i}0"](x), scale_factor=2, mode="nearest")
            if i > 0:
                x = torch.cat([x, features[i - 1]], 1)
            x = self.convs[f"up{i}1"](x)
            if i in SCALES:
                outputs["disp", i] = torch.sigmoid(self.convs[f"disp{i}"](x))
        return outputs


class PoseDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(512, 256, 1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 6, 1),
        )

    def forward(self, features):
        out = 0.01 * self.net(features[-1]).mean((2, 3))
        return out[:, :3], out[:, 3:]


def transformation(axisangle, translation):
    angle = axisangle.norm(dim=1, keepdim=True)
    x, y, z = (axisangle / (angle + 1e-7)).unbind(1)
    zero = torch.zeros_like(x)
    k = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(-1, 3, 3)
    a = angle[..., None]
    r = torch.eye(3, device=k.device) + a.sin() * k + (1 - a.cos()) * (k @ k)
    return torch.cat([r, translation[..., None]], 2)


class SSIM(nn.Module):
    def forward(self, x, y):
        x, y = F.pad(x, (1,) * 4, "reflect"), F.pad(y, (1,) * 4, "reflect")
        mx, my = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
        sx = F.avg_pool2d(x**2, 3, 1) - mx**2
        sy = F.avg_pool2d(y**2, 3, 1) - my**2
        sxy = F.avg_pool2d(x * y, 3, 1) - mx * my
        n = (2 * mx * my + 0.01**2) * (2 * sxy + 0.03**2)
        d = (mx**2 + my**2 + 0.01**2) * (sx + sy + 0.03**2)
        return torch.clamp((1 - n / d) / 2, 0, 1)


class Trainer:
    def __init__(self):
        self.device = torch.device("cuda")
        self.models = {
            "encoder": ResnetEncoder(),
            "depth": DepthDecoder(),
            "pose_encoder": ResnetEncoder(2),
            "pose": PoseDecoder(),
        }
        self.parameters_to_train = []
        for m in self.models.values():
            m.to(self.device).train()
            self.parameters_to_train += list(m.parameters())
        self.optimizer = torch.optim.Adam(self.parameters_to_train, 1e-4)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 15, 0.1)
        self.ssim = SSIM()
        self.K = torch.tensor([[0.58 * W, 0, 0.5 * W], [0, 1.92 * H, 0.5 * H], [0, 0, 1.0]])
        self.K = self.K.to(self.device)
        v, u = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
        pixels = torch.stack([u, v, torch.ones_like(u)]).float().view(3, -1).to(self.device)
        self.rays = torch.linalg.inv(self.K) @ pixels

    def warp(self, source, depth, T):
        cloud = depth.view(len(depth), 1, -1) * self.rays
        moved = self.K @ (T[:, :, :3] @ cloud + T[:, :, 3:])
        uv = moved[:, :2] / (moved[:, 2:] + 1e-7)
        uv = uv.view(-1, 2, H, W).permute(0, 2, 3, 1)
        uv = uv / torch.tensor([W - 1, H - 1], device=uv.device) * 2 - 1
        return F.grid_sample(source, uv, padding_mode="border", align_corners=False)

    def reprojection(self, pred, target):
        l1 = (target - pred).abs().mean(1, True)
        return 0.85 * self.ssim(pred, target).mean(1, True) + 0.15 * l1

    def process_batch(self, inputs):
        outputs = self.models["depth"](self.models["encoder"](inputs[0]))
        for f in (-1, 1):
            pair = [inputs[f], inputs[0]] if f < 0 else [inputs[0], inputs[f]]
            aa, t = self.models["pose"](self.models["pose_encoder"](torch.cat(pair, 1)))
            outputs["T", f] = transformation(aa, t if f > 0 else -t)
        total = 0
        identity = [self.reprojection(inputs[f], inputs[0]) for f in (-1, 1)]
        for s in SCALES:
            disp = outputs["disp", s]
            full = F.interpolate(disp, [H, W], mode="bilinear", align_corners=False)
            depth = 1 / (0.01 + (10 - 0.01) * full)
            warped = [
                self.reprojection(self.warp(inputs[f], depth, outputs["T", f]), inputs[0])
                for f in (-1, 1)
            ]
            still = torch.cat(identity, 1)
            still = still + torch.randn_like(still) * 1e-5
            best, _ = torch.cat([still, *warped], 1).min(1)
            color = F.interpolate(inputs[0], disp.shape[2:], mode="area")
            norm = disp / (disp.mean((2, 3), True) + 1e-7)
            gx = (norm[..., 1:] - norm[..., :-1]).abs()
            gy = (norm[..., 1:, :] - norm[..., :-1, :]).abs()
            gx = gx * torch.exp(-(color[..., 1:] - color[..., :-1]).abs().mean(1, True))
            gy = gy * torch.exp(-(color[..., 1:, :] - color[..., :-1, :]).abs().mean(1, True))
            total = total + best.mean() + 1e-3 * (gx.mean() + gy.mean()) / 2**s
        return outputs, total / len(SCALES)

    def run_epoch(self, batches):
        for i in range(batches):
            clip = torch.rand(BATCH, 3, H, W)
            inputs = {f: clip.roll(3 * f, 3).to(self.device) for f in (-1, 0, 1)}
            _, loss = self.process_batch(inputs)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print(f"batch {i} | loss {loss.cpu().data:.5f}")
        self.scheduler.step()


if __name__ == "__main__":
    Trainer().run_epoch(6)
