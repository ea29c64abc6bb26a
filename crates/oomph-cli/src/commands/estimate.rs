//! `oomph estimate`: how much memory a model file needs, from its headers, and which GPUs hold it.

use std::path::PathBuf;

use oomph_estimate::{
    AskedGpu, DType, OnnxOptions, Optimizer, Training, Workload, needs, workspace_bytes,
};
use oomph_gpus::parse_spec;
use oomph_report::estimate::Estimate;
use oomph_report::terminal::width;

use crate::model_files::{read_adapter, read_model};
use crate::{ExitStatus, json, stdout};

/// Arguments of `oomph estimate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Reads headers only; loads no weights and runs nothing in the file.\n\nExamples:\n  oomph estimate model.safetensors\n  oomph estimate ./Llama-3.1-8B --tokens 8192 --batch 4\n  oomph estimate config.json --dtype int8 --gpu rtx-4090\n  oomph estimate ./gpt2 --train --batch 8 --tokens 1024 --autocast bf16\n  oomph estimate net.onnx --dim batch=16"
)]
pub struct Args {
    /// A .safetensors, .gguf, .onnx, .pt/.pth/.bin file, a config.json, or a directory with them
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// Cast floating-point weights to TYPE: f32, f16, bf16, f8, int8, int4
    #[arg(long, value_name = "TYPE", value_parser = parse_dtype)]
    dtype: Option<DType>,

    /// Type of the KV cache [default: the compute type]
    #[arg(long, value_name = "TYPE", value_parser = parse_dtype)]
    kv_dtype: Option<DType>,

    /// Sequences or samples at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    batch: u64,

    /// Tokens per sequence [default: the model's longest, up to 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    tokens: Option<u64>,

    /// Train it: forward, backward and the optimizer's step
    #[arg(long)]
    train: bool,

    /// Which optimizer steps: adamw, adamw_fused, adamw_8bit, adafactor, sgd, momentum
    #[arg(long, value_name = "NAME", default_value = "adamw", value_parser = parse_optimizer, requires = "train")]
    optimizer: Optimizer,

    /// Passes whose gradients are added before the optimizer steps
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 24), requires = "train")]
    accumulation: u64,

    /// Compute each layer again in the backward pass (gradient checkpointing)
    #[arg(long, requires = "train")]
    checkpointing: bool,

    /// Compute in TYPE with torch.autocast: bf16 or f16
    #[arg(long, value_name = "TYPE", value_parser = parse_autocast)]
    autocast: Option<DType>,

    /// A directory with a LoRA adapter; with --train, only the adapter is trained
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,

    /// Size of an open dimension of an ONNX model; NAME=N, may be repeated
    #[arg(long, value_name = "NAME=N", value_parser = parse_dimension)]
    dim: Vec<(String, u64)>,

    /// Ask about this GPU only; exit status 3 if it does not hold the model. NAME:COUNT for several
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,

    /// List every GPU that holds it
    #[arg(long)]
    all: bool,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_dtype(text: &str) -> Result<DType, String> {
    DType::float_by_name(&text.to_ascii_lowercase())
        .ok_or_else(|| "expected f32, f16, bf16, f8, int8 or int4".to_owned())
}

fn parse_autocast(text: &str) -> Result<DType, String> {
    DType::float_by_name(&text.to_ascii_lowercase())
        .filter(|dtype| matches!(*dtype, DType::BF16 | DType::F16))
        .ok_or_else(|| "expected bf16 or f16".to_owned())
}

fn parse_optimizer(text: &str) -> Result<Optimizer, String> {
    let wanted = text.to_ascii_lowercase().replace('-', "_");
    Optimizer::ALL
        .iter()
        .find_map(|&(name, optimizer)| (name == wanted).then_some(optimizer))
        .ok_or_else(|| {
            let names: Vec<&str> = Optimizer::ALL.iter().map(|&(name, _)| name).collect();
            format!("expected one of {}", names.join(", "))
        })
}

fn parse_dimension(text: &str) -> Result<(String, u64), String> {
    let expected = "expected NAME=N, such as batch=16";
    let (name, size) = text.split_once('=').ok_or(expected)?;
    let size = size.parse().map_err(|_| expected)?;
    Ok((name.to_owned(), size))
}

impl Args {
    /// Reads the model and prints what it needs.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let spec = self.gpu.as_deref().map(parse_spec).transpose()?;
        let options = OnnxOptions {
            dimensions: self.dim.iter().cloned().collect(),
            batch: self.batch,
        };
        let mut model = read_model(&self.model, &options)?;
        if let Some(directory) = &self.adapter {
            model.adapter = Some(read_adapter(directory, &options)?);
        }
        if self.train && !model.is_floating() {
            anyhow::bail!(
                "{}: --train expects weights in f32, f16 or bf16, found quantized ones",
                self.model.display()
            );
        }
        let workload = Workload {
            batch: self.batch,
            tokens: self.tokens,
            dtype: self.dtype,
            kv_dtype: self.kv_dtype,
            autocast: self.autocast,
            training: self.train.then_some(Training {
                optimizer: self.optimizer,
                accumulation: self.accumulation,
                checkpointing: self.checkpointing,
            }),
            workspace_bytes: workspace_bytes(spec.as_ref().map(|spec| spec.found.gpu)),
        };
        let needs = needs(&model, &workload);
        let estimate = Estimate {
            path: &self.model,
            model: &model,
            workload: &workload,
            needs: &needs,
            asked: spec.map(|spec| AskedGpu::new(spec, &needs)),
        };
        let status = match &estimate.asked {
            Some(asked) if !asked.fits => ExitStatus::Findings,
            _ => ExitStatus::Success,
        };
        if let Some(target) = &self.json {
            json::write(target, &estimate.json())?;
            if json::is_stdout(target) {
                return Ok(status);
            }
        }
        stdout(&estimate.text(width(), self.all))?;
        Ok(status)
    }
}
