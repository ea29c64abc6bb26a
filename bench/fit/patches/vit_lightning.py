import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import VisionTransformer


class LitViT(L.LightningModule):
    def __init__(self, lr=1e-4):
        super().__init__()
        self.net = VisionTransformer(
            image_size=112,
            patch_size=16,
            num_layers=6,
            num_heads=6,
            hidden_dim=384,
            mlp_dim=1536,
            num_classes=20,
        )
        self.lr = lr
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.criterion(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main():
    data = TensorDataset(torch.randn(256, 3, 112, 112), torch.randint(0, 20, (256,)))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(LitViT(), loader)


if __name__ == "__main__":
    main()
