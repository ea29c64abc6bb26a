//! `oomph serve-fit`: flags of vLLM with which a model fits, found by starting it on virtual GPUs.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use oomph_bytes::parse_capacity;
use oomph_job::{
    Host, Job, Program, RunDirectory, RunFile, VirtualGpu, Watch, host, ranks, shell_line, signals,
};
use oomph_plan::{Stop, Stopped};
use oomph_report::serving::serving_report;
use oomph_report::terminal::width;
use oomph_run::serving::{Asked, FORMAT, Flags, Outcome, Search, Start, chosen, next};
use oomph_run::{Verdict, summary::summarize};

use crate::progress::Progress;
use crate::{ExitStatus, json, stdout};

/// What the server writes when it waits for requests.
const READY: &str = "Application startup complete.";

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
    after_help = "Starts vllm serve on virtual GPUs, without weights, each time until it is ready or fails: first as it is, then with a larger --gpu-memory-utilization, --max-num-seqs, --enforce-eager and an 8-bit KV cache, each added to those before; then on more GPUs. If nothing holds the length that was asked for, it finds the longest that does.\n\nExamples:\n  oomph serve-fit ./Llama-3.1-8B --gpu l40s                   the model's own length, one request\n  oomph serve-fit ./Qwen3-32B --gpu h100-80gb:4 --requests 8  on 1, 2 or 4 GPUs\n  oomph serve-fit ./model --gpu l40s -- --quantization fp8    with a flag for every start\n\nExit status: 0 it fits; 1 vLLM failed; 2 wrong usage, or no vLLM; 3 what was asked for does not fit; 4 --max-time ended the search; 130 Ctrl-C ended it."
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
        let (mut starts, mut stopped) = (Vec::new(), None);
        while let Some(flags) = next(&asked, &starts) {
            let mut spec = spec.clone();
            spec.count = flags.gpus;
            let gpu = VirtualGpu {
                total_bytes: asked.memory_bytes,
                ..VirtualGpu::new(spec)
            };
            let place = directory.path().join(format!("start-{}", starts.len() + 1));
            match self.start(
                &asked,
                flags,
                gpu,
                &RunDirectory::prepare(place)?,
                &stop,
                host,
            ) {
                Ok(start) => starts.push(start),
                Err(error) => match error.downcast::<Stopped>() {
                    Ok(why) => {
                        stopped = Some(why);
                        break;
                    }
                    Err(error) => return Err(error),
                },
            }
        }
        self.say(asked, starts, stopped, &directory)
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
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let config: serde_json::Value = serde_json::from_str(&text)
            .with_context(|| format!("{} is not JSON", file.display()))?;
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

    /// Starts the engine once.
    fn start(
        &self,
        asked: &Asked,
        flags: Flags,
        gpu: VirtualGpu,
        place: &RunDirectory,
        stop: &Stop,
        host: &'static Host,
    ) -> anyhow::Result<Start> {
        stop.check()?;
        let began = Instant::now();
        let job = Job {
            watch: Watch {
                stop: Some(stop.clone()),
                until: Some(READY),
                ..Watch::default()
            },
            gpu: Some(gpu),
            // Each is a first start, which compiles: what a later one finds compiled leaves more for the cache.
            variables: vec![("VLLM_DISABLE_COMPILE_CACHE", "1")],
            ..Job::new(host, self.program(asked, Some(&flags), host)?)
        };
        let log = place.file(RunFile::Log);
        let doing = format!("starting vLLM with {}", flags.words(asked).join(" "));
        let limit = job.total_bytes();
        let (attempt, _) = {
            let _shown = Progress::new(self.quiet).begin(&doing, "");
            ranks::attempt(&job, None, place, limit, Some(&log), "starting")?
        };
        if let Some(reason) = place.refusal() {
            bail!("{reason}");
        }
        let said = fs::read(&log).unwrap_or_default();
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
        Ok(Start {
            flags,
            outcome,
            engine,
            why: (outcome != Outcome::Ready).then(|| {
                last_error(&said).unwrap_or_else(|| {
                    format!("vLLM ended with {}, and named no error", attempt.status)
                })
            }),
            seconds: began.elapsed().as_secs_f64(),
        })
    }

    fn say(
        &self,
        asked: Asked,
        starts: Vec<Start>,
        stopped: Option<Stopped>,
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
        let status = match stopped {
            _ if enough => ExitStatus::Success,
            Some(Stopped::Interrupted) => ExitStatus::Interrupted,
            Some(Stopped::MaxTime) => ExitStatus::NoVerdict,
            None if ready => ExitStatus::Findings,
            None => ExitStatus::Failed,
        };
        let search = Search {
            format: FORMAT,
            asked,
            starts,
            chosen: best,
            enough,
            command,
            stopped: stopped.map(|why| why.to_string()),
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
    log.lines().rev().find_map(|line| {
        if let Some((_, said)) = line.split_once(": error: ") {
            return Some(said.to_owned());
        }
        let at = line.find("Error: ")?;
        let begin = line[..at].rfind(' ').map_or(0, |space| space + 1);
        let said = &line[begin..];
        let is_name = line[begin..at]
            .chars()
            .all(|c| c.is_alphanumeric() || c == '.' || c == '_');
        (is_name && !FOLLOWS.iter().any(|words| said.contains(words))).then(|| said.to_owned())
    })
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
        let flags =
            "usage: vllm serve [options]\nvllm serve: error: unrecognized arguments: --eager\n";
        assert_eq!(
            last_error(flags).as_deref(),
            Some("unrecognized arguments: --eager")
        );
    }
}
