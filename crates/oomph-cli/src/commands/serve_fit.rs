//! `oomph serve-fit`: flags of vLLM with which a model fits, found by starting it on virtual GPUs.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use oomph_bytes::parse_capacity;
use oomph_job::{
    Attempt, Host, Job, Program, RunDirectory, RunFile, VirtualGpu, Watch, host, ranks, shell_line,
    signals,
};
use oomph_plan::{Stop, Stopped};
use oomph_report::serving::serving_report;
use oomph_report::terminal::width;
use oomph_run::serving::{
    Alternative, Asked, FORMAT, Flags, Needs, Outcome, Search, Start, chosen, needs, next,
};
use oomph_run::{Verdict, summary::summarize};

use crate::progress::Progress;
use crate::{ExitStatus, json, stdout};

/// What the server writes when it waits for requests.
const READY: &str = "Application startup complete.";

/// How much more memory than the GPU's the start has that measures what is needed.
const AMPLE: u64 = 16;

/// A host has at most so many GPUs, for which a model's needs are calculated.
const HOST: u32 = 8;

/// Flags of `vllm serve` that each start has already, and what to give instead.
const OWN: [(&str, &str); 6] = [
    ("--max-model-len", ": give it before the --"),
    (
        "--tensor-parallel-size",
        ": give --gpu so many GPUs, such as l40s:2",
    ),
    ("-tp", ": give --gpu so many GPUs, such as l40s:2"),
    ("--load-format", ", so that no weights are read"),
    ("--host", ""),
    ("--port", ", to any that is free"),
];

/// Arguments of `oomph serve-fit`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "oomph serve-fit [OPTIONS] --gpu NAME MODEL [-- FLAGS]",
    after_help = "Starts vllm serve on virtual GPUs, without weights, each time until it is ready or fails: first as it is, then with a larger --gpu-memory-utilization, --max-num-seqs, --enforce-eager and an 8-bit KV cache, each added to those before; then on more GPUs. If nothing holds the length that was asked for, it finds the longest that does.\n\nExamples:\n  oomph serve-fit ./Llama-3.1-8B --gpu l40s                   the model's own length, one request\n  oomph serve-fit ./Qwen3-32B --gpu h100-80gb:4 --requests 8  on 1, 2 or 4 GPUs\n  oomph serve-fit ./model --gpu l40s -- --quantization fp8    with a flag for every start\n\nExit status: 0 it fits; 1 vLLM failed; 2 wrong usage, or no vLLM; 3 what was asked for does not fit; 4 --max-time or SIGTERM ended the search; 130 Ctrl-C ended it."
)]
pub struct Args {
    /// A model's directory with its config.json; weights are not read
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// The virtual GPU, such as l40s, or at most so many of them: h100-80gb:4
    #[arg(long, value_name = "NAME")]
    gpu: String,

    /// Use this much memory instead of the GPU's, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_capacity)]
    memory: Option<u64>,

    /// Tokens of the longest request [default: the model's longest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    max_model_len: Option<u64>,

    /// How many requests of that length are to have room at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,

    /// Only flags that keep results: no 8-bit KV cache
    #[arg(long)]
    keep_results: bool,

    /// End the search after this long, such as 5m, with what is known by then
    #[arg(long, value_name = "DURATION", value_parser = crate::values::duration)]
    max_time: Option<Duration>,

    /// Where to keep the output of the starts [default: oomph-report/vllm-N]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print nothing
    #[arg(short, long)]
    quiet: bool,

    /// Flags of vllm serve for every start
    #[arg(value_name = "FLAGS", last = true)]
    given: Vec<String>,
}

/// What every start of a search has in common.
struct Searching<'a> {
    args: &'a Args,
    asked: &'a Asked,
    spec: &'a oomph_gpus::GpuSpec,
    stop: Stop,
    directory: &'a RunDirectory,
    host: &'static Host,
}

/// What ended a search before it was through.
struct End {
    why: String,
    status: ExitStatus,
}

