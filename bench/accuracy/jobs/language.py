"""Text: language models, encoders, translation; inference, checkpointing, adapters.

`python language.py NAME` as in training.py.
"""

from builders import hf, lm, masked, module, transformers_model
from training import main


LLAMA1B = dict(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=22,
    num_attention_heads=32,
    num_key_value_heads=4,
    max_position_embeddings=2048,
    use_cache=False,
)


QWEN05 = dict(
    vocab_size=151936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    use_cache=False,
)


SMALL = dict(
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=8,
    num_attention_heads=12,
    use_cache=False,
)


def translator():
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.e = nn.Embedding(12000, 512, padding_idx=0)
                s.t = nn.Transformer(512, 8, 4, 4, 2048, batch_first=True)
                s.o = nn.Linear(512, 12000)

            def forward(s, a, b):
                return s.o(
                    s.t(
                        s.e(a),
                        s.e(b),
                        tgt_mask=nn.Transformer.generate_square_subsequent_mask(
                            b.shape[1], device=b.device
                        ),
                        src_key_padding_mask=a == 0,
                    )
                )

        return M()

    def batch(torch):
        a, b = torch.randint(1, 12000, (48, 96)), torch.randint(1, 12000, (48, 81))
        for i in range(48):
            a[i, 96 - i :] = 0
        return a.cuda(), b.cuda()

    return module(
        make,
        batch,
        lambda torch, m, b: torch.nn.functional.cross_entropy(
            m(b[0], b[1][:, :-1]).flatten(0, 1),
            b[1][:, 1:].flatten(),
            ignore_index=0,
            label_smoothing=0.1,
        ),
        opt="adamw",
        amp="bf16",
    )


def frozen_base():
    """Small adapters on a frozen transformer."""

    def build():
        import torch, transformers as T

        with torch.device("cuda"):
            m = T.GPT2LMHeadModel(T.GPT2Config(use_cache=False))
        m.train().requires_grad_(False)

        class Adapter(torch.nn.Module):
            def __init__(s, base):
                super().__init__()
                s.base = base
                n, o = base.weight.shape
                s.a, s.b = torch.nn.Linear(n, 8, bias=False), torch.nn.Linear(8, o, bias=False)

            def forward(s, x):
                return s.base(x) + s.b(s.a(x))

        for block in m.transformer.h:
            block.attn.c_attn = Adapter(block.attn.c_attn).cuda()
        return (
            m,
            lambda: torch.randint(0, 50257, (8, 512), device="cuda"),
            lambda b: m(input_ids=b, labels=b).loss,
        )

    return dict(build=build, opt="adamw", amp="bf16")


JOBS = {
    "gpt2_b8": lambda: transformers_model(
        "GPT2LMHeadModel", "GPT2Config", 8, 1024, use_cache=False
    ),
    "gpt2_medium_b8_ckpt": lambda: transformers_model(
        "GPT2LMHeadModel",
        "GPT2Config",
        8,
        1024,
        ckpt=True,
        n_embd=1024,
        n_layer=24,
        n_head=16,
        use_cache=False,
    ),
    "bert_base_b32": lambda: transformers_model(
        "BertForSequenceClassification", "BertConfig", 32, 512
    ),
    "t5_small_b16": lambda: transformers_model(
        "T5ForConditionalGeneration", "T5Config", 16, 512, use_cache=False, decoder_start_token_id=0
    ),
    "llama1b_bf16_b4": lambda: transformers_model(
        "LlamaForCausalLM", "LlamaConfig", 4, 2048, amp=None, dtype="bfloat16", **LLAMA1B
    ),
    "qwen05b_b4": lambda: transformers_model("Qwen2ForCausalLM", "Qwen2Config", 4, 1024, **QWEN05),
    "distilbert_mlm_b16": lambda: hf("DistilBertForMaskedLM", "DistilBertConfig", masked(16, 256)),
    "roberta_fp32_b8": lambda: hf(
        "RobertaForMaskedLM", "RobertaConfig", masked(8, 256), amp=None, max_position_embeddings=514
    ),
    "opt125m_b8": lambda: hf("OPTForCausalLM", "OPTConfig", masked(8, 512), use_cache=False),
    "mistral_small_b4": lambda: hf(
        "MistralForCausalLM",
        "MistralConfig",
        lm(4, 1024),
        num_key_value_heads=4,
        vocab_size=32000,
        sliding_window=512,
        **SMALL,
    ),
    "gemma_small_b4_eager": lambda: hf(
        "GemmaForCausalLM",
        "GemmaConfig",
        lm(4, 512),
        num_key_value_heads=4,
        head_dim=64,
        attn_implementation="eager",
        **SMALL,
    ),
    "mixtral_small_b4": lambda: hf(
        "MixtralForCausalLM",
        "MixtralConfig",
        lm(4, 512),
        num_key_value_heads=4,
        vocab_size=32000,
        num_local_experts=4,
        **SMALL,
    ),
    "bart_base_b8": lambda: hf(
        "BartForConditionalGeneration",
        "BartConfig",
        masked(8, 256),
        use_cache=False,
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
    ),
    "adafactor_gpt2_b4": lambda: transformers_model(
        "GPT2LMHeadModel", "GPT2Config", 4, 512, opt="adafactor", use_cache=False
    ),
    "gpt2_rmsprop_b4": lambda: transformers_model(
        "GPT2LMHeadModel", "GPT2Config", 4, 512, opt="rmsprop", use_cache=False
    ),
    "frozen_base_b8": frozen_base,
    "deberta_b8": lambda: hf(
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        lambda torch, c: dict(
            input_ids=torch.randint(5, 30000, (8, 256), device="cuda"),
            attention_mask=torch.ones(8, 256, dtype=torch.long, device="cuda"),
            labels=torch.randint(0, 2, (8,), device="cuda"),
        ),
        vocab_size=30522,
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=3072,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        max_relative_positions=-1,
        position_buckets=256,
        num_labels=2,
    ),
    "gpt_neox_b4_eager": lambda: hf(
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        lm(4, 512),
        attn_implementation="eager",
        vocab_size=32000,
        **SMALL,
    ),
    "phi_b4": lambda: hf(
        "PhiForCausalLM", "PhiConfig", lm(4, 768), amp=None, vocab_size=32000, **SMALL
    ),
    "mamba_b4": lambda: hf(
        "MambaForCausalLM",
        "MambaConfig",
        lm(4, 256),
        vocab_size=32000,
        hidden_size=512,
        num_hidden_layers=4,
        use_cache=False,
    ),
    "translator_b48": translator,
}
INFERENCE = {
    "infer_llama1b_b8": lambda: transformers_model(
        "LlamaForCausalLM",
        "LlamaConfig",
        8,
        2048,
        amp=None,
        dtype="bfloat16",
        labels=False,
        **{**LLAMA1B, "use_cache": True},
    ),
}

if __name__ == "__main__":
    main(JOBS, INFERENCE)
