"""Parts of point clouds by a dynamic graph CNN: neighbours are found anew in each layer."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def knn(x, k):
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    xx = torch.sum(x**2, dim=1, keepdim=True)
    return (-xx - inner - xx.transpose(2, 1)).topk(k=k, dim=-1)[1]


def graph_feature(x, k=20):
    b, c, n = x.size()
    idx = knn(x, k)
    idx = (idx + torch.arange(b, device=x.device).view(-1, 1, 1) * n).view(-1)
    x = x.transpose(2, 1).contiguous()
    feature = x.view(b * n, -1)[idx, :].view(b, n, k, c)
    x = x.view(b, n, 1, c).repeat(1, 1, k, 1)
    return torch.cat((feature - x, x), dim=3).permute(0, 3, 1, 2).contiguous()


def edge(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 1, bias=False), nn.BatchNorm2d(cout), nn.LeakyReLU(0.2)
    )


class DGCNN(nn.Module):
    def __init__(self, parts=50, emb=1024):
        super().__init__()
        self.e1, self.e2, self.e3 = edge(6, 64), edge(128, 64), edge(128, 64)
        self.glob = nn.Sequential(nn.Conv1d(192, emb, 1), nn.BatchNorm1d(emb), nn.LeakyReLU(0.2))
        self.head = nn.Sequential(
            nn.Conv1d(emb + 192, 256, 1), nn.BatchNorm1d(256), nn.LeakyReLU(0.2), nn.Dropout(0.5),
            nn.Conv1d(256, 128, 1), nn.BatchNorm1d(128), nn.LeakyReLU(0.2), nn.Conv1d(128, parts, 1),
        )  # fmt: skip

    def forward(self, x):
        x1 = self.e1(graph_feature(x)).max(-1)[0]
        x2 = self.e2(graph_feature(x1)).max(-1)[0]
        x3 = self.e3(graph_feature(x2)).max(-1)[0]
        local = torch.cat((x1, x2, x3), 1)
        g = self.glob(local).max(-1, keepdim=True)[0].expand(-1, -1, x.size(2))
        return self.head(torch.cat((g, local), 1))


class Shapes(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, item):
        pts = torch.randn(1024, 3)
        pts = pts / pts.norm(dim=1).max()
        return pts * (0.66 + 0.84 * torch.rand(3)), torch.randint(0, 50, (1024,))


model = DGCNN().to("cuda")
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200, eta_min=1e-3)
for data, seg in DataLoader(Shapes(), batch_size=12, shuffle=True):
    data, seg = data.to("cuda").permute(0, 2, 1), seg.to("cuda")
    opt.zero_grad()
    pred = model(data).permute(0, 2, 1).contiguous()
    loss = F.cross_entropy(pred.view(-1, 50), seg.view(-1))
    loss.backward()
    opt.step()
    print("loss", loss.item())
scheduler.step()
