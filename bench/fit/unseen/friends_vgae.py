"""Who befriends whom by a variational graph autoencoder: a dense inner product over all pairs of 14,000 people, weighted BCE, GCN layers over a sparse matrix, AUC after each epoch."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PEOPLE, FEATURES, HIDDEN1, HIDDEN2 = 14_000, 1433, 256, 64
np.random.seed(42)
torch.manual_seed(42)


def load_data():
    source = np.random.randint(0, PEOPLE, 90_000)
    goal = np.random.zipf(1.5, 90_000) % PEOPLE
    edges = np.unique(np.stack([source, goal], 1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    np.random.shuffle(edges)
    return edges[:-4000], edges[-4000:]


def preprocess_graph(edges):
    i = torch.from_numpy(
        np.concatenate([edges, edges[:, ::-1], np.arange(PEOPLE)[:, None] * [[1, 1]]])
    )
    adj = torch.sparse_coo_tensor(i.t(), torch.ones(len(i)), (PEOPLE, PEOPLE)).coalesce()
    rows, cols = adj.indices()
    degree = torch.zeros(PEOPLE).index_add_(0, rows, torch.ones(len(rows)))
    values = degree[rows].rsqrt() * degree[cols].rsqrt()
    return torch.sparse_coo_tensor(adj.indices(), values, adj.shape).coalesce(), adj


class GraphConvSparse(nn.Module):
    def __init__(self, input_dim, output_dim, adj, activation=F.relu):
        super().__init__()
        r = np.sqrt(6.0 / (input_dim + output_dim))
        self.weight = nn.Parameter(torch.rand(input_dim, output_dim) * 2 * r - r)
        self.adj, self.activation = adj, activation

    def forward(self, inputs):
        return self.activation(torch.sparse.mm(self.adj, inputs @ self.weight))


class VGAE(nn.Module):
    def __init__(self, adj):
        super().__init__()
        self.base_gcn = GraphConvSparse(FEATURES, HIDDEN1, adj)
        self.gcn_mean = GraphConvSparse(HIDDEN1, HIDDEN2, adj, activation=lambda x: x)
        self.gcn_logstddev = GraphConvSparse(HIDDEN1, HIDDEN2, adj, activation=lambda x: x)

    def encode(self, X):
        hidden = self.base_gcn(X)
        self.mean = self.gcn_mean(hidden)
        self.logstd = self.gcn_logstddev(hidden)
        return torch.randn_like(self.mean) * torch.exp(self.logstd) + self.mean

    def forward(self, X):
        Z = self.encode(X)
        return torch.sigmoid(torch.matmul(Z, Z.t()))


def auc(z, positive):
    negative = np.random.randint(0, PEOPLE, positive.shape)
    up, down = ((z[a] * z[b]).sum(1) for a, b in (positive.T, negative.T))
    return (up[:, None] > down[None]).mean()


train_edges, test_edges = load_data()
adj_norm, adj = preprocess_graph(train_edges)
adj_label = adj.cuda().to_dense().clamp(max=1)
edges = 2 * len(train_edges)
pos_weight = float(PEOPLE * PEOPLE - edges) / edges
norm = PEOPLE * PEOPLE / float((PEOPLE * PEOPLE - edges) * 2)
features = torch.rand(PEOPLE, FEATURES).lt(0.02).float().cuda()
weight = torch.ones_like(adj_label)
weight[adj_label == 1] = pos_weight

model = VGAE(adj_norm.cuda()).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(8):
    A_pred = model(features)
    optimizer.zero_grad()
    log_lik = norm * F.binary_cross_entropy(
        A_pred.view(-1), adj_label.view(-1), weight=weight.view(-1)
    )
    kl = (
        0.5
        / A_pred.size(0)
        * (1 + 2 * model.logstd - model.mean**2 - torch.exp(model.logstd) ** 2).sum(1).mean()
    )
    loss = log_lik - kl
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        z = model.mean.cpu().numpy()
    print(f"Epoch: {epoch + 1:04d} loss {loss.item():.5f} val_roc {auc(z, test_edges):.5f}")
