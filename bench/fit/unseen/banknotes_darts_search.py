"""DARTS on scans of banknotes: search for a cell. Two optimizers by turns, architecture on the validation half, weights on the training half (first order), fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

PRIMITIVES = [
    "none",
    "max_pool_3x3",
    "avg_pool_3x3",
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
]


class ReLUConvBN(nn.Module):
    def __init__(self, C_in, C_out, k, stride, padding):
        super().__init__()
        self.op = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(C_in, C_out, k, stride, padding, bias=False),
            nn.BatchNorm2d(C_out, affine=False),
        )

    def forward(self, x):
        return self.op(x)


class DilConv(nn.Module):
    def __init__(self, C, k, stride, padding, dilation):
        super().__init__()
        self.op = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(C, C, k, stride, padding, dilation, groups=C, bias=False),
            nn.Conv2d(C, C, 1, bias=False),
            nn.BatchNorm2d(C, affine=False),
        )

    def forward(self, x):
        return self.op(x)


class SepConv(nn.Module):
    def __init__(self, C, k, stride, padding):
        super().__init__()
        self.op = nn.Sequential(DilConv(C, k, stride, padding, 1), DilConv(C, k, 1, padding, 1))

    def forward(self, x):
        return self.op(x)


class FactorizedReduce(nn.Module):
    def __init__(self, C_in, C_out):
        super().__init__()
        self.conv_1 = nn.Conv2d(C_in, C_out // 2, 1, stride=2, bias=False)
        self.conv_2 = nn.Conv2d(C_in, C_out // 2, 1, stride=2, bias=False)
        self.bn = nn.BatchNorm2d(C_out, affine=False)

    def forward(self, x):
        x = F.relu(x)
        return self.bn(torch.cat([self.conv_1(x), self.conv_2(x[:, :, 1:, 1:])], dim=1))


class Zero(nn.Module):
    def __init__(self, stride):
        super().__init__()
        self.stride = stride

    def forward(self, x):
        return x[:, :, :: self.stride, :: self.stride].mul(0.0)


OPS = {
    "none": lambda C, s: Zero(s),
    "max_pool_3x3": lambda C, s: nn.Sequential(
        nn.MaxPool2d(3, s, 1), nn.BatchNorm2d(C, affine=False)
    ),
    "avg_pool_3x3": lambda C, s: nn.Sequential(
        nn.AvgPool2d(3, s, 1, count_include_pad=False), nn.BatchNorm2d(C, affine=False)
    ),
    "skip_connect": lambda C, s: nn.Identity() if s == 1 else FactorizedReduce(C, C),
    "sep_conv_3x3": lambda C, s: SepConv(C, 3, s, 1),
    "sep_conv_5x5": lambda C, s: SepConv(C, 5, s, 2),
    "dil_conv_3x3": lambda C, s: DilConv(C, 3, s, 2, 2),
}


class MixedOp(nn.Module):
    def __init__(self, C, stride):
        super().__init__()
        self._ops = nn.ModuleList([OPS[p](C, stride) for p in PRIMITIVES])

    def forward(self, x, weights):
        return sum(w * op(x) for w, op in zip(weights, self._ops))


class Cell(nn.Module):
    def __init__(self, nodes, C_pp, C_p, C, reduction, reduction_prev):
        super().__init__()
        self.pre0 = FactorizedReduce(C_pp, C) if reduction_prev else ReLUConvBN(C_pp, C, 1, 1, 0)
        self.pre1 = ReLUConvBN(C_p, C, 1, 1, 0)
        self.nodes = nodes
        self._ops = nn.ModuleList()
        for i in range(nodes):
            for j in range(2 + i):
                self._ops.append(MixedOp(C, 2 if reduction and j < 2 else 1))

    def forward(self, s0, s1, weights):
        states = [self.pre0(s0), self.pre1(s1)]
        offset = 0
        for i in range(self.nodes):
            s = sum(self._ops[offset + j](h, weights[offset + j]) for j, h in enumerate(states))
            offset += len(states)
            states.append(s)
        return torch.cat(states[-self.nodes :], dim=1)


class Network(nn.Module):
    def __init__(self, C=16, num_classes=28, layers=5, nodes=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 3 * C, 3, 2, 1, bias=False), nn.BatchNorm2d(3 * C))
        C_pp, C_p, C_cur = 3 * C, 3 * C, C
        self.cells = nn.ModuleList()
        reduction_prev = False
        for i in range(layers):
            reduction = i in (layers // 3, 2 * layers // 3)
            if reduction:
                C_cur *= 2
            cell = Cell(nodes, C_pp, C_p, C_cur, reduction, reduction_prev)
            cell.reduction = reduction
            reduction_prev = reduction
            self.cells.append(cell)
            C_pp, C_p = C_p, nodes * C_cur
        self.classifier = nn.Linear(C_p, num_classes)
        k = sum(2 + i for i in range(nodes))
        self.alphas_normal = 1e-3 * torch.randn(k, len(PRIMITIVES))
        self.alphas_reduce = 1e-3 * torch.randn(k, len(PRIMITIVES))

    def arch(self, device):
        self.alphas_normal = self.alphas_normal.to(device).requires_grad_()
        self.alphas_reduce = self.alphas_reduce.to(device).requires_grad_()
        return [self.alphas_normal, self.alphas_reduce]

    def forward(self, x):
        s0 = s1 = self.stem(x)
        normal, reduce = F.softmax(self.alphas_normal, -1), F.softmax(self.alphas_reduce, -1)
        for cell in self.cells:
            s0, s1 = s1, cell(s0, s1, reduce if cell.reduction else normal)
        return self.classifier(s1.mean((2, 3)))

    def genotype(self):
        best = F.softmax(self.alphas_normal, -1)[:, 1:].argmax(-1) + 1
        return [PRIMITIVES[i] for i in best.tolist()]


def banknotes(n=192):
    label = torch.randint(0, 28, (n,))
    return torch.rand(n, 3, 80, 160) + 0.1 * label.view(-1, 1, 1, 1) / 28, label


def main(batch_size=32, epochs=2, steps=6):
    torch.manual_seed(2)
    model = Network().cuda()
    arch = model.arch("cuda")
    w_opt = torch.optim.SGD(model.parameters(), 0.025, momentum=0.9, weight_decay=3e-4)
    a_opt = torch.optim.Adam(arch, lr=3e-4, betas=(0.5, 0.999), weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(w_opt, epochs, eta_min=0.001)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    x_train, y_train = banknotes()
    x_val, y_val = banknotes()

    for epoch in range(epochs):
        for step in range(steps):
            # 1. architecture
            idx = torch.randint(0, len(x_val), (batch_size,))
            a_opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                val_loss = F.cross_entropy(model(x_val[idx].cuda()), y_val[idx].cuda())
            scaler.scale(val_loss).backward(inputs=arch)
            scaler.step(a_opt)
            scaler.update()
            # 2. weights
            idx = torch.randint(0, len(x_train), (batch_size,))
            w_opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x_train[idx].cuda()), y_train[idx].cuda())
            scaler.scale(loss).backward(inputs=list(model.parameters()))
            scaler.unscale_(w_opt)
            nn.utils.clip_grad_norm_(model.parameters(), 5)
            scaler.step(w_opt)
            scaler.update()
            print(epoch, step, "train %.4f val %.4f" % (loss.item(), val_loss.item()))
        scheduler.step()
        print(model.genotype())


if __name__ == "__main__":
    main()
