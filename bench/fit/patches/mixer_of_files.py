import torch
from torch.utils.data import DataLoader, TensorDataset

from engine import train_epoch
from models import create_model

if __name__ == "__main__":
    device = torch.device("cuda:0")
    model = create_model("mixer", depth=8).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    criterion = torch.nn.CrossEntropyLoss()
    loader = DataLoader(
        TensorDataset(torch.randn(128, 3, 224, 224), torch.randint(0, 100, (128,))), batch_size=32
    )
    for epoch in range(2):
        print(epoch, train_epoch(model, loader, criterion, optimizer, device))
