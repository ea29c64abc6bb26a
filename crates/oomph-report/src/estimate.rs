//! What a model file needs, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use oomph_bytes::format_bytes;
use oomph_estimate::{AskedGpu, Basis, Candidate, DType, Model, Needs, Workload, candidates};
use serde::Serialize;

use crate::table::{Align, Table};
use crate::terminal::{BAD, BOLD, DIM, GOOD, WARN, heading, shorten, wrap};

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.estimate/1";
/// GPUs listed unless all are asked for.
const LISTED: usize = 8;

/// A model with what it needs.
#[derive(Debug)]
pub struct Estimate<'a> {
    /// Where it was read from.
    pub path: &'a Path,
    /// The model.
    pub model: &'a Model,
    /// How it is to be run.
    pub workload: &'a Workload,
    /// What that needs.
    pub needs: &'a Needs,
    /// Whether the GPUs that were asked for hold it, if any were.
    pub asked: Option<AskedGpu>,
}

impl Estimate<'_> {
    /// The text, `width` columns wide; with `all`, every GPU that would hold the model.
    pub fn text(&self, width: usize, all: bool) -> String {
        /// Where notes begin.
        const NOTE: usize = 9;
        let mut text = String::new();
        self.header(width, &mut text);
        self.needs_text(width, &mut text);
        match &self.asked {
            // What needs nothing fits anywhere: that would be no answer.
            _ if self.needs.total_bytes == 0 => {
                let _ = writeln!(text, "{WARN}nothing is known of its size{WARN:#}\n");
            }
            Some(asked) => self.asked_text(asked, width, &mut text),
            None => self.gpus_text(width, all, &mut text),
        }
        let notes = self.model.config.iter().flat_map(|config| &config.notes);
        for note in self.model.assumptions.iter().chain(notes) {
            let note = wrap(note, width.saturating_sub(NOTE), NOTE);
            let _ = writeln!(text, "{DIM}assumes  {note}{DIM:#}");
        }
        for problem in &self.model.problems {
            let problem = wrap(problem, width.saturating_sub(NOTE), NOTE);
            let _ = writeln!(text, "{WARN}problem{WARN:#}  {problem}");
        }
        text
    }

    fn header(&self, width: usize, text: &mut String) {
        let model = self.model;
        let kind = model
            .config
            .as_ref()
            .map(|config| config.model_type.as_str())
            .filter(|kind| !kind.is_empty())
            .map_or_else(String::new, |kind| format!(" · {kind}"));
        let name = self
            .path
            .file_name()
            .unwrap_or(self.path.as_os_str())
            .to_string_lossy();
        let head = format!(
            "{BOLD}{}{BOLD:#} · {}{kind} · {} parameters",
            shorten(&name, width),
            model.format.as_str(),
            count(model.elements())
        );
        let _ = writeln!(text, "{}\n", heading(&head, width));
    }

    fn needs_text(&self, width: usize, text: &mut String) {
        /// Where the notes begin.
        const NOTE: usize = 30;
        let needs = self.needs;
        let mut row = |label: &str, bytes: u64, note: &str| {
            let note = wrap(note, width.saturating_sub(NOTE), NOTE);
            let _ = writeln!(
                text,
                "  {label:<14}{:>11}   {DIM}{note}{DIM:#}",
                format_bytes(bytes)
            );
        };
        let stored: Vec<String> = {
            let mut groups: Vec<_> = self.model.weights().into_iter().collect();
            groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.bytes));
            groups
                .into_iter()
                .map(|(dtype, group)| format!("{dtype} {}", format_bytes(group.bytes)))
                .collect()
        };
        let cast = self
            .workload
            .dtype
            .map_or_else(String::new, |dtype| format!("as {dtype}; stored as "));
        row(
            "weights",
            needs.weight_bytes,
            &format!("{cast}{}", stored.join(", ")),
        );
        if let (Some(per_token), Some(tokens)) = (needs.kv_bytes_per_token, needs.tokens) {
            row(
                "KV cache",
                needs.kv_bytes,
                &format!(
                    "{} per token × {tokens} tokens × {}",
                    format_bytes(per_token),
                    self.workload.batch
                ),
            );
        }
        if self.workload.training.is_some() {
            self.training_rows(&mut row);
        } else if needs.activation_bytes > 0 {
            row("activations", needs.activation_bytes, &self.basis());
        }
        if needs.workspace_bytes > 0 {
            row("workspaces", needs.workspace_bytes, "what cuBLAS takes");
        }
        let what = match &needs.left_out {
            Some(why) => format!("a lower bound without activations: {why}"),
            None => "at the peak, beside the CUDA context".to_owned(),
        };
        row("total", needs.total_bytes, &what);
        let optimizer = self.model.optimizer_bytes();
        if optimizer > 0 {
            row(
                "optimizer",
                optimizer,
                "in the checkpoint, not part of the total",
            );
        }
        text.push('\n');
    }

    /// Forward and backward, or the optimizer's step: the larger one counts.
    fn training_rows(&self, row: &mut impl FnMut(&str, u64, &str)) {
        let (needs, Some(training)) = (self.needs, self.workload.training) else {
            return;
        };
        let what = match &self.model.adapter {
            Some(adapter) => format!(
                "{}, of the adapter's {} parameters alone",
                training.optimizer.name(),
                count(adapter.elements())
            ),
            None => training.optimizer.name().to_owned(),
        };
        row("optimizer", needs.optimizer_bytes, &what);
        let gradients = format!(
            "{} of gradients and what the optimizer computes",
            format_bytes(needs.gradient_bytes)
        );
        if needs.basis == Basis::LeftOut {
            row("a step", needs.step_bytes, &gradients);
        } else if needs.activation_bytes >= needs.step_bytes {
            row("a pass", needs.activation_bytes, &self.basis());
            let smaller = format!("(not at the peak) {gradients}");
            row("a step", needs.step_bytes, &smaller);
        } else {
            let smaller = format!("(not at the peak) {}", self.basis());
            row("a pass", needs.activation_bytes, &smaller);
            row("a step", needs.step_bytes, &gradients);
        }
    }

    /// Where the figure for activations comes from.
    fn basis(&self) -> String {
        let (needs, load) = (self.needs, self.workload);
        let rows = format!("{} × {} tokens", load.batch, needs.tokens.unwrap_or(0));
        let dtype = load.autocast.unwrap_or(needs.compute_dtype);
        match (needs.basis, load.training) {
            (Basis::Shapes, _) => "the peak of what is alive, from the file's shapes".to_owned(),
            (Basis::Operators, None) => {
                format!("operator by operator, logits included, {rows} in {dtype}")
            }
            (Basis::Operators, Some(training)) => {
                let again = if training.checkpointing {
                    ", layers computed again"
                } else {
                    ""
                };
                format!("forward, loss and backward of {rows} in {dtype}{again}")
            }
            (Basis::Widths, _) => {
                format!("estimated from the layers' widths, {rows} at once in {dtype}")
            }
            (Basis::LeftOut, _) => String::new(),
        }
    }

    fn asked_text(&self, asked: &AskedGpu, width: usize, text: &mut String) {
        let gpu = asked.spec.found.gpu;
        if let Some(note) = asked.spec.note() {
            let _ = writeln!(text, "  {note}");
        }
        let (each, divided) = if asked.spec.count > 1 {
            (
                format!("{} × ", asked.spec.count),
                ", divided evenly between them",
            )
        } else {
            (String::new(), "")
        };
        let (mark, rest) = if asked.fits {
            let spare = asked.usable_bytes - asked.share_bytes;
            let tight = if self.needs.left_out.is_some() {
                " (activations come on top)"
            } else if spare < asked.usable_bytes / 20 {
                " (tight: workspaces and fragmentation come on top)"
            } else {
                ""
            };
            (
                format!("{GOOD}✓ fits{GOOD:#}"),
                format!("{} to spare{tight}", format_bytes(spare)),
            )
        } else {
            (
                format!("{BAD}✗ does not fit{BAD:#}"),
                format!(
                    "{} too much",
                    format_bytes(asked.share_bytes - asked.usable_bytes)
                ),
            )
        };
        let verdict = format!(
            "{mark} {each}{}{divided}: {} of {} usable, {rest}",
            gpu.name,
            format_bytes(asked.share_bytes),
            format_bytes(asked.usable_bytes),
        );
        let _ = writeln!(text, "{}", wrap(&verdict, width.saturating_sub(2), 2));
        if !asked.fits
            && let Some((name, total)) = asked.cast_that_fits(self.model, self.needs)
        {
            let _ = writeln!(
                text,
                "  hint: --dtype {name} would fit ({})",
                format_bytes(total)
            );
        }
        text.push('\n');
    }

    fn gpus_text(&self, width: usize, all: bool, text: &mut String) {
        let ordered = candidates(self.needs.total_bytes);
        let fitting: Vec<&Candidate> = ordered
            .iter()
            .filter(|candidate| candidate.spare_bytes.is_some())
            .collect();
        if fitting.is_empty() {
            let _ = writeln!(text, "{BAD}no known GPU holds it alone{BAD:#}");
            if let Some(largest) = ordered
                .iter()
                .max_by_key(|candidate| candidate.usable_bytes)
            {
                let several = self.needs.total_bytes.div_ceil(largest.usable_bytes.max(1));
                let several = format!(
                    "divided evenly, {several} × {} would (not counting what each GPU holds besides)",
                    largest.gpu.id
                );
                let _ = writeln!(text, "  {}", wrap(&several, width.saturating_sub(2), 2));
            }
            text.push('\n');
            return;
        }
        let shown = if all {
            fitting.len()
        } else {
            fitting.len().min(LISTED)
        };
        let rows = &fitting[..shown];
        let column =
            |cell: fn(&Candidate) -> String| rows.iter().map(move |candidate| cell(candidate));
        let table = Table::default()
            .column(
                "held by, cheapest first",
                Align::Left,
                0,
                column(|candidate| candidate.gpu.id.clone()),
            )
            .column(
                "usable",
                Align::Right,
                1,
                column(|candidate| format_bytes(candidate.usable_bytes)),
            )
            .column(
                "to spare",
                Align::Right,
                0,
                column(|candidate| candidate.spare_bytes.map_or_else(String::new, format_bytes)),
            )
            .column("about $/h", Align::Right, 2, column(cost))
            .column(
                "",
                Align::Left,
                1,
                rows.iter()
                    .map(|candidate| remark(candidate, self.needs.compute_dtype)),
            )
            .render(width);
        text.push_str(&table);
        if fitting.len() > shown {
            let _ = writeln!(
                text,
                "{DIM}and {} more: --all{DIM:#}",
                fitting.len() - shown
            );
        }
        text.push('\n');
    }

    /// The JSON.
    pub fn json(&self) -> EstimateJson<'_> {
        let needs = self.needs;
        let config = self.model.config.as_ref();
        EstimateJson {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            model: Source {
                path: self.path.display().to_string(),
                format: self.model.format.as_str(),
                model_type: config.map(|config| config.model_type.as_str()),
                parameters: self.model.elements(),
                layers: config.map(|config| config.layers),
                hidden_size: config.map(|config| config.hidden),
                max_positions: config.and_then(|config| config.max_positions),
            },
            weights: self
                .model
                .weights()
                .into_iter()
                .map(|(dtype, group)| {
                    (
                        dtype.name(),
                        Weights {
                            tensors: group.tensors,
                            elements: group.elements,
                            bytes: group.bytes,
                        },
                    )
                })
                .collect(),
            optimizer_bytes: self.model.optimizer_bytes(),
            workload: Load {
                batch: self.workload.batch,
                tokens: needs.tokens,
                cast_dtype: self.workload.dtype.map(DType::name),
                compute_dtype: needs.compute_dtype.name(),
                autocast: self.workload.autocast.map(DType::name),
                training: self.workload.training.map(|training| LoadTraining {
                    optimizer: training.optimizer.name(),
                    accumulation: training.accumulation,
                    checkpointing: training.checkpointing,
                    adapter: self.model.adapter.is_some(),
                }),
            },
            needs: Amounts {
                weight_bytes: needs.weight_bytes,
                kv_bytes_per_token: needs.kv_bytes_per_token,
                kv_bytes: needs.kv_bytes,
                activation_bytes: needs.activation_bytes,
                activations_from_shapes: needs.basis == Basis::Shapes,
                activations_from: needs.basis.as_str(),
                left_out: needs.left_out.as_deref(),
                gradient_bytes: needs.gradient_bytes,
                optimizer_bytes: needs.optimizer_bytes,
                step_bytes: needs.step_bytes,
                workspace_bytes: needs.workspace_bytes,
                total_bytes: needs.total_bytes,
            },
            gpus: candidates(needs.total_bytes)
                .into_iter()
                .map(|candidate| Fit {
                    id: &candidate.gpu.id,
                    usable_bytes: candidate.usable_bytes,
                    fits: candidate.spare_bytes.is_some(),
                    spare_bytes: candidate.spare_bytes,
                    usd_per_hour: candidate.gpu.cost.rank_usd_per_hour(),
                })
                .collect(),
            asked: self.asked.as_ref().map(|asked| Asked {
                gpu: &asked.spec.found.gpu.id,
                count: asked.spec.count,
                usable_bytes: asked.usable_bytes,
                share_bytes: asked.share_bytes,
                fits: asked.fits,
            }),
            assumptions: self
                .model
                .assumptions
                .iter()
                .chain(config.into_iter().flat_map(|config| &config.notes))
                .map(String::as_str)
                .collect(),
            problems: self.model.problems.iter().map(String::as_str).collect(),
        }
    }
}