impl Args {
    /// Starts the engine until the search is over, and prints what it found.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        json::expect_place(self.json.as_deref())?;
        let spec = oomph_gpus::parse_spec(&self.gpu)?;
        let asked = self.asked(&spec)?;
        let host = host::get()?;
        if !host
            .paths
            .iter()
            .any(|path| path.join("vllm/__init__.py").is_file())
        {
            bail!(
                "vLLM is not installed beside oomph: {} -m pip install vllm",
                host.python.display()
            );
        }
        let stop = Stop {
            interrupted: signals::interrupts(),
            ..Stop::after(self.max_time)
        };
        let directory =
            RunDirectory::choose(self.out.as_deref(), &self.program(&asked, None, host)?)?;
        // `oomph clean` leaves the directory alone between two starts, too.
        let _lock = directory.lock();
        let searching = Searching {
            args: &self,
            asked: &asked,
            spec: &spec,
            stop,
            directory: &directory,
            host,
        };
        let (mut starts, mut ended) = (Vec::new(), None);
        while let Some(flags) = next(&asked, &starts) {
            let name = format!("start-{}", starts.len() + 1);
            match searching.start(flags, asked.memory_bytes, &name)? {
                Ok(start) => starts.push(start),
                Err(end) => {
                    ended = Some(end);
                    break;
                }
            }
        }
        let mut measured = None;
        if let Some(last) = starts.last().filter(|_| ended.is_none())
            && chosen(&asked, &starts).is_none()
            && last.outcome == Outcome::OutOfMemory
            && needs(&asked, &starts).is_none()
        {
            let flags = last.flags.clone();
            match searching.start(flags, AMPLE * asked.memory_bytes, "measured")? {
                Ok(start) => measured = Some(start),
                Err(end) => ended = Some(end),
            }
        }
        self.say(asked, starts, measured, ended, &directory)
    }

    fn asked(&self, spec: &oomph_gpus::GpuSpec) -> anyhow::Result<Asked> {
        for word in &self.given {
            let name = word.split('=').next().unwrap_or(word);
            if let Some((_, instead)) = OWN.iter().find(|(own, _)| *own == name.replace('_', "-")) {
                bail!("{name}: serve-fit sets this flag of vllm serve itself{instead}");
            }
        }
        let (model, file) = (self.model.display(), self.model.join("config.json"));
        if !file.is_file() {
            if self.model.exists() {
                bail!("{model}: expected a model's directory, with its config.json");
            }
            bail!(
                "{model}: there is no such directory. serve-fit downloads nothing: give a directory with the model's config.json (for a model of the Hugging Face Hub: hf download {model} config.json --local-dir DIRECTORY)"
            );
        }
        let config = self.config()?;
        // Of a model for text and images, that of its text.
        let number = |name: &str| {
            [&config["text_config"][name], &config[name]]
                .into_iter()
                .find_map(serde_json::Value::as_u64)
        };
        let Some(max_model_len) = self.max_model_len.or(number("max_position_embeddings")) else {
            bail!(
                "{}: it does not say the model's longest request: give --max-model-len",
                file.display()
            );
        };
        Ok(Asked {
            model: self.model.to_string_lossy().into_owned(),
            gpu: spec.found.gpu.id.clone(),
            gpus: spec.count,
            memory_bytes: self.memory.unwrap_or(spec.found.gpu.memory.total_bytes),
            max_model_len,
            requests: self.requests,
            keep_results: self.keep_results,
            heads: number("num_attention_heads").unwrap_or(0),
            given: self.given.clone(),
        })
    }

    fn config(&self) -> anyhow::Result<serde_json::Value> {
        let file = self.model.join("config.json");
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file.display()))
    }

    /// Whether the model's weights are neither quantized nor of another type than float16 or bfloat16.
    fn is_in_16_bits(&self) -> anyhow::Result<bool> {
        let config = self.config()?;
        let of_text = &config["text_config"];
        let dtype = [of_text, &config]
            .into_iter()
            .flat_map(|part| [&part["dtype"], &part["torch_dtype"]])
            .find_map(serde_json::Value::as_str);
        let is_plain =
            config["quantization_config"].is_null() && of_text["quantization_config"].is_null();
        Ok(is_plain && matches!(dtype, Some("float16" | "bfloat16")))
    }

    /// `vllm serve`, without weights and at any port.
    fn program(
        &self,
        asked: &Asked,
        flags: Option<&Flags>,
        host: &Host,
    ) -> anyhow::Result<Program> {
        let mut argv: Vec<OsString> =
            vec!["vllm".into(), "serve".into(), self.model.clone().into()];
        argv.extend(
            [
                "--load-format",
                "dummy",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
            ]
            .map(OsString::from),
        );
        let has_tokenizer = [
            "tokenizer.json",
            "tokenizer_config.json",
            "tokenizer.model",
            "tekken.json",
            "vocab.json",
        ]
        .iter()
        .any(|name| self.model.join(name).is_file());
        if !has_tokenizer {
            argv.push("--skip-tokenizer-init".into());
        }
        argv.extend(
            flags
                .into_iter()
                .flat_map(|flags| flags.words(asked))
                .map(OsString::from),
        );
        Program::new(argv, host)
    }

    fn say(
        &self,
        asked: Asked,
        starts: Vec<Start>,
        measured: Option<Start>,
        ended: Option<End>,
        directory: &RunDirectory,
    ) -> anyhow::Result<ExitStatus> {
        let best = chosen(&asked, &starts);
        let enough = best.is_some_and(|at| {
            starts[at].holds(&asked) && starts[at].flags.max_model_len == asked.max_model_len
        });
        let command = best.map(|at| {
            let words = starts[at].flags.words(&asked);
            let all = ["vllm", "serve", &asked.model].into_iter();
            shell_line(all.chain(words.iter().map(String::as_str)))
        });
        let ready = starts.iter().any(|start| start.outcome != Outcome::Failed);
        let status = match &ended {
            _ if enough => ExitStatus::Success,
            Some(end) => end.status,
            None if ready => ExitStatus::Findings,
            None => ExitStatus::Failed,
        };
        let shows = measured
            .as_ref()
            .map_or(starts.as_slice(), std::slice::from_ref);
        let needs = needs(&asked, shows).filter(|_| !enough);
        let in_16_bits =
            !asked.gives("--quantization") && !asked.gives("-q") && self.is_in_16_bits()?;
        let search = Search {
            format: FORMAT,
            would_fit: needs.map_or_else(Vec::new, |needs| would_fit(&asked, needs, in_16_bits)),
            asked,
            starts,
            chosen: best,
            enough,
            command,
            measured,
            needs,
            stopped: ended.map(|end| end.why),
        };
        if let Some(target) = &self.json {
            json::write(target, &search)?;
        }
        if !self.quiet && !self.json.as_deref().is_some_and(json::is_stdout) {
            stdout(&serving_report(&search, &shown(directory.path()), width()))?;
        }
        Ok(status)
    }
}

