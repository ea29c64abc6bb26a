//! `oomph estimate`: what a model file needs, from its headers, and which GPUs would hold it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};
use anyhow::{Context as _, bail};
use oomph_estimate::{
    Candidate, DType, Model, ModelConfig, Needs, OnnxOptions, Workload, candidates, needs,
    parse_config, parse_index, read_any,
};
use oomph_gpus::{GpuSpec, format_bytes, parse_spec};
use serde::Serialize;

use crate::table::{Align, Table, terminal_width};
use crate::{json, stdout};

/// Version of the JSON. Fields may be added; a change of meaning is a new number.
const FORMAT: &str = "oomph.estimate/1";
/// GPUs listed without `--all`.
const LISTED: usize = 8;
/// A `config.json` or an index of shards is text of at most some megabytes.
const MAX_JSON: u64 = 64 << 20;
const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
const WARN: Style = AnsiColor::Yellow.on_default();

/// Arguments of `oomph estimate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Reads headers only: nothing is loaded, nothing in a file is run.\n\nExamples:\n  oomph estimate model.safetensors\n  oomph estimate ./Llama-3.1-8B --tokens 8192 --batch 4\n  oomph estimate config.json --dtype int8 --gpu rtx-4090\n  oomph estimate net.onnx --dim batch=16"
)]
pub struct Args {
    /// A .safetensors, .gguf, .onnx, .pt/.pth/.bin file, a config.json, or a directory with them
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// Cast floating weights to TYPE: f32, f16, bf16, f8, int8, int4
    #[arg(long, value_name = "TYPE", value_parser = parse_dtype)]
    dtype: Option<DType>,

    /// Type of the KV cache [default: that of the computation]
    #[arg(long, value_name = "TYPE", value_parser = parse_dtype)]
    kv_dtype: Option<DType>,

    /// Sequences or samples at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    batch: u64,

    /// Tokens per sequence [default: the model's longest, up to 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    tokens: Option<u64>,

    /// Size of an open dimension of an ONNX model; NAME=N, may be repeated
    #[arg(long, value_name = "NAME=N", value_parser = parse_dimension)]
    dim: Vec<(String, u64)>,

    /// Ask about this GPU only; exit status 3 if it does not hold the model. NAME:COUNT for several
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,

