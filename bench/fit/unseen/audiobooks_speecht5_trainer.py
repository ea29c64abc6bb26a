"""A reader's voice for audiobooks: SpeechT5 from text to spectrograms with Seq2SeqTrainer, mel frames of many lengths, a vector for the speaker, fp16."""

import tempfile

import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    SpeechT5Config,
    SpeechT5ForTextToSpeech,
    set_seed,
)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(500 + i)
        chars = int(torch.randint(60, 200, (1,), generator=g))
        frames = 4 * chars
        return {
            "input_ids": torch.randint(4, 81, (chars,), generator=g),
            "labels": torch.randn(frames, 80, generator=g),
            "speaker_embeddings": torch.randn(512, generator=g),
        }


class TTSCollator:
    def __init__(self, reduction):
        self.reduction = reduction

    def __call__(self, features):
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad([f["input_ids"] for f in features], batch_first=True, padding_value=1)
        mels = pad([f["labels"] for f in features], batch_first=True, padding_value=-100.0)
        mels = mels[:, : mels.shape[1] // self.reduction * self.reduction]
        return {
            "input_ids": ids,
            "attention_mask": (ids != 1).long(),
            "labels": mels,
            "speaker_embeddings": torch.stack([f["speaker_embeddings"] for f in features]),
        }


def main():
    set_seed(19)
    config = SpeechT5Config(
        encoder_layers=10, decoder_layers=6, use_guided_attention_loss=False, use_cache=False
    )
    model = SpeechT5ForTextToSpeech(config)
    args = Seq2SeqTrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=12,
        learning_rate=1e-5,
        warmup_steps=2,
        max_steps=5,
        fp16=True,
        label_names=["labels"],
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=Sentences(60),
        data_collator=TTSCollator(config.reduction_factor),
    )
    trainer.train()


if __name__ == "__main__":
    main()
