"""Questions about tables of town budgets by TAPAS: seven kinds of token types, cells selected or summed up (weak supervision by numeric answers), Trainer in fp32, 512 tokens."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import TapasConfig, TapasForQuestionAnswering, Trainer, TrainingArguments

LENGTH, COLUMNS = 512, 6
QUESTION = 22

config = TapasConfig(
    vocab_size=20_000,
    hidden_size=512,
    num_hidden_layers=8,
    num_attention_heads=8,
    intermediate_size=2048,
    num_aggregation_labels=4,
    use_answer_as_supervision=True,
    answer_loss_cutoff=0.664694,
    cell_selection_preference=0.207951,
    huber_loss_delta=0.121194,
    init_cell_selection_weights_to_zero=True,
    select_one_column=True,
    allow_empty_column_selection=False,
    temperature=0.0352513,
)


class Budgets(Dataset):
    def __len__(self):
        return 84

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(10, config.vocab_size, (LENGTH,), generator=g)
        place = torch.arange(LENGTH - QUESTION)
        cell = place // 2
        row, column = cell // COLUMNS + 1, cell % COLUMNS + 1
        kinds = torch.zeros(LENGTH, 7, dtype=torch.long)
        kinds[QUESTION:, 0] = 1
        kinds[QUESTION:, 1] = column
        kinds[QUESTION:, 2] = row.clamp(max=255)
        kinds[QUESTION:, 4] = torch.argsort(torch.rand(len(place), generator=g)) % 40
        kinds[QUESTION:, 5] = kinds[QUESTION:, 4].flip(0)
        labels = torch.zeros(LENGTH, dtype=torch.long)
        sums = i % 2 == 0
        if not sums:
            wanted = (column == i % COLUMNS + 1) & (row == i % 30 + 1)
            labels[QUESTION:] = wanted.long()
        values = torch.full((LENGTH,), float("nan"))
        values[QUESTION:] = torch.rand(len(place), generator=g) * 1e3
        return {
            "input_ids": ids,
            "attention_mask": torch.ones(LENGTH, dtype=torch.long),
            "token_type_ids": kinds,
            "labels": labels,
            "numeric_values": values,
            "numeric_values_scale": torch.ones(LENGTH),
            "float_answer": torch.tensor(1234.5 if sums else float("nan")),
        }


with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=TapasForQuestionAnswering(config),
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=14,
            num_train_epochs=1,
            learning_rate=1.9e-5,
            warmup_steps=1,
            weight_decay=0.01,
            max_grad_norm=10.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            remove_unused_columns=False,
        ),
        train_dataset=Budgets(),
    )
    trainer.train()
