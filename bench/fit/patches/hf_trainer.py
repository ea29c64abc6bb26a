import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __init__(self, n=96, length=256, vocab=8000):
        self.x = torch.randint(5, vocab, (n, length))
        self.y = torch.randint(0, 2, (n,))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return dict(
            input_ids=self.x[i], attention_mask=torch.ones_like(self.x[i]), labels=self.y[i]
        )


def main():
    config = BertConfig(
        vocab_size=8000,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
    )
    model = BertForSequenceClassification(config)
    args = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=32,
        num_train_epochs=2,
        learning_rate=5e-5,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Reviews())
    trainer.train()


if __name__ == "__main__":
    main()