    /// List every GPU that would hold it
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

fn parse_dimension(text: &str) -> Result<(String, u64), String> {
    let expected = "expected NAME=N, such as batch=16";
    let (name, size) = text.split_once('=').ok_or(expected)?;
    let size = size.parse().map_err(|_| expected)?;
    Ok((name.to_owned(), size))
}

impl Args {
    /// Reads the model and prints what it needs.
    pub fn run(self) -> anyhow::Result<i32> {
        let spec = self.gpu.as_deref().map(parse_spec).transpose()?;
        let options = OnnxOptions {
            dimensions: self.dim.iter().cloned().collect(),
            batch: self.batch,
        };
        let model = read_model(&self.model, &options)?;
        let workload = Workload {
            batch: self.batch,
            tokens: self.tokens,
            dtype: self.dtype,
            kv_dtype: self.kv_dtype,
        };
        let needs = needs(&model, &workload);
        let verdict = spec.map(|spec| Verdict::new(spec, &needs));
        let result = Estimate {
            path: &self.model,
            model: &model,
            workload: &workload,
            needs: &needs,
            verdict,
        };
        let status = match &result.verdict {
            Some(verdict) if !verdict.fits => crate::EXIT_FINDINGS,
            _ => crate::EXIT_OK,
        };
        if let Some(target) = &self.json {
            json::write(target, &result.json())?;
            if json::is_stdout(target) {
                return Ok(status);
            }
        }
        stdout(&result.text(terminal_width(), self.all))?;
        Ok(status)
    }
}

/// Reads a file, or the files of a directory that make one model.
fn read_model(path: &Path, options: &OnnxOptions) -> anyhow::Result<Model> {
    let metadata =
        std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    if metadata.is_dir() {
        return read_directory(path, options);
    }
    let name = file_name(path);
    if name.ends_with(".index.json") {
        let directory = path.parent().unwrap_or(Path::new("."));
        let files = parse_index(&read_text(path)?).with_context(|| path.display().to_string())?;
        return read_parts(directory, &files, options);
    }
    if extension(path) == "json" {
        return Ok(Model::from_config(read_config(path)?));
    }
    let mut model = read_file(path, options)?;
    if let Some((part, of)) = shard(&name) {
        model.problem(format!(
            "this is part {part} of {of}; give the directory or the .index.json for the whole model"
        ));
    }
    let config = path.with_file_name("config.json");
    if model.config.is_none()
        && matches!(
            extension(path).as_str(),
            "safetensors" | "bin" | "pt" | "pth"
        )
        && config.is_file()
    {
        add_config(&mut model, &config);
    }
    Ok(model)
}

fn read_directory(directory: &Path, options: &OnnxOptions) -> anyhow::Result<Model> {
    let mut names = BTreeSet::new();
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", directory.display()))?;
        names.insert(entry.file_name().to_string_lossy().into_owned());
    }
    // What transformers would load, in its order of preference.
    for index in [
        "model.safetensors.index.json",
        "pytorch_model.bin.index.json",
    ] {
        if names.contains(index) {
            let path = directory.join(index);
            let files =
                parse_index(&read_text(&path)?).with_context(|| path.display().to_string())?;
            return read_parts(directory, &files, options);
        }
    }
    for single in ["model.safetensors", "pytorch_model.bin"] {
        if names.contains(single) {
            return read_parts(directory, &[single.to_owned()], options);
        }
    }
    for wanted in ["safetensors", "gguf", "onnx", "bin", "pt", "pth"] {
        let files: Vec<String> = names
            .iter()
            .filter(|name| extension(Path::new(name)) == wanted)
            .cloned()
            .collect();
        match files.as_slice() {
            [] => {}
            [_] => return read_parts(directory, &files, options),
            [first, ..] if files.iter().all(|name| shard(name).is_some()) => {
                // Several models may be sharded side by side; their parts say so.
                let of = shard(first).map(|(_, of)| of);
                if usize::try_from(of.unwrap_or(0)).ok() == Some(files.len()) {
                    return read_parts(directory, &files, options);
                }
                bail!(
                    "{}: expected one sharded model of {} files, found {}; name an .index.json or a file",
                    directory.display(),
                    of.unwrap_or(0),
                    files.len()
                );
            }
            _ => bail!(
                "{} holds {} .{wanted} files and no index: which one? {}",
                directory.display(),
                files.len(),
                files.join(", ")
            ),
        }
    }
    if names.contains("config.json") {
        return Ok(Model::from_config(read_config(
            &directory.join("config.json"),
        )?));
    }
    bail!(
        "{}: expected .safetensors, .gguf, .onnx, .pt/.pth/.bin files or a config.json, found none",
        directory.display()
    )
}

fn read_parts(directory: &Path, files: &[String], options: &OnnxOptions) -> anyhow::Result<Model> {
    let mut model: Option<Model> = None;
    let mut missing = Vec::new();
    for name in files {
        let path = directory.join(name);
        if !path.is_file() {
            missing.push(name.as_str());
            continue;
        }
        let part = read_file(&path, options)?;
        match &mut model {
            None => model = Some(part),
            Some(model) => model.extend(part),
        }
    }
    let config = directory.join("config.json");
    let Some(mut model) = model else {
        if config.is_file() {
            let mut model = Model::from_config(read_config(&config)?);
            model.problem(format!(
                "no weights are here: {} missing",
                missing.join(", ")
            ));
            return Ok(model);
        }
        bail!(
            "{}: none of the model's files is here: {}",
            directory.display(),
            missing.join(", ")
        );
    };
    if !missing.is_empty() {
        model.problem(format!(
            "the weights are a lower bound: {} of {} files missing ({})",
            missing.len(),
            files.len(),
            missing.join(", ")
        ));
    }
    if config.is_file() && model.config.is_none() {
        add_config(&mut model, &config);
    }
    Ok(model)
}

