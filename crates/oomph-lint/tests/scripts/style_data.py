"""Data on the GPU: whole datasets, batches that are kept, tensors that grow."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class OnGpu(Dataset):
    def __init__(self, frame, device):
        self.x = torch.tensor(frame.values).to(device)
        self.y = torch.tensor(frame.target.values)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def tensors(x_train, y_train):
    x_train = torch.tensor(x_train).to(device)
    y_train = torch.tensor(y_train)
    return DataLoader(TensorDataset(x_train, y_train), batch_size=64)


def tensors_on_the_cpu(x_train, y_train):
    data = TensorDataset(torch.tensor(x_train), torch.tensor(y_train))
    return DataLoader(data, batch_size=64, pin_memory=True)


def held(train_loader):
    batches = []
    for x, y in train_loader:
        batches.append((x.to(device), y.to(device)))
    return batches


def held_on_the_cpu(train_loader):
    batches = []
    for x, y in train_loader:
        batches.append((x, y))
    return batches


def features(model, loader):
    model.eval()
    outs, labels = [], []
    with torch.no_grad():
        for x, y in loader:
            outs.append(model(x.to(device)))
            labels.append(y)
    return torch.cat(outs), torch.cat(labels)


def features_on_the_cpu(model, loader):
    model.eval()
    outs = torch.empty(0)
    with torch.no_grad():
        for x, y in loader:
            outs = torch.cat([outs, model(x.to(device)).cpu()])
    return outs


def growing(model, loader):
    model = model.to(device)
    model.eval()
    preds = torch.tensor([], device=device)
    with torch.no_grad():
        for x, y in loader:
            preds = torch.cat([preds, model(x.to(device))])  # OOM302
    return preds


def labels_only(loader):
    targets = torch.tensor([])
    for x, y in loader:
        targets = torch.cat([targets, y])
    return targets


def emptied(model, loader, optimizer, criterion):
    for x, y in loader:
        loss = criterion(model(x.to(device)), y.to(device))
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()  # OOM611


@torch.no_grad()
def codes(model, loader):
    kept = None
    labels = None
    for x, y in loader:
        out = model(x.to(device))
        found = out["codes"]
        kept = found if kept is None else torch.cat([kept, found], dim=0)  # OOM302
        labels = y if labels is None else torch.cat([labels, y], dim=0)
    return kept
