"""Who speaks: WavLM with its x-vector head over 5,994 speakers, additive margin softmax, Lightning, two learning rates."""

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import WavLMConfig, WavLMForXVector


class SpeakerNet(pl.LightningModule):
    def __init__(self, speakers: int, backbone_lr: float = 2e-5, head_lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        config = WavLMConfig(
            num_hidden_layers=4,
            hidden_size=768,
            num_attention_heads=12,
            intermediate_size=3072,
            num_labels=speakers,
            use_weighted_layer_sum=True,
            apply_spec_augment=False,
            layerdrop=0.0,
        )
        self.net = WavLMForXVector(config)
        self.net.freeze_feature_encoder()

    def training_step(self, batch, batch_idx):
        wave, who = batch
        output = self.net(input_values=wave, labels=who)
        self.log("loss", output.loss, prog_bar=False)
        return output.loss

    def configure_optimizers(self):
        trained = [p for p in self.net.wavlm.parameters() if p.requires_grad]
        head = [p for n, p in self.net.named_parameters() if not n.startswith("wavlm.")]
        return torch.optim.AdamW(
            [
                {"params": trained, "lr": self.hparams.backbone_lr},
                {"params": head, "lr": self.hparams.head_lr},
            ]
        )


def main():
    pl.seed_everything(7, verbose=False)
    seconds, batch, steps = 5, 24, 5
    waves = torch.randn(batch * steps, 16000 * seconds)
    who = torch.randint(0, 5994, (batch * steps,))
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="gpu",
        devices=1,
        precision=32,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SpeakerNet(5994), DataLoader(TensorDataset(waves, who), batch_size=batch))


if __name__ == "__main__":
    main()