fn cost(candidate: &Candidate) -> String {
    let cost = &candidate.gpu.cost;
    match (cost.usd_per_hour, cost.rank_usd_per_hour()) {
        (Some(usd), _) => format!("{usd:.2}"),
        // Bought, not rented: see docs/gpus.md.
        (None, Some(usd)) => format!("{usd:.2} owned"),
        (None, None) if candidate.gpu.laptop => "laptop".to_owned(),
        (None, None) => "-".to_owned(),
    }
}

/// What to know before choosing a GPU that holds the model.
fn remark(candidate: &Candidate, compute: DType) -> String {
    /// An estimate from headers does not know workspaces and fragmentation.
    const TIGHT: u64 = 20;
    let mut remarks = Vec::new();
    if candidate
        .spare_bytes
        .is_some_and(|spare| spare < candidate.usable_bytes / TIGHT)
    {
        remarks.push("tight");
    }
    if compute == DType::BF16 && candidate.gpu.rates.bf16.is_none() {
        remarks.push("no native bf16");
    }
    remarks.join(", ")
}

/// `8.03 G`, `124.4 M`.
fn count(number: u64) -> String {
    let number = number as f64;
    for (scale, unit) in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if number >= scale {
            return format!("{:.2} {unit}", number / scale);
        }
    }
    format!("{number}")
}

