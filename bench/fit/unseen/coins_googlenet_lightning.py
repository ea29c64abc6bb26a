"""Coins by torchvision's GoogLeNet with its two auxiliary heads under Lightning: manual optimization, CutMix, RMSprop, step decay each epoch."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import googlenet
from torchvision.transforms import v2

CLASSES = 315


class Coins(pl.LightningDataModule):
    def __init__(self, batch=96):
        super().__init__()
        self.batch = batch

    def setup(self, stage=None):
        faces = torch.randint(0, 255, (288, 3, 224, 224), dtype=torch.uint8)
        self.data = TensorDataset(faces, torch.randint(0, CLASSES, (288,)))

    def train_dataloader(self):
        return DataLoader(self.data, self.batch, shuffle=True, drop_last=True)


class Numismatist(pl.LightningModule):
    def __init__(self, lr=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.net = googlenet(weights=None, num_classes=CLASSES, aux_logits=True, init_weights=False)
        self.mix = v2.CutMix(num_classes=CLASSES)

    def training_step(self, batch, index):
        faces, labels = batch
        faces, labels = self.mix(faces.float() / 255, labels)
        main, aux2, aux1 = self.net(faces)
        loss = F.cross_entropy(main, labels) + 0.3 * (
            F.cross_entropy(aux1, labels) + F.cross_entropy(aux2, labels)
        )
        opt = self.optimizers()
        opt.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(opt, gradient_clip_val=2.0, gradient_clip_algorithm="norm")
        opt.step()
        self.log("loss", loss)

    def on_train_epoch_end(self):
        self.lr_schedulers().step()

    def configure_optimizers(self):
        opt = torch.optim.RMSprop(self.parameters(), self.hparams.lr, momentum=0.9, eps=1.0)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, 0.94)]


pl.seed_everything(1794)
pl.Trainer(
    max_epochs=2,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
).fit(Numismatist(), Coins())
