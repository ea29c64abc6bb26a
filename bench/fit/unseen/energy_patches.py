import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch import optim
from torch.utils.data import DataLoader, Dataset

# PatchTST on a table as wide as "electricity" (321 clients, hourly): each channel is a sequence of its own.


class Dataset_Custom(Dataset):
    def __init__(self, seq_len, pred_len, channels, length=900):
        t = np.arange(length)[:, None]
        phase = np.linspace(0, 6.28, channels)[None]
        noise = 0.1 * np.random.randn(length, channels)
        self.data = (np.sin(t / 24 * 6.28 + phase) + noise).astype(np.float32)
        self.seq_len, self.pred_len = seq_len, pred_len

    def __getitem__(self, index):
        s_end = index + self.seq_len
        return self.data[index:s_end], self.data[s_end : s_end + self.pred_len]

    def __len__(self):
        return len(self.data) - self.seq_len - self.pred_len + 1


class RevIN(nn.Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.affine_weight = nn.Parameter(torch.ones(num_features))
        self.affine_bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, x, mode):
        if mode == "norm":
            self.mean = x.mean(1, keepdim=True).detach()
            self.stdev = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + self.eps).detach()
            return (x - self.mean) / self.stdev * self.affine_weight + self.affine_bias
        x = (x - self.affine_bias) / (self.affine_weight + self.eps * self.eps)
        return x * self.stdev + self.mean


class Transpose(nn.Module):
    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.transpose(*self.dims)


class TSTEncoderLayer(nn.Module):
    """Batch norm instead of layer norm, and scores that go on to the next layer (RealFormer)."""

    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.W_Q, self.W_K, self.W_V = (nn.Linear(d_model, d_model) for _ in range(3))
        self.to_out = nn.Sequential(nn.Linear(d_model, d_model), nn.Dropout(dropout))
        self.scale = nn.Parameter(torch.tensor(self.d_k**-0.5), requires_grad=False)
        self.dropout_attn, self.dropout_ffn = nn.Dropout(dropout), nn.Dropout(dropout)
        self.norm_attn = nn.Sequential(Transpose(1, 2), nn.BatchNorm1d(d_model), Transpose(1, 2))
        self.norm_ffn = nn.Sequential(Transpose(1, 2), nn.BatchNorm1d(d_model), Transpose(1, 2))
        self.ff = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model)
        )

    def forward(self, src, prev=None):
        bs = src.shape[0]
        q_s = self.W_Q(src).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)
        k_s = self.W_K(src).view(bs, -1, self.n_heads, self.d_k).permute(0, 2, 3, 1)
        v_s = self.W_V(src).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)
        scores = torch.matmul(q_s, k_s) * self.scale
        if prev is not None:
            scores = scores + prev
        weights = torch.softmax(scores, dim=-1)
        out = (
            torch.matmul(weights, v_s)
            .transpose(1, 2)
            .contiguous()
            .view(bs, -1, self.n_heads * self.d_k)
        )
        src = self.norm_attn(src + self.dropout_attn(self.to_out(out)))
        src = self.norm_ffn(src + self.dropout_ffn(self.ff(src)))
        return src, scores


class Model(nn.Module):
    def __init__(self, configs):
        super().__init__()
        self.patch_len, self.stride = configs.patch_len, configs.stride
        patch_num = (configs.seq_len - configs.patch_len) // configs.stride + 2
        self.revin = RevIN(configs.enc_in)
        self.padding_patch_layer = nn.ReplicationPad1d((0, configs.stride))
        self.W_P = nn.Linear(configs.patch_len, configs.d_model)
        self.W_pos = nn.Parameter(torch.empty(patch_num, configs.d_model).uniform_(-0.02, 0.02))
        self.dropout = nn.Dropout(configs.dropout)
        self.layers = nn.ModuleList(
            TSTEncoderLayer(configs.d_model, configs.n_heads, configs.d_ff, configs.dropout)
            for _ in range(configs.e_layers)
        )
        self.head = nn.Sequential(
            nn.Flatten(start_dim=-2), nn.Linear(configs.d_model * patch_num, configs.pred_len)
        )

    def forward(self, x):  # [batch, time, channel]
        z = self.revin(x, "norm").permute(0, 2, 1)
        z = self.padding_patch_layer(z)
        z = z.unfold(dimension=-1, size=self.patch_len, step=self.stride)
        bs, n_vars = z.shape[:2]
        u = self.W_P(z).reshape(bs * n_vars, z.shape[2], -1)
        u = self.dropout(u + self.W_pos)
        scores = None
        for mod in self.layers:
            u, scores = mod(u, scores)
        z = self.head(u.reshape(bs, n_vars, u.shape[1], -1)).permute(0, 2, 1)
        return self.revin(z, "denorm")


class Exp_Main:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda:0")
        self.model = Model(args).float().to(self.device)

    def _get_data(self):
        data_set = Dataset_Custom(self.args.seq_len, self.args.pred_len, self.args.enc_in)
        return data_set, DataLoader(
            data_set, batch_size=self.args.batch_size, shuffle=True, drop_last=True, num_workers=0
        )

    def train(self):
        _, train_loader = self._get_data()
        model_optim = optim.Adam(self.model.parameters(), lr=self.args.learning_rate)
        criterion = nn.MSELoss()
        scheduler = optim.lr_scheduler.OneCycleLR(
            model_optim, max_lr=self.args.learning_rate, steps_per_epoch=len(train_loader), epochs=1
        )
        train_loss, time_now = [], time.time()
        self.model.train()
        for i, (batch_x, batch_y) in enumerate(train_loader):
            if i == self.args.iterations:
                break
            model_optim.zero_grad()
            batch_x = batch_x.float().to(self.device)
            batch_y = batch_y.float().to(self.device)
            outputs = self.model(batch_x)
            outputs = outputs[:, -self.args.pred_len :, :]
            loss = criterion(outputs, batch_y)
            train_loss.append(loss.item())
            loss.backward()
            model_optim.step()
            scheduler.step()
            print(f"\titers: {i + 1} | loss: {loss.item():.7f} | {time.time() - time_now:.1f}s")
        return np.average(train_loss)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Autoformer & Transformer family for Time Series Forecasting"
    )
    parser.add_argument("--seq_len", type=int, default=336)
    parser.add_argument("--pred_len", type=int, default=96)
    parser.add_argument("--enc_in", type=int, default=321)
    parser.add_argument("--d_model", type=int, default=128)
    parser.add_argument("--n_heads", type=int, default=16)
    parser.add_argument("--d_ff", type=int, default=256)
    parser.add_argument("--e_layers", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--patch_len", type=int, default=16)
    parser.add_argument("--stride", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=12)
    parser.add_argument("--learning_rate", type=float, default=0.0001)
    parser.add_argument("--iterations", type=int, default=6)
    args = parser.parse_args()
    np.random.seed(2021)
    torch.manual_seed(2021)
    Exp_Main(args).train()