/// What `oomph estimate --json` writes.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct EstimateJson<'a> {
    format: &'static str,
    version: &'static str,
    model: Source<'a>,
    weights: BTreeMap<&'static str, Weights>,
    optimizer_bytes: u64,
    workload: Load,
    needs: Amounts<'a>,
    gpus: Vec<Fit<'a>>,
    asked: Option<Asked<'a>>,
    assumptions: Vec<&'a str>,
    problems: Vec<&'a str>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Source<'a> {
    path: String,
    format: &'static str,
    model_type: Option<&'a str>,
    parameters: u64,
    layers: Option<u64>,
    hidden_size: Option<u64>,
    max_positions: Option<u64>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Weights {
    tensors: u64,
    elements: u64,
    bytes: u64,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Load {
    batch: u64,
    tokens: Option<u64>,
    cast_dtype: Option<&'static str>,
    compute_dtype: &'static str,
    autocast: Option<&'static str>,
    training: Option<LoadTraining>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct LoadTraining {
    optimizer: &'static str,
    accumulation: u64,
    checkpointing: bool,
    adapter: bool,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Amounts<'a> {
    weight_bytes: u64,
    kv_bytes_per_token: Option<u64>,
    kv_bytes: u64,
    activation_bytes: u64,
    activations_from_shapes: bool,
    activations_from: &'static str,
    left_out: Option<&'a str>,
    gradient_bytes: u64,
    optimizer_bytes: u64,
    step_bytes: u64,
    workspace_bytes: u64,
    total_bytes: u64,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Fit<'a> {
    id: &'a str,
    usable_bytes: u64,
    fits: bool,
    spare_bytes: Option<u64>,
    usd_per_hour: Option<f64>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Asked<'a> {
    gpu: &'a str,
    count: u32,
    usable_bytes: u64,
    share_bytes: u64,
    fits: bool,
}

#[cfg(test)]
mod tests {
    use oomph_estimate::{needs, parse_config};
    use oomph_gpus::parse_spec;

    use super::*;
    use crate::terminal::columns;

    const LLAMA: &str = r#"{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"torch_dtype":"bfloat16","max_position_embeddings":8192}"#;

    fn estimate(gpu: Option<&str>, width: usize) -> String {
        let model = Model::from_config(parse_config(LLAMA).expect("config"));
        let workload = Workload::default();
        let needs = needs(&model, &workload);
        let estimate = Estimate {
            path: Path::new("config.json"),
            model: &model,
            workload: &workload,
            needs: &needs,
            asked: gpu.map(|gpu| AskedGpu::new(parse_spec(gpu).expect(gpu), &needs)),
        };
        anstream::adapter::strip_str(&estimate.text(width, false)).to_string()
    }

    #[test]
    fn a_config_in_words() {
        insta::assert_snapshot!("llama_8b", estimate(None, 80));
        insta::assert_snapshot!("llama_8b_4090", estimate(Some("4090"), 80));
        insta::assert_snapshot!("llama_8b_3060", estimate(Some("rtx-3060"), 80));
    }

    #[test]
    fn lines_fit_the_terminal() {
        for gpu in [None, Some("4090"), Some("rtx-3060")] {
            for width in [60, 80, 100, 200] {
                for line in estimate(gpu, width).lines() {
                    assert!(
                        columns(line) <= width,
                        "{} of {width}: {line}",
                        columns(line)
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_not_known_is_said() {
        let config = r#"{"model_type":"newnet","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4}"#;
        let model = Model::from_config(parse_config(config).expect("config"));
        let workload = Workload {
            training: Some(oomph_estimate::Training {
                optimizer: oomph_estimate::Optimizer::AdamW,
                accumulation: 1,
                checkpointing: false,
            }),
            ..Workload::default()
        };
        let needs = needs(&model, &workload);
        let estimate = Estimate {
            path: Path::new("config.json"),
            model: &model,
            workload: &workload,
            needs: &needs,
            asked: None,
        };
        let text = anstream::adapter::strip_str(&estimate.text(100, false)).to_string();
        assert!(text.contains("a lower bound without activations"), "{text}");
        assert!(text.contains("model_type `newnet`"), "{text}");
        assert!(
            !text.contains("held by") && !text.contains("a pass"),
            "{text}"
        );
    }

    #[test]
    fn json_names_its_format() {
        let model = Model::from_config(parse_config(LLAMA).expect("config"));
        let workload = Workload::default();
        let needs = needs(&model, &workload);
        let estimate = Estimate {
            path: Path::new("config.json"),
            model: &model,
            workload: &workload,
            needs: &needs,
            asked: None,
        };
        let value = serde_json::to_value(estimate.json()).expect("JSON");
        assert_eq!(value["format"], "oomph.estimate/1");
        assert_eq!(value["needs"]["kv_bytes_per_token"], 131_072);
        assert_eq!(value["weights"]["bf16"]["bytes"], 16_060_522_496_u64);
    }
}
