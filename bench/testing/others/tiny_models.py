"""Tiny models of six families for the common tests of transformers (`tests/test_modeling_common.py`), as its own model tests
define them; `run.py choose` puts it beside that file."""

import unittest

import torch
from tests.test_modeling_common import ModelTesterMixin, floats_tensor, ids_tensor
from transformers import (
    BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel, GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel, GPT2Model,
    LlamaConfig, LlamaForCausalLM, LlamaModel, MixtralConfig, MixtralForCausalLM, MixtralModel, T5Config, T5ForConditionalGeneration, T5Model,
    ViTConfig, ViTForImageClassification, ViTModel,
)  # fmt: skip
from transformers.testing_utils import torch_device

BATCH, LENGTH, WORDS = 3, 7, 99
SMALL = dict(
    vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37, max_position_embeddings=64,
    pad_token_id=0,
)  # fmt: skip


class Tester:
    """What the common tests ask of a model's tester."""

    is_training = True
    batch_size, seq_length, hidden_size, num_hidden_layers, num_attention_heads = (
        BATCH,
        LENGTH,
        32,
        2,
        4,
    )

    def __init__(self, parent, config):
        self.parent, self.config = parent, config

    def get_config(self):
        return self.config()

    def prepare_config_and_inputs_for_common(self):
        config = self.config()
        if isinstance(config, ViTConfig):
            return config, {"pixel_values": floats_tensor([BATCH, 3, 30, 30])}
        inputs = {
            "input_ids": ids_tensor([BATCH, LENGTH], WORDS - 1) + 1,
            "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long, device=torch_device),
        }
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids_tensor([BATCH, LENGTH], WORDS - 1) + 1
        return config, inputs


class Common(ModelTesterMixin):
    test_resize_embeddings = True
    encoder_seq_length = LENGTH

    def setUp(self):
        self.model_tester = Tester(self, type(self).config)
        self.model_tester.encoder_seq_length = LENGTH
        if not self.has_embeddings:
            self.model_tester.seq_length = 226
            self.test_resize_embeddings = False

    has_embeddings = True


class BertTest(Common, unittest.TestCase):
    all_model_classes = (BertModel, BertForMaskedLM, BertForSequenceClassification)
    config = staticmethod(lambda: BertConfig(**SMALL))


class GPT2Test(Common, unittest.TestCase):
    all_model_classes = (GPT2Model, GPT2LMHeadModel, GPT2ForSequenceClassification)
    config = staticmethod(
        lambda: GPT2Config(
            vocab_size=WORDS,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


class LlamaTest(Common, unittest.TestCase):
    all_model_classes = (LlamaModel, LlamaForCausalLM)
    config = staticmethod(lambda: LlamaConfig(**SMALL, num_key_value_heads=2))


class MixtralTest(Common, unittest.TestCase):
    all_model_classes = (MixtralModel, MixtralForCausalLM)
    config = staticmethod(
        lambda: MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)
    )


class T5Test(Common, unittest.TestCase):
    is_encoder_decoder = True
    all_model_classes = (T5Model, T5ForConditionalGeneration)
    config = staticmethod(
        lambda: T5Config(
            vocab_size=WORDS,
            d_model=32,
            num_layers=2,
            num_heads=4,
            d_ff=37,
            d_kv=8,
            pad_token_id=0,
            decoder_start_token_id=0,
        )
    )


class ViTTest(Common, unittest.TestCase):
    has_embeddings = False
    all_model_classes = (ViTModel, ViTForImageClassification)
    config = staticmethod(
        lambda: ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=37,
            image_size=30,
            patch_size=2,
        )
    )


del Common
