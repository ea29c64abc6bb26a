"""Letters from speech: Wav2Vec2ForCTC with a frozen feature encoder, Trainer in fp16, clips of eight seconds."""

import tempfile

import torch
from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2ForCTC


class Clips(torch.utils.data.Dataset):
    def __init__(self, n=96, seconds=8):
        self.n, self.samples = n, seconds * 16000

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {
            "input_values": torch.sin(torch.arange(self.samples) * (0.01 + i / 999)),
            "labels": torch.randint(1, 31, (60,)),
        }


config = Wav2Vec2Config(
    vocab_size=32,
    num_hidden_layers=10,
    ctc_loss_reduction="mean",
    pad_token_id=0,
    attention_dropout=0.0,
    hidden_dropout=0.1,
    layerdrop=0.0,
    mask_time_prob=0.05,
)
model = Wav2Vec2ForCTC(config)
model.freeze_feature_encoder()
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    learning_rate=3e-4,
    warmup_steps=2,
    max_steps=5,
    fp16=True,
    save_strategy="no",
    report_to="none",
)
Trainer(model=model, args=args, train_dataset=Clips()).train()