impl Searching<'_> {
    /// Starts the engine once, on GPUs of so much memory; its output goes into a directory of that name. `Err` says what
    /// ended the search meanwhile.
    fn start(
        &self,
        flags: Flags,
        memory_bytes: u64,
        name: &str,
    ) -> anyhow::Result<Result<Start, End>> {
        if let Some(end) = self.end() {
            return Ok(Err(end));
        }
        let place = RunDirectory::prepare(self.directory.path().join(name))?;
        let began = Instant::now();
        let mut spec = self.spec.clone();
        spec.count = flags.gpus;
        let job = Job {
            watch: Watch {
                stop: Some(self.stop.clone()),
                until: Some(READY),
                // A start has nothing to save.
                grace: Duration::ZERO,
                ..Watch::default()
            },
            gpu: Some(VirtualGpu {
                total_bytes: memory_bytes,
                ..VirtualGpu::new(spec)
            }),
            // Each is a first start, which compiles: what a later one finds compiled leaves more for the cache.
            variables: vec![("VLLM_DISABLE_COMPILE_CACHE", "1")],
            ..Job::new(
                self.host,
                self.args.program(self.asked, Some(&flags), self.host)?,
            )
        };
        let log = place.file(RunFile::Log);
        let doing = format!("starting vLLM with {}", flags.words(self.asked).join(" "));
        let limit = job.total_bytes();
        let attempt = {
            let _shown = Progress::new(self.args.quiet).begin(&doing, "");
            ranks::attempt(&job, None, &place, limit, Some(&log), "starting")
        };
        if let Some(end) = self.end() {
            return Ok(Err(end));
        }
        let (attempt, _) = attempt?;
        if let Some(reason) = place.refusal() {
            bail!("{reason}");
        }
        Ok(Ok(start_of(flags, &attempt, &log, limit, began.elapsed())))
    }

    /// What ends the search, if something does.
    fn end(&self) -> Option<End> {
        let status = |why| match why {
            Stopped::Interrupted => ExitStatus::Interrupted,
            Stopped::MaxTime => ExitStatus::NoVerdict,
        };
        if let Some(signal) = signals::received() {
            return Some(End {
                why: format!("ended by {signal}"),
                status: ExitStatus::NoVerdict,
            });
        }
        let why = self.stop.check().err()?;
        Some(End {
            why: why.to_string(),
            status: status(why),
        })
    }
}

