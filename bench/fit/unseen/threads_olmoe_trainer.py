"""Discussion threads with OLMoE: 32 experts, four for a token, router loss, Trainer in bf16."""

import tempfile

import torch
from transformers import OlmoeConfig, OlmoeForCausalLM, Trainer, TrainingArguments

torch.manual_seed(3)

config = OlmoeConfig(
    vocab_size=50304,
    hidden_size=768,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=12,
    num_key_value_heads=12,
    num_experts=32,
    num_experts_per_tok=4,
    output_router_logits=True,
    router_aux_loss_coef=0.01,
    max_position_embeddings=2048,
    use_cache=False,
)
with torch.device("cuda"):
    model = OlmoeForCausalLM(config)

threads = [torch.randint(1, 50304, (1024,)) for _ in range(40)]


def collate(rows):
    ids = torch.stack(rows)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    max_steps=5,
    learning_rate=4e-4,
    weight_decay=0.1,
    bf16=True,
    warmup_steps=2,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    remove_unused_columns=False,
)
trainer = Trainer(model=model, args=args, train_dataset=threads, data_collator=collate)
trainer.train()
