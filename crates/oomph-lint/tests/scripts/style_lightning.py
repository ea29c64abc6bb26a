"""Lightning modules: the trainer turns gradients off around evaluation, and calls backward itself."""
import torch
import torch.nn.functional as F
import pytorch_lightning as pl


class Classifier(pl.LightningModule):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.total = 0.0
        self.history = []
        self.outputs = []

    def forward(self, x):
        return self.backbone(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.total += loss  # OOM101
        self.history.append(loss)  # OOM102
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.backbone.eval()
        logits = self(x)
        self.outputs.append(logits)
        self.log("val", F.cross_entropy(logits, y))
        return logits

    def on_validation_epoch_end(self):
        print(torch.cat(self.outputs).argmax(1).float().mean())
        self.outputs.clear()


class Tidy(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.losses = []
        self.seen = 0.0

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.losses.append(loss.detach())
        self.seen += loss.item()
        return {"loss": loss, "log": loss.detach()}

    def on_train_epoch_end(self):
        self.log("epoch", torch.stack(self.losses).mean())
        self.losses.clear()
