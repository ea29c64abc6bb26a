//! Estimates against what `oomph run` measured of the same model: bench/estimate/results.

use oomph_estimate::{DType, Model, Optimizer, Training, Workload, needs, parse_config};

const LLAMA: &str = r#"{"model_type":"llama","hidden_size":2048,"intermediate_size":5632,"num_hidden_layers":22,"num_attention_heads":32,"num_key_value_heads":4,"vocab_size":32000,"max_position_embeddings":2048}"#;
const QWEN: &str = r#"{"model_type":"qwen2","hidden_size":896,"intermediate_size":4864,"num_hidden_layers":24,"num_attention_heads":14,"num_key_value_heads":2,"vocab_size":151936,"tie_word_embeddings":true}"#;
const MIXTRAL: &str = r#"{"model_type":"mixtral","hidden_size":1024,"intermediate_size":2048,"num_hidden_layers":12,"num_attention_heads":16,"num_key_value_heads":4,"num_local_experts":8,"num_experts_per_tok":2,"vocab_size":32000}"#;
const T5: &str = r#"{"model_type":"t5","d_model":768,"d_ff":3072,"d_kv":64,"num_layers":12,"num_heads":12,"vocab_size":32128,"feed_forward_proj":"relu"}"#;
const GPT2: &str = r#"{"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"n_positions":1024,"vocab_size":50257}"#;

fn training(accumulation: u64, checkpointing: bool) -> Training {
    Training {
        optimizer: Optimizer::AdamW,
        accumulation,
        checkpointing,
    }
}

fn load(batch: u64, tokens: u64, dtype: DType) -> Workload {
    Workload {
        batch,
        tokens: Some(tokens),
        dtype: Some(dtype),
        ..Workload::default()
    }
}

#[test]
fn peaks_are_within_three_percent_of_runs() {
    let train = Some(training(1, false));
    let cases = [
        (
            "llama",
            LLAMA,
            load(8, 2048, DType::BF16),
            3_720_664_064_u64,
        ),
        (
            "qwen2",
            QWEN,
            Workload {
                autocast: Some(DType::BF16),
                training: train,
                ..load(4, 1024, DType::F32)
            },
            21_050_541_056,
        ),
        (
            "mixtral",
            MIXTRAL,
            Workload {
                training: train,
                ..load(4, 1024, DType::BF16)
            },
            8_960_043_520,
        ),
        (
            "t5",
            T5,
            Workload {
                training: train,
                ..load(8, 256, DType::F32)
            },
            8_469_176_832,
        ),
        (
            "gpt2",
            GPT2,
            Workload {
                training: train,
                ..load(8, 512, DType::F32)
            },
            8_689_536_512,
        ),
        (
            "llama, checkpointed and accumulated",
            LLAMA,
            Workload {
                autocast: Some(DType::BF16),
                training: Some(training(4, true)),
                ..load(8, 1024, DType::F32)
            },
            CHECKPOINTED,
        ),
    ];
    for (name, config, workload, measured) in cases {
        let model = Model::from_config(parse_config(config).expect(name));
        let estimated = needs(&model, &workload).total_bytes;
        let difference = estimated as f64 / measured as f64 - 1.0;
        assert!(
            difference.abs() < 0.03,
            "{name}: {estimated} of {measured}, {:+.2} %",
            difference * 100.0
        );
    }
}

/// `llama_checkpointing` of the benchmark.
const CHECKPOINTED: u64 = 24_070_269_952;