fn read_file(path: &Path, options: &OnnxOptions) -> anyhow::Result<Model> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    read_any(file, &extension(path), options).with_context(|| path.display().to_string())
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let length = std::fs::metadata(path)
        .with_context(|| format!("cannot read {}", path.display()))?
        .len();
    if length > MAX_JSON {
        bail!(
            "{} has {length} bytes; expected at most {MAX_JSON} of JSON",
            path.display()
        );
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn read_config(path: &Path) -> anyhow::Result<ModelConfig> {
    parse_config(&read_text(path)?).with_context(|| path.display().to_string())
}

/// The weights are what counts; a `config.json` beside them adds the KV cache if it can.
fn add_config(model: &mut Model, path: &Path) {
    match read_config(path) {
        Ok(config) => {
            // Both counts are of parameters; files add buffers, and may lack tied weights.
            if let Some(parameters) = config.parameters {
                let read = model.elements();
                if read.abs_diff(parameters) > parameters / 20 {
                    model.problem(format!(
                        "the files hold {read} elements where config.json describes {parameters} parameters"
                    ));
                }
            }
            model.config = Some(config);
        }
        Err(error) => model.problem(format!("no KV cache: {error:#}")),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn extension(path: &Path) -> String {
    path.extension()
        .map(|extension| extension.to_string_lossy().to_ascii_lowercase())
        .unwrap_or_default()
}

/// `model-00001-of-00002.safetensors` is part 1 of 2.
fn shard(name: &str) -> Option<(u32, u32)> {
    let (stem, _) = name.rsplit_once('.')?;
    let (rest, of) = stem.rsplit_once("-of-")?;
    let (_, part) = rest.rsplit_once('-')?;
    Some((part.parse().ok()?, of.parse().ok()?))
}

/// Whether the GPUs that were asked for hold the model.
struct Verdict {
    spec: GpuSpec,
    /// Share of one GPU if the model is divided evenly.
    share_bytes: u64,
    usable_bytes: u64,
    fits: bool,
}

impl Verdict {
    fn new(spec: GpuSpec, needs: &Needs) -> Self {
        let share_bytes = needs.total_bytes.div_ceil(u64::from(spec.count));
        let usable_bytes = spec.found.gpu.usable_bytes();
        Self {
            share_bytes,
            usable_bytes,
            fits: share_bytes <= usable_bytes,
            spec,
        }
    }
}

struct Estimate<'a> {
    path: &'a Path,
    model: &'a Model,
    workload: &'a Workload,
    needs: &'a Needs,
    verdict: Option<Verdict>,
}

impl Estimate<'_> {
    fn text(&self, width: usize, all: bool) -> String {
        let mut text = String::new();
        self.header(&mut text);
        self.needs_text(&mut text);
        match &self.verdict {
            Some(verdict) => self.verdict_text(verdict, &mut text),
            None => self.gpus_text(width, all, &mut text),
        }
        let notes = self.model.config.iter().flat_map(|config| &config.notes);
        for note in self.model.assumptions.iter().chain(notes) {
            let _ = writeln!(text, "{DIM}assumes  {note}{DIM:#}");
        }
        for problem in &self.model.problems {
            let _ = writeln!(text, "{WARN}problem{WARN:#}  {problem}");
        }
        text
    }

    fn header(&self, text: &mut String) {
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
            .map_or_else(|| self.path.display().to_string(), |_| file_name(self.path));
        let _ = writeln!(
            text,
            "{BOLD}{name}{BOLD:#} · {}{kind} · {} parameters\n",
            model.format.as_str(),
            count(model.elements())
        );
    }

    fn needs_text(&self, text: &mut String) {
        let needs = self.needs;
        let mut row = |label: &str, bytes: u64, note: &str| {
            let _ = writeln!(
                text,
                "  {label:<14}{:>11}   {DIM}{note}{DIM:#}",
                size(bytes)
            );
        };
        let stored: Vec<String> = {
            let mut groups: Vec<_> = self.model.weights().into_iter().collect();
            groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.bytes));
            groups
                .into_iter()
                .map(|(dtype, group)| format!("{dtype} {}", size(group.bytes)))
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
                    size(per_token),
                    self.workload.batch
                ),
            );
        }
        if needs.activation_bytes > 0 {
            let note = if needs.activations_from_shapes {
                "the most that is alive at once, from the file's shapes".to_owned()
            } else {
                format!(
                    "estimated from the layers' widths, {} × {} tokens at once in {}",
                    self.workload.batch,
                    needs.tokens.unwrap_or(0),
                    needs.compute_dtype
                )
            };
            row("activations", needs.activation_bytes, &note);
        }
        let what = match (needs.kv_bytes_per_token, needs.activation_bytes) {
            (None, 0) => "weights alone: no shapes and no config.json to tell more",
            _ => "to run it, beside the CUDA context",
        };
        row("total", needs.total_bytes, what);
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

    fn verdict_text(&self, verdict: &Verdict, text: &mut String) {
        let gpu = verdict.spec.found.gpu;
        if let Some(note) = verdict.spec.note() {
            let _ = writeln!(text, "  {note}");
        }
        let (each, divided) = if verdict.spec.count > 1 {
            (
                format!("{} × ", verdict.spec.count),
                ", divided evenly between them",
            )
        } else {
            (String::new(), "")
        };
        if verdict.fits {
            let spare = verdict.usable_bytes - verdict.share_bytes;
            let tight = if spare < verdict.usable_bytes / 20 {
                " (tight: workspaces and fragmentation come on top)"
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "{GOOD}✓ fits{GOOD:#} {each}{}{divided}: {} of {} usable, {} to spare{tight}",
                gpu.name,
                size(verdict.share_bytes),
                size(verdict.usable_bytes),
                size(spare)
            );
        } else {
            let _ = writeln!(
                text,
                "{BAD}✗ does not fit{BAD:#} {each}{}{divided}: {} of {} usable, {} too much",
                gpu.name,
                size(verdict.share_bytes),
                size(verdict.usable_bytes),
                size(verdict.share_bytes - verdict.usable_bytes)
            );
            let smaller = self.smaller(verdict);
            if let Some(hint) = smaller {
                let _ = writeln!(text, "  {hint}");
            }
        }
        text.push('\n');
    }

    /// The first cast of the weights with which it would fit.
    fn smaller(&self, verdict: &Verdict) -> Option<String> {
        [DType::BF16, DType::F8_E4M3, DType::I4]
            .into_iter()
            .zip(["bf16", "int8", "int4"])
            .find_map(|(dtype, name)| {
                let weights = self.model.weight_bytes_as(dtype);
                if weights >= self.needs.weight_bytes {
                    return None;
                }
                let total = self.needs.total_bytes - self.needs.weight_bytes + weights;
                (total.div_ceil(u64::from(verdict.spec.count)) <= verdict.usable_bytes)
                    .then(|| format!("hint: --dtype {name} would fit ({})", size(total)))
            })
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
                let _ = writeln!(
                    text,
                    "  divided evenly, {several} × {} would (not counting what every GPU holds for itself)",
                    largest.gpu.id
                );
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
                column(|candidate| size(candidate.usable_bytes)),
            )
            .column(
                "to spare",
                Align::Right,
                0,
                column(|candidate| candidate.spare_bytes.map_or_else(String::new, size)),
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

    fn json(&self) -> Report<'_> {
        let needs = self.needs;
        let config = self.model.config.as_ref();
        Report {
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
            },
            needs: Amounts {
                weight_bytes: needs.weight_bytes,
                kv_bytes_per_token: needs.kv_bytes_per_token,
                kv_bytes: needs.kv_bytes,
                activation_bytes: needs.activation_bytes,
                activations_from_shapes: needs.activations_from_shapes,
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
            asked: self.verdict.as_ref().map(|verdict| Asked {
                gpu: &verdict.spec.found.gpu.id,
                count: verdict.spec.count,
                usable_bytes: verdict.usable_bytes,
                share_bytes: verdict.share_bytes,
                fits: verdict.fits,
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

fn size(bytes: u64) -> String {
    format_bytes(bytes)
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

#[derive(Serialize)]
struct Report<'a> {
    format: &'static str,
    version: &'static str,
    model: Source<'a>,
    weights: BTreeMap<&'static str, Weights>,
    optimizer_bytes: u64,
    workload: Load,
    needs: Amounts,
    gpus: Vec<Fit<'a>>,
    asked: Option<Asked<'a>>,
    assumptions: Vec<&'a str>,
    problems: Vec<&'a str>,
}

#[derive(Serialize)]
struct Source<'a> {
    path: String,
    format: &'static str,
    model_type: Option<&'a str>,
    parameters: u64,
    layers: Option<u64>,
    hidden_size: Option<u64>,
    max_positions: Option<u64>,
}

#[derive(Serialize)]
struct Weights {
    tensors: u64,
    elements: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Load {
    batch: u64,
    tokens: Option<u64>,
    cast_dtype: Option<&'static str>,
    compute_dtype: &'static str,
}

#[derive(Serialize)]
struct Amounts {
    weight_bytes: u64,
    kv_bytes_per_token: Option<u64>,
    kv_bytes: u64,
    activation_bytes: u64,
    activations_from_shapes: bool,
    total_bytes: u64,
}

#[derive(Serialize)]
struct Fit<'a> {
    id: &'a str,
    usable_bytes: u64,
    fits: bool,
    spare_bytes: Option<u64>,
    usd_per_hour: Option<f64>,
}

#[derive(Serialize)]
struct Asked<'a> {
    gpu: &'a str,
    count: u32,
    usable_bytes: u64,
    share_bytes: u64,
    fits: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

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
            verdict: gpu.map(|gpu| Verdict::new(parse_spec(gpu).expect(gpu), &needs)),
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
    fn shards_are_recognised() {
        assert_eq!(shard("model-00001-of-00002.safetensors"), Some((1, 2)));
        assert_eq!(shard("m-1-of-30.gguf"), Some((1, 30)));
        assert_eq!(shard("model.safetensors"), None);
        assert_eq!(shard("state-of-the-art.bin"), None);
    }

    /// A safetensors file of one tensor.
    fn safetensors(elements: u64) -> Vec<u8> {
        let header = format!(
            r#"{{"w{elements}":{{"dtype":"F16","shape":[{elements}],"data_offsets":[0,{}]}}}}"#,
            elements * 2
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + elements as usize * 2, 0);
        bytes
    }

    #[test]
    fn directories_are_read_as_transformers_would() {
        let directory = tempfile::tempdir().expect("directory");
        let at = |name: &str| directory.path().join(name);
        let read = || read_model(directory.path(), &OnnxOptions::default());
        let message = |result: anyhow::Result<Model>| format!("{:#}", result.expect_err("error"));
        assert!(message(read()).contains("found none"));
        std::fs::write(at("config.json"), LLAMA).expect("write");
        assert_eq!(read().expect("config").elements(), 8_030_261_248);
        std::fs::write(at("a.safetensors"), safetensors(10)).expect("write");
        let model = read().expect("weights");
        assert_eq!(model.elements(), 10);
        assert!(
            model.problems[0].contains("config.json describes"),
            "{:?}",
            model.problems
        );
        assert!(model.config.is_some());
        std::fs::write(at("b.safetensors"), safetensors(20)).expect("write");
        assert!(message(read()).contains("which one? a.safetensors, b.safetensors"));
        std::fs::write(
            at("model.safetensors.index.json"),
            r#"{"weight_map":{"w10":"a.safetensors","w20":"b.safetensors","w30":"c.safetensors"}}"#,
        )
        .expect("write");
        let model = read().expect("index");
        assert_eq!(model.elements(), 30);
        assert!(
            model
                .problems
                .iter()
                .any(|p| p.contains("1 of 3 files missing (c.safetensors)"))
        );
        assert!(message(read_model(&at("none.pt"), &OnnxOptions::default())).contains("none.pt"));
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
            verdict: None,
        };
        let value = serde_json::to_value(estimate.json()).expect("JSON");
        assert_eq!(value["format"], "oomph.estimate/1");
        assert_eq!(value["needs"]["kv_bytes_per_token"], 131_072);
        assert_eq!(value["weights"]["bf16"]["bytes"], 16_060_522_496_u64);
    }
}
