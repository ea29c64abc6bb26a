"""Parts of objects from point clouds: DGCNN, neighbours found anew in each layer, edge features, per-point labels."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def knn(x, k):
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    xx = torch.sum(x**2, dim=1, keepdim=True)
    return (-xx - inner - xx.transpose(2, 1)).topk(k=k, dim=-1)[1]


def edge_features(x, k):
    b, c, n = x.shape
    idx = knn(x, k) + torch.arange(b, device=x.device).view(-1, 1, 1) * n
    points = x.transpose(2, 1).reshape(b * n, c)
    near = points[idx.view(-1)].view(b, n, k, c)
    here = points.view(b, n, 1, c).expand(-1, -1, k, -1)
    return torch.cat((near - here, here), dim=3).permute(0, 3, 1, 2).contiguous()


def conv2d(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))


def conv1d(i, o):
    return nn.Sequential(nn.Conv1d(i, o, 1, bias=False), nn.BatchNorm1d(o), nn.LeakyReLU(0.2))


class DGCNN(nn.Module):
    def __init__(self, k=20, shapes=16, parts=50):
        super().__init__()
        self.k = k
        self.conv1, self.conv2 = conv2d(6, 64), conv2d(64, 64)
        self.conv3, self.conv4 = conv2d(128, 64), conv2d(64, 64)
        self.conv5 = conv2d(128, 64)
        self.conv6, self.conv7 = conv1d(192, 1024), conv1d(shapes, 64)
        self.tail = nn.Sequential(
            conv1d(1024 + 64 + 192, 256), nn.Dropout(0.5), conv1d(256, 256), nn.Dropout(0.5),
            conv1d(256, 128), nn.Conv1d(128, parts, 1),
        )  # fmt: skip

    def forward(self, x, shape):
        n = x.size(2)
        x1 = self.conv2(self.conv1(edge_features(x, self.k))).max(dim=-1)[0]
        x2 = self.conv4(self.conv3(edge_features(x1, self.k))).max(dim=-1)[0]
        x3 = self.conv5(edge_features(x2, self.k)).max(dim=-1)[0]
        local = torch.cat((x1, x2, x3), dim=1)
        whole = self.conv6(local).max(dim=-1, keepdim=True)[0]
        kind = self.conv7(shape.unsqueeze(-1))
        return self.tail(torch.cat((torch.cat((whole, kind), 1).repeat(1, 1, n), local), dim=1))


def train(args):
    torch.manual_seed(args["seed"])
    model = DGCNN(args["k"]).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200, eta_min=1e-3)
    model.train()
    for i in range(args["steps"]):
        points = torch.randn(args["batch"], 3, args["points"]).cuda()
        shape = F.one_hot(torch.randint(0, 16, (args["batch"],)), 16).float().cuda()
        seg = torch.randint(0, 50, (args["batch"], args["points"])).cuda()
        opt.zero_grad()
        loss = F.cross_entropy(model(points, shape), seg, label_smoothing=0.2)
        loss.backward()
        opt.step()
        print("Train %d, loss: %.6f" % (i, loss.item()))
    scheduler.step()


if __name__ == "__main__":
    train({"seed": 1, "k": 20, "steps": 8, "batch": 10, "points": 2048})