/// How a start came out, by its record and its log.
fn start_of(
    flags: Flags,
    attempt: &Attempt,
    log: &Path,
    limit: Option<u64>,
    took: Duration,
) -> Start {
    let said = fs::read(log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let mut summary = attempt
        .record
        .as_ref()
        .map(|record| summarize(record, attempt.trace.as_ref(), limit));
    if let Some(summary) = &mut summary {
        summary.join_processes(&attempt.processes);
    }
    let engine = summary
        .as_ref()
        .and_then(|summary| summary.engine.clone())
        .unwrap_or_default();
    let outcome = if said.contains(READY) && engine.has_started() {
        Outcome::Ready
    } else if summary.is_some_and(|summary| summary.verdict == Verdict::OutOfMemory) {
        Outcome::OutOfMemory
    } else {
        Outcome::Failed
    };
    Start {
        flags,
        outcome,
        engine,
        why: (outcome != Outcome::Ready).then(|| {
            last_error(&said).unwrap_or_else(|| {
                format!("vLLM ended with {}, and named no error", attempt.status)
            })
        }),
        seconds: took.as_secs_f64(),
    }
}

/// GPUs and flags that would be enough: more of the same, other ones, and weights of 8 bits.
fn would_fit(asked: &Asked, needs: Needs, in_16_bits: bool) -> Vec<Alternative> {
    let share = asked.share();
    let holds = |needs: Needs, memory: u64| needs.total_bytes() as f64 <= share * memory as f64;
    let alternative = |gpu: &str, needs: Needs, flags: &[&str]| Alternative {
        gpu: gpu.to_owned(),
        gpus: needs.gpus,
        flags: flags.iter().map(ToString::to_string).collect(),
        needed_bytes: needs.total_bytes(),
    };
    let counts = || {
        (0..)
            .map(|power| 1 << power)
            .take_while(|&gpus| gpus <= HOST)
    };
    let more = counts()
        .filter(|&gpus| gpus > asked.gpus && asked.can_share(gpus))
        .map(|gpus| needs.on(gpus))
        .find(|&needs| holds(needs, asked.memory_bytes));
    let mut found: Vec<_> = more
        .map(|needs| alternative(&asked.gpu, needs, &[]))
        .into_iter()
        .collect();
    for needs in [1, needs.gpus].map(|gpus| needs.on(gpus)) {
        // vLLM's usual type, bfloat16, is there from Ampere on.
        let others = (oomph_gpus::catalogue().iter())
            .filter(|gpu| !gpu.laptop && gpu.compute_capability >= (8, 0))
            .filter(|gpu| holds(needs, gpu.memory.total_bytes));
        let price = |gpu: &&oomph_gpus::Gpu| gpu.cost.rank_usd_per_hour().unwrap_or(f64::INFINITY);
        let cheapest = others.min_by(|a, b| price(a).total_cmp(&price(b)));
        found.extend(cheapest.map(|gpu| alternative(&gpu.id, needs, &[])));
    }
    let changed = needs.in_8_bits();
    if in_16_bits && !asked.keep_results && holds(changed, asked.memory_bytes) {
        found.push(alternative(&asked.gpu, changed, &["--quantization", "fp8"]));
    }
    found.dedup();
    found
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// What a server says last of an error, without the words that each of its lines begins with: an exception, or what is wrong with
/// its command line. That its engine did not come up is no cause.
fn last_error(log: &str) -> Option<String> {
    const FOLLOWS: [&str; 2] = [
        "Engine core initialization failed",
        "WorkerProc initialization failed",
    ];
    let lines: Vec<&str> = log.lines().collect();
    lines.iter().enumerate().rev().find_map(|(number, line)| {
        if let Some((_, said)) = line.split_once(": error: ") {
            return Some(said.to_owned());
        }
        let at = line.find("Error: ")?;
        let begin = line[..at].rfind(' ').map_or(0, |space| space + 1);
        let said = &line[begin..];
        let is_name = line[begin..at]
            .chars()
            .all(|c| c.is_alphanumeric() || c == '.' || c == '_');
        if !is_name || FOLLOWS.iter().any(|words| said.contains(words)) {
            return None;
        }
        // pydantic counts its errors in the first line, and says the first one in the second.
        let of_pydantic = || lines.get(number + 1).map(|next| without_process(next));
        let said = (said
            .contains(" validation error")
            .then(of_pydantic)
            .flatten())
        .unwrap_or(said);
        Some(said.to_owned())
    })
}

/// A line of a server without the process that wrote it.
fn without_process(line: &str) -> &str {
    let said = line
        .split_once(" pid=")
        .and_then(|(_, rest)| rest.split_once(')'));
    said.map_or(line, |(_, said)| said).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginnings of lines as vLLM writes them.
    #[test]
    fn the_cause_is_said_and_not_what_follows_from_it() {
        let log = "(EngineCore pid=7) INFO 11-26 14:45:46 [core.py:116] Initializing an engine\n\
                   (EngineCore pid=7) ERROR 11-26 14:45:50 [core.py:1299]     raise ValueError(\n\
                   (EngineCore pid=7) ERROR 11-26 14:45:50 [core.py:1299] ValueError: one request needs 16.0 GiB of KV cache, 12.1 GiB are there\n\
                   (EngineCore pid=7)   File \"core.py\", line 125, in __init__\n\
                   RuntimeError: Engine core initialization failed. See root cause above.\n";
        let said = last_error(log).unwrap();
        assert_eq!(
            said,
            "ValueError: one request needs 16.0 GiB of KV cache, 12.1 GiB are there"
        );
        assert_eq!(last_error("INFO all is well\n"), None);
        let of_pydantic = "(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n\
                           (APIServer pid=7)   Value error, the model has 14 heads\n\
                           (APIServer pid=7)     For further information visit https://errors.pydantic.dev\n";
        assert_eq!(
            last_error(of_pydantic).as_deref(),
            Some("Value error, the model has 14 heads")
        );
        let flags =
            "usage: vllm serve [options]\nvllm serve: error: unrecognized arguments: --eager\n";
        assert_eq!(
            last_error(flags).as_deref(),
            Some("unrecognized arguments: --eager")
        );
    }
}
