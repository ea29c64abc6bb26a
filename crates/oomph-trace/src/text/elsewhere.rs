//! What a text says far from its message: the settings of command lines and configurations, and the tables of memory
//! that commands and programs print. Each form is known by its own words; other lines are skipped.

use std::sync::LazyLock;

use super::phase::Phase;
use super::program::{Hardware, Memory, Program, Uses};
use super::signs::Sign;
use super::tables::{self, Card, Tables};
use super::words::{Vocabulary, after, index, integer, size};
use super::{Around, MessageKind, OomMessage, OtherProcess};
use crate::units::Bytes;

/// A longer line is data.
const LONGEST: usize = 16 << 10;
/// Entries of a list that are kept.
const MOST: usize = 64;

/// A setting that a text shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name as [`canonical`] writes it.
    pub name: String,
    /// Its name as the text writes it.
    pub written: String,
    /// Its value; none of a switch.
    pub value: Option<String>,
}

/// Settings that programs know by several names, the first of which stands for all.
const ALIASES: &[&[&str]] = &[
    &[
        "tensor_parallel_size",
        "tp",
        "tp_size",
        "num_shard",
        "tensor_parallel",
    ],
    &["pipeline_parallel_size", "pp", "pp_size"],
    &["gpu_memory_utilization"],
    &["max_model_len"],
    &["max_num_seqs"],
    &["max_num_batched_tokens"],
    &["enforce_eager"],
    &["kv_cache_dtype"],
    &["cpu_offload_gb"],
    &["mem_fraction_static"],
    &["cuda_graph_max_bs"],
    &["chunked_prefill_size"],
    &["max_running_requests"],
    &["quantization", "quantize"],
    &["fp16", "use_fp16", "half"],
    &["bf16", "use_bf16"],
    &["precision", "mixed_precision"],
    &[
        "gradient_checkpointing",
        "activation_checkpointing",
        "use_gradient_checkpointing",
    ],
    &["load_in_4bit"],
    &["load_in_8bit"],
    &["n_gpu_layers", "ngl", "gpu_layers", "gpulayers"],
    &["ctx_size", "c", "n_ctx", "contextsize"],
    &["ubatch_size", "ub"],
    &["batch_size", "b"],
    &["train_batch_size", "per_device_train_batch_size"],
    &["cache_type_k", "ctk"],
    &["cache_type_v", "ctv"],
    &["attn_implementation"],
    &["torch_dtype"],
    &["micro_batch_size"],
    &["train_micro_batch_size_per_gpu"],
    &["minibatch_size"],
    &["samples_per_gpu", "imgs_per_gpu", "ims_per_batch"],
    &["max_seq_length", "max_seq_len"],
    &["seq_length", "seq_len", "sequence_len", "sequence_length"],
    &["cutoff_len"],
    &["block_size"],
    &["image_size", "img_size"],
    &["crop_size"],
    &["num_frames"],
];

/// Settings of which each value is kept: those of several servers on one GPU.
const OF_EACH: &[&str] = &["gpu_memory_utilization", "mem_fraction_static", "port"];

/// Beginnings of environment variables that are about memory.
const VARIABLES: &[&str] = &[
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_MPS_",
    "XLA_PYTHON_",
    "TF_GPU_",
    "TF_FORCE_",
    "OLLAMA_",
    "VLLM_",
    "SGLANG_",
    "NCCL_",
    "RAY_",
    "GGML_",
];

/// Words that no other line has, one of which each form begins with.
const MARKS: &[&str] = &[
    "--",
    " -ngl ",
    " -c ",
    " -ub ",
    " -ctk ",
    " -ctv ",
    "ReqMem",
    "MaxRSS",
    "MEM(GB)",
    "MEM\tCOMMAND",
    "oom_score_adj name",
    "* Device #",
    "| Mem:",
    "local_rank: ",
    "lphafold",
    "lphaFold",
    "olabfold",
    "olabFold",
    "text-generation-webui",
    "oobabooga",
    "inibatch-size",
    "PER_BATCH",
    "tritonserver",
    "tritonclient",
    "dorado",
    "memory peak",
    "xecutorLostFailure",
    "ngine could not be created",
    "uilding engine failed",
    "ngine set up failed",
];

/// A setting's name without hyphens, and one name for all that programs have for it.
pub fn canonical(name: &str) -> String {
    let name = name.trim_start_matches('-').replace('-', "_");
    let plain = name.to_ascii_lowercase();
    ALIASES
        .iter()
        .find(|names| {
            names.contains(&name.as_str()) || (name.len() > 8 && names.contains(&plain.as_str()))
        })
        .and_then(|names| names.first())
        .map_or(name, |first| (*first).to_owned())
}

/// The columns of a table of SLURM's that are looked at, by the offset at which they end, or by their number.
#[derive(Debug, Clone, Copy)]
enum Column {
    Ends(usize),
    Number(usize),
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    settings: Vec<Setting>,
    /// Tables of memory and of limits.
    tables: tables::Reader,
    /// The accelerator that a table or a library's name shows.
    hardware: Hardware,
    /// What a job asked for, and the most that a step of it held.
    columns: [Option<Column>; 2],
    job: [Option<Bytes>; 2],
    /// Ray's list of what uses the most.
    ray: Vec<(String, Bytes)>,
    in_ray: bool,
    /// The kernel's list of all processes, and the place of their size in its rows.
    tasks: Vec<(String, Bytes)>,
    task_size: Option<usize>,
    /// hashcat's devices: what may be allocated, and all.
    hashcat: Option<[Bytes; 2]>,
    /// What Cycles held on its device.
    cycles: Option<Bytes>,
    /// Ranks and their processes.
    pids: Vec<(u32, u64)>,
    /// The application that a framework's message is in.
    application: Option<Program>,
    /// The most that a unit of systemd held.
    peak: Option<Bytes>,
    /// TensorRT built no engine.
    no_engine: bool,
    /// Programs that a shell starts in the background.
    background: usize,
    /// The size that lines of steps print, over the steps.
    trend: Trend,
}

/// A size that a program prints at each of its steps, in lines that differ in nothing but numbers.
#[derive(Debug, Default)]
struct Trend {
    /// The line without its numbers.
    words: String,
    first: Option<Bytes>,
    last: Option<Bytes>,
    /// How often in a row it was larger than before.
    times: u32,
}

impl Trend {
    fn read(&mut self, line: &str) {
        /// A longer line is no row of figures.
        const LONGEST: usize = 400;
        let is_step = |word: &str| line.contains(word);
        if line.len() > LONGEST
            || !["step", "Step", "iter", "Iter", "epoch", "Epoch"]
                .into_iter()
                .any(is_step)
        {
            return;
        }
        let units = ["GB", "MB", "GiB", "MiB"];
        let is_size = |word: &str, next: Option<&&str>| {
            let end = word.trim_end_matches([',', ';', ')', '|', ']']);
            units.iter().any(|unit| {
                let unit_behind =
                    next.is_some_and(|next| next.trim_end_matches([',', ';', ')']) == *unit);
                end.ends_with(unit) || unit_behind
            })
        };
        let words: Vec<&str> = line
            .split([' ', '\t', '=', ':', '('])
            .filter(|word| !word.is_empty())
            .collect();
        let Some(found) = words.iter().enumerate().find_map(|(at, word)| {
            let next = words.get(at + 1);
            let text = format!("{word} {}", next.copied().unwrap_or_default());
            size(&text)
                .filter(|_| word.starts_with(|c: char| c.is_ascii_digit()) && is_size(word, next))
        }) else {
            return;
        };
        let same: String = line.chars().filter(|c| !c.is_ascii_digit()).collect();
        if same != self.words {
            *self = Self {
                words: same,
                first: Some(found),
                ..Self::default()
            };
        } else if self.last.is_some_and(|last| found > last) {
            self.times += 1;
        } else {
            self.times = 0;
        }
        self.last = Some(found);
    }

    /// Whether it grew at three steps or more in a row, by a twentieth in all.
    fn grows(&self) -> bool {
        self.times >= 2
            && self
                .first
                .zip(self.last)
                .is_some_and(|(first, last)| last.0 / 21 > first.0 / 20)
    }
}

impl Elsewhere {
    /// Reads a line of the text.
    pub(super) fn read(&mut self, line: &str) {
        static FINDER: LazyLock<Vocabulary<()>> = LazyLock::new(|| {
            let names = ALIASES.iter().copied().flatten().copied();
            // Short names are words of many lines.
            let names = names.filter(|name| name.contains('_') || name.ends_with("16"));
            let words: Vec<&str> = MARKS
                .iter()
                .chain(VARIABLES)
                .copied()
                .chain(names)
                .collect();
            Vocabulary::new([((), words.as_slice())], false)
        });
        if line.len() > LONGEST {
            return;
        }
        self.tables.read(line);
        self.trend.read(line);
        self.hardware = self.hardware.or(Hardware::shown(line));
        if self.in_ray {
            self.in_ray = self.ray_row(line).is_some();
        }
        if let Some(place) = self.task_size {
            self.tasks
                .extend(task(line, place).filter(|_| self.tasks.len() < MOST_TASKS));
        }
        if self.columns.iter().any(Option::is_some) {
            self.job_row(line);
        }
        self.background += usize::from(line.ends_with('&') && line.contains("python"));
        if FINDER.first(line).is_none() {
            return;
        }
        self.tables(line);
        for setting in settings(line) {
            if self.settings.len() < MOST
                && self.settings.iter().all(|known| {
                    known.name != setting.name
                        || (OF_EACH.contains(&setting.name.as_str())
                            && known.value != setting.value)
                })
            {
                self.settings.push(setting);
            }
        }
    }

    fn tables(&mut self, line: &str) {
        let application = |program: &Program| {
            matches!(
                program,
                Program::Named(named)
                    if named.uses == Uses::Folds || ["triton-server", "guppy", "text-generation-webui"].contains(&named.id)
            )
        };
        self.application = self
            .application
            .or_else(|| super::named::of(line).filter(application));
        let peak = line.split_once(" memory peak").and_then(|(head, _)| {
            let text = head.rsplit([' ', ',']).next()?;
            size(text)
        });
        self.peak = self.peak.or(peak);
        self.no_engine |= line.contains("ngine could not be created")
            || line.contains("uilding engine failed")
            || line.contains("ngine set up failed");
        if line.contains("ReqMem") || line.contains("MaxRSS") {
            self.columns = ["ReqMem", "MaxRSS"].map(|name| column(line, name));
        }
        self.in_ray |= line.trim_start().starts_with("PID") && line.contains("MEM");
        // The time of a line stands in brackets as well, before that of the process's number.
        if let Some((_, heading)) = line
            .rsplit_once(']')
            .filter(|_| line.contains("oom_score_adj name"))
        {
            self.task_size = heading.split_whitespace().position(|name| name == "rss");
        }
        self.hashcat = self.hashcat.or_else(|| hashcat(line));
        let cycles = after(line, "| Mem:").and_then(|rest| size(rest.split_once(',')?.0));
        self.cycles = cycles.filter(|held| held.0 > 0).or(self.cycles);
        if let (Some(rank), Some(pid)) = (after(line, "local_rank: "), after(line, "(pid: "))
            && let (Some(rank), Some(pid)) = (index(rank), integer(pid))
        {
            self.pids.push((rank, pid));
        }
    }

    /// `18833  61.08  ray::WorkerDict`.
    fn ray_row(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let pid = integer(words.next()?)?;
        let held = words.next()?;
        let held = size(held).or_else(|| size(&format!("{held} GiB")))?;
        let name = words.next().unwrap_or_default();
        if self.ray.len() < MOST {
            self.ray.push((format!("process {pid} ({name})"), held));
        }
        Some(())
    }

    /// A row below `sacct`'s heading.
    fn job_row(&mut self, line: &str) {
        let [asked, held] = self.columns.map(|column| cell(line, column?));
        let asked = asked.and_then(|text| size(text.trim_end_matches('n')));
        let held = held.and_then(size);
        self.job = [self.job[0].or(asked), self.job[1].max(held)];
    }

    /// Adds what it found to a message that lacks it.
    pub(super) fn complete(&self, message: &mut OomMessage) {
        message.settings.clone_from(&self.settings);
        self.own_process(message);
        // XLA's words are JAX's and TensorFlow's alike.
        if message.program == Program::Jax
            && message.hardware == Hardware::Tpu
            && message.tables.shows(Sign::Tensorflow)
        {
            message.program = Program::Tensorflow;
        }
        if matches!(message.program, Program::Jax | Program::OnnxRuntime) {
            message.inside = message.inside.or(self.application);
        }
        if message.program == Program::LlamaCpp && message.tables.shows(Sign::Ollama) {
            message.inside = message.inside.or(Some(Program::Ollama));
        }
        // What trains there is a job of its own, for which no setting of a server or of an interface is made.
        let trains = matches!(
            message.during.or(message.likely),
            Some(Phase::Backward | Phase::Optimizing | Phase::SettingUp)
        );
        let hosted = |program: Program| {
            program.serves() || matches!(program, Program::ComfyUi | Program::StableDiffusion)
        };
        if message.program == Program::Pytorch
            && (trains || message.tables.shows(Sign::TrainingRun))
        {
            message.inside = message.inside.filter(|inside| !hosted(*inside));
        }
        // It leaves the batch out and goes on.
        message.handled |=
            message.kind == MessageKind::Native && message.tables.shows(Sign::LeavesOut);
        // A program of C++ with libtorch in it.
        if message.program == Program::Pytorch && message.traceback.is_empty() {
            message.inside = message.inside.or(self.application);
        }
        // An executor that was lost says why its container ended.
        if message.program == Program::Shell
            && let Some(Program::Named(named)) = super::named::of(&message.text)
            && matches!(named.uses, Uses::Spark | Uses::Dask)
        {
            message.program = Program::Named(named);
            message.inside = None;
        }
        if message.program == Program::Systemd {
            message.in_use = message.in_use.or(self.peak);
        }
        if message.program == Program::TensorRt
            && self.no_engine
            && message.setting == Some("skipped beside an error")
        {
            message.setting = None;
        }
        self.weigh(message);
        let on_gpu = message.memory == Memory::Device;
        let is = |id| {
            [Some(message.program), message.inside]
                .into_iter()
                .flatten()
                .any(|program| program.id() == id)
        };
        if is("slurm") {
            let named = self.settings.iter().find(|setting| setting.name == "mem");
            let asked = named
                .and_then(|setting| job_memory(setting.value.as_deref()?))
                .or_else(|| self.of_each_core());
            message.total = message
                .total
                .or(self.job[0])
                .or(asked)
                .filter(|asked| asked.0 > 0);
            message.in_use = message.in_use.or(self.job[1]);
        }
        if is("ray") && message.parts.is_empty() {
            message.parts.clone_from(&self.ray);
        }
        // Of a group's limit the list has the group alone.
        if is("kernel") && message.parts.is_empty() {
            message.parts.clone_from(&self.tasks);
            message
                .parts
                .sort_by_key(|(_, held)| std::cmp::Reverse(*held));
            message.parts.truncate(LISTED_TASKS);
        }
        // A buffer is named below the line that says it could not be pinned.
        let computes = message.tables.figures.iter().any(|figure| {
            figure.text.contains("compute buffer size")
                && figure.sizes.first() == message.requested.as_ref()
        });
        if message.program == Program::LlamaCpp && message.handled && computes {
            message.during = Some(Phase::ComputeBuffers);
        }
        // The CUDA build of old pins the weights, and error 2 is the same for both memories.
        let whole = self
            .settings
            .iter()
            .any(|setting| setting.name == "no_mmap");
        if message.inside == Some(Program::LlamaCpp)
            && message.kind == MessageKind::Cuda
            && message.requested.is_none()
            && (whole || message.tables.shows(Sign::Wsl))
            && !message.tables.shows(Sign::Offloads)
        {
            message.memory = Memory::Unknown;
            message.during = Some(Phase::Pinning);
        }
        // Of several containers it is not known which is meant.
        if message.tables.shows(Sign::NotAtLimit)
            && !message.tables.shows(Sign::AtLimit)
            && message.kind == MessageKind::Killed
            && matches!(message.program, Program::Shell | Program::Unknown)
        {
            message.setting = message.setting.or(Some("not its limit"));
        }
        if is("hashcat") && on_gpu {
            // It counts its devices from 1.
            message.device = None;
            if let Some([free, total]) = self.hashcat {
                message.around.free = Some(free);
                message.around.total = Some(total);
            }
        }
        if is("blender") && on_gpu {
            message.around.in_use = message.around.in_use.or(self.cycles);
        }
    }

    /// Completes a message from the tables of its memory.
    fn weigh(&self, message: &mut OomMessage) {
        fn fill(
            around: &mut Around,
            total: Option<Bytes>,
            used: Option<Bytes>,
            free: Option<Bytes>,
        ) {
            around.total = around.total.or(total);
            around.in_use = around.in_use.or(used);
            around.free = around.free.or(free);
        }
        let shown = self.tables.found();
        if message.memory == Memory::Device {
            message.hardware = message.hardware.or(self.hardware);
        }
        if message.memory == Memory::Host && message.kind == MessageKind::Killed {
            message.total = message.total.or(shown.job);
        }
        // Where it says neither, the one that is full is meant.
        let host = shown.available().zip(shown.host.total);
        let host_is_short = host.is_some_and(|(free, total)| free.0 < total.0 / 8);
        if message.memory == Memory::Unknown
            && !matches!(message.kind, MessageKind::Fault(_) | MessageKind::OnChip)
        {
            if shown.cards.iter().any(Card::is_full) && !host_is_short {
                message.memory = Memory::Device;
            } else if host_is_short && !shown.cards.iter().any(Card::is_full) {
                message.memory = Memory::Host;
            }
        }
        let own = message.total.is_some() || message.ends_at_a_limit();
        let around = &mut message.around;
        match message.memory {
            Memory::Host if message.allocator.as_deref() == Some("/dev/shm") => {
                if let Some(disk) = shown.disk("/dev/shm") {
                    let [total, used, free] = disk.sizes.map(Some);
                    fill(around, total, used, free);
                }
            }
            Memory::Host if !own => {
                let host = &shown.host;
                fill(around, host.total, host.used, shown.available());
            }
            // They share it.
            Memory::Device
                if matches!(message.hardware, Hardware::Jetson | Hardware::Apple)
                    && message.total.is_none() =>
            {
                let host = &shown.host;
                fill(around, host.total, host.used, shown.available());
            }
            Memory::Device => {
                if let Some(card) = shown.card(message.device) {
                    fill(around, card.total, card.used, None);
                }
                if message.parts.is_empty() {
                    let holders = shown.holders_of(shown.number(message.device));
                    message.parts = holders
                        .into_iter()
                        .map(|held| (format!("process {} ({})", held.pid, held.name), held.used))
                        .collect();
                }
            }
            _ => {}
        }
    }

    /// What a job of SLURM's gets that asks for memory by the core, where the text tells how many it has.
    fn of_each_core(&self) -> Option<Bytes> {
        let value = |name: &str| {
            let setting = self.settings.iter().find(|setting| setting.name == name)?;
            setting.value.as_deref()
        };
        let cores = value("cpus_per_task").and_then(integer)?;
        let each = job_memory(value("mem_per_cpu")?)?;
        Some(Bytes(each.0.checked_mul(cores)?))
    }

    /// What its commands show together: several programs, or several servers.
    pub(super) fn signs(&self) -> Vec<Sign> {
        let ports = self
            .settings
            .iter()
            .filter(|setting| setting.name == "port");
        let several = [
            (self.background > 1, Sign::SharesGpu),
            (ports.count() > 1, Sign::SecondServer),
            (self.trend.grows(), Sign::Grows),
        ];
        several
            .into_iter()
            .filter_map(|(is, sign)| is.then_some(sign))
            .collect()
    }

    /// What the tables of the text show.
    pub(super) fn shown(&self) -> &Tables {
        self.tables.found()
    }

    /// Of the processes that PyTorch lists, the one that printed the message: by the launcher's number of the rank, or
    /// by what PyTorch itself holds.
    fn own_process(&self, message: &mut OomMessage) {
        /// What CUDA's context and libraries take beside.
        const LIBRARIES: Bytes = Bytes::gib(2);
        if message.this_process.is_some() {
            return;
        }
        let launched = |pid: u64| {
            self.pids
                .iter()
                .any(|(rank, known)| *known == pid && message.rank.is_none_or(|own| own == *rank))
        };
        let named = |other: &&OtherProcess| message.pid == Some(other.pid) || launched(other.pid);
        let alike: Vec<&OtherProcess> = message
            .others
            .iter()
            .filter(|other| {
                message.reserved.is_some_and(|held| {
                    held.0 > 0 && held <= other.used && other.used <= held + LIBRARIES
                })
            })
            .collect();
        // One that leaves no room beside it for what PyTorch holds is the one that holds that.
        let whole = |other: &&OtherProcess| {
            let held = message.reserved.filter(|held| held.0 > 0);
            held.zip(message.total)
                .is_some_and(|(held, total)| held + other.used > total)
        };
        let own = message
            .others
            .iter()
            .find(named)
            .or(match alike.as_slice() {
                [one] => Some(*one),
                _ => message.others.iter().find(whole),
            });
        if let Some(own) = own.copied() {
            message.this_process = Some(own.used);
            message.others.retain(|other| other.pid != own.pid);
        }
    }
}

/// Processes of the kernel's list that are read, and that are kept.
const MOST_TASKS: usize = 4096;
const LISTED_TASKS: usize = 5;

/// `[ 3921]  0  3921  2252204  292429  10289152  0  0 uvicorn`, whose sizes count pages of 4 KiB.
fn task(line: &str, place: usize) -> Option<(String, Bytes)> {
    let (head, row) = line.rsplit_once(']')?;
    let pid = integer(head.rsplit('[').next()?.trim())?;
    let words: Vec<&str> = row.split_whitespace().collect();
    let is_number = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
    let pages = integer(
        words
            .get(..=place)
            .filter(|row| row.iter().all(is_number))?
            .last()?,
    )?;
    let name = words
        .last()
        .filter(|_| words.len() > place + 2 && pages > 0)?;
    Some((
        format!("process {pid} ({name})"),
        Bytes(pages.checked_mul(4 << 10)?),
    ))
}

/// `* Device #1: NVIDIA GeForce RTX 3070, 7661/7971 MB, 46MCU`: what may be allocated, and all.
fn hashcat(line: &str) -> Option<[Bytes; 2]> {
    let rest = after(line, "* Device #")?;
    rest.split(", ").find_map(|part| {
        let (free, total) = part.strip_suffix(" MB")?.split_once('/')?;
        Some([Bytes::mib(integer(free)?), Bytes::mib(integer(total)?)])
    })
}

/// Where a heading has a column.
fn column(line: &str, name: &str) -> Option<Column> {
    if line.contains('|') {
        return line
            .split('|')
            .position(|word| word.trim() == name)
            .map(Column::Number);
    }
    // The command names its columns, too.
    let at = line.find(name).filter(|_| !line.contains("--format"))?;
    Some(Column::Ends(at + name.len()))
}

fn cell(line: &str, column: Column) -> Option<&str> {
    match column {
        Column::Number(number) => line.split('|').nth(number).map(str::trim),
        Column::Ends(end) => {
            let head = line.get(..end)?;
            let ends = line
                .get(end..)?
                .chars()
                .next()
                .is_none_or(char::is_whitespace);
            head.rsplit(' ')
                .next()
                .filter(|word| ends && !word.is_empty())
        }
    }
}

/// What `--mem=` asks for: a number alone counts MiB.
fn job_memory(text: &str) -> Option<Bytes> {
    let alone = text.bytes().all(|byte| byte.is_ascii_digit());
    if alone {
        integer(text).map(Bytes::mib)
    } else {
        size(text)
    }
}

/// The settings of a line: `--tp 2`, `--tp=2`, `tp_size=2`, `"fp16": true`, `NAME=value`. A line that advises one
/// does not have it.
fn settings(line: &str) -> Vec<Setting> {
    let ends = |c: char| c.is_whitespace() || ",(){}[];`\"'|".contains(c);
    let words: Vec<&str> = line.split(ends).filter(|word| !word.is_empty()).collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).copied();
        let Some((name, value)) = setting(word, next, words.get(at + 2).copied()) else {
            continue;
        };
        let off = ["false", "none", "null", "0", "no", "off", ""];
        let is_off = value.is_some_and(|value| off.contains(&value.to_ascii_lowercase().as_str()));
        // `--page-size` in such marks is spoken of, without a value.
        let spoken = value.is_some() && line.contains(&format!("`{word}`"));
        if !is_off && !spoken && !is_advice(line, word) {
            found.push(Setting {
                name: canonical(name),
                written: name.to_owned(),
                value: value.map(str::to_owned),
            });
        }
    }
    found
}

/// The name and the value of one, from its word and the two behind it.
fn setting<'a>(
    word: &'a str,
    next: Option<&'a str>,
    second: Option<&'a str>,
) -> Option<(&'a str, Option<&'a str>)> {
    let is_name =
        |name: &str| name.len() > 1 && name.starts_with(|c: char| c.is_ascii_alphabetic());
    if let Some(flag) = word.strip_prefix("--") {
        let (name, value) = if let Some((name, value)) = word.split_once('=') {
            (name, Some(value))
        } else {
            let value = next.filter(|next| !next.starts_with('-') && is_value(next));
            (word, value)
        };
        return is_name(flag).then_some((name, value));
    }
    let known = |name: &str| {
        let plain = name.replace('-', "_").to_ascii_lowercase();
        ALIASES.iter().any(|names| {
            names.contains(&name) || (name.len() > 8 && names.contains(&plain.as_str()))
        })
    };
    if let Some(flag) = word.strip_prefix('-') {
        // Letters alone are words of a sentence: `-c`, `-b`.
        let long = flag.len() > 2;
        let value = next.filter(|next| {
            let number = next.bytes().all(|byte| byte.is_ascii_digit());
            number || (long && !next.starts_with('-') && is_value(next))
        })?;
        return known(flag).then_some((word, Some(value)));
    }
    let (path, rest) = word.split_once(['=', ':']).unwrap_or((word, ""));
    // `cfg.SOLVER.IMS_PER_BATCH`
    let name = path.rsplit('.').next().unwrap_or(path);
    let marked = path.len() < word.len();
    let variable = VARIABLES.iter().any(|begin| name.starts_with(begin));
    if variable {
        return (marked && !rest.is_empty()).then_some((name, Some(rest)));
    }
    if name.len() < 3 || !known(name) {
        return None;
    }
    let value = match (marked, rest) {
        (true, "") => next?,
        (true, rest) => rest.trim_start_matches('='),
        (false, _) if matches!(next, Some(":" | "=")) => second?,
        // As people write an option: `with kv-cache-dtype fp8`.
        (false, _) if name.contains('-') => {
            next.filter(|next| next.contains(|c: char| c.is_ascii_digit()))?
        }
        _ => return None,
    };
    let value = value.strip_prefix("torch.").unwrap_or(value);
    is_literal(value).then_some((name, Some(value)))
}

/// Whether a word may be the value of a flag before it, and not the next argument.
fn is_value(word: &str) -> bool {
    !word.contains(['/', '\\']) && !word.contains(".py") && word.len() <= 32
}

/// Whether it is a value and not an expression of source code.
fn is_literal(word: &str) -> bool {
    let number = word.parse::<f64>().is_ok();
    number || (word.len() <= 24 && word.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Whether the words before a setting advise it.
fn is_advice(line: &str, word: &str) -> bool {
    const BEFORE: usize = 48;
    const ADVISES: [&str; 17] = [
        "run with ",
        "try ",
        "increas",
        "decreas",
        "reduc",
        "consider",
        "setting ",
        "set ",
        "use ",
        "pass ",
        "add ",
        "adding ",
        "enable ",
        "environment variable",
        "lower",
        "please",
        "instead",
    ];
    let Some((head, _)) = line.split_once(word) else {
        return false;
    };
    let from = head.ceil_char_boundary(head.len().saturating_sub(BEFORE));
    let head = head.get(from..).unwrap_or_default().to_ascii_lowercase();
    ADVISES.iter().any(|words| head.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::find;
    use crate::text::tests::one;

    fn set(line: &str) -> Vec<(String, Option<String>)> {
        settings(line)
            .into_iter()
            .map(|setting| (setting.name, setting.value))
            .collect()
    }

    #[test]
    fn sizes_that_grow_from_step_to_step() {
        let grows = |lines: &[&str]| {
            let mut trend = Trend::default();
            for line in lines {
                trend.read(line);
            }
            trend.grows()
        };
        assert!(grows(&[
            "step 7 loss 1.2 mem 31.2GB",
            "step 8 loss 1.1 mem 33.9GB",
            "step 9 loss 1.3 mem 36.6GB",
        ]));
        assert!(!grows(&[
            "step 7 loss 1.2 mem 31.2GB",
            "step 8 loss 1.1 mem 33.9GB",
            "step 9 loss 1.3 mem 33.9GB",
        ]));
        assert!(!grows(&[
            "shard 7 mem 3 GB",
            "shard 8 mem 6 GB",
            "shard 9 mem 9 GB"
        ]));
    }

    #[test]
    fn settings_in_all_their_forms() {
        let pair = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        assert_eq!(
            set("llama-server -ctk q8_0 -ngl 99"),
            [pair("cache_type_k", "q8_0"), pair("n_gpu_layers", "99")]
        );
        assert_eq!(
            set("$ python -m server --tp 2 --mem-fraction-static=0.78 -c 4096"),
            [
                pair("tensor_parallel_size", "2"),
                pair("mem_fraction_static", "0.78"),
                pair("ctx_size", "4096")
            ]
        );
        assert_eq!(
            set("config: tensor_parallel_size=4, enforce_eager=False, max_model_len=args.length"),
            [pair("tensor_parallel_size", "4")]
        );
        assert_eq!(
            set("  \"fp16\": true, \"bf16\": false"),
            [pair("fp16", "true")]
        );
        assert_eq!(
            set("gradient_checkpointing: true"),
            [pair("gradient_checkpointing", "true")]
        );
        assert_eq!(set("run.sh --fp16 train.py"), [("fp16".to_owned(), None)]);
        assert_eq!(
            set("with kv-cache-dtype fp8 and --max-model-len 100000"),
            [
                pair("kv_cache_dtype", "fp8"),
                pair("max_model_len", "100000")
            ]
        );
        assert_eq!(set("Please try to increase --mem-fraction-static."), []);
        assert_eq!(set("it fails when `--page-size` is larger than 1"), []);
        assert_eq!(
            set("try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid it"),
            []
        );
        assert_eq!(
            set("export OLLAMA_KV_CACHE_TYPE=q8_0"),
            [pair("OLLAMA_KV_CACHE_TYPE", "q8_0")]
        );
    }

    #[test]
    fn tables_far_from_the_message() {
        let far = "\nanother line".repeat(40);
        let gpu = one(&format!(
            "| 30%   36C  P2  58W / 250W |   6935MiB / 11264MiB |  0%  Default |\n\
             |    0   N/A  N/A     41231      C   /usr/bin/python3     6512MiB |{far}\nCUDA_ERROR_OUT_OF_MEMORY"
        ));
        assert_eq!(gpu.around.in_use, Some(Bytes::mib(6935)));
        assert_eq!(
            gpu.parts,
            [("process 41231 (python3)".to_owned(), Bytes::mib(6512))]
        );
        let shared = one(
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n\
             $ df -h\nFilesystem Size Used Avail Use% Mounted on\nshm   64M   63M  1.0M  99% /dev/shm",
        );
        assert_eq!(shared.around.total, Some(Bytes::mib(64)));
        assert_eq!(shared.around.in_use, Some(Bytes::mib(63)));
        let rows = find(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=77.batch.\n\
             JobID             State     ReqMem     MaxRSS\n------------ ---------- ---------- ----------\n\
             77           OUT_OF_ME+        32G           \n77.batch     OUT_OF_ME+             33181204K",
        );
        let job = rows.first().expect("a message");
        assert_eq!(job.total, Some(Bytes::gib(32)));
        assert_eq!(job.in_use, Some(Bytes(33_181_204 << 10)));
        let asked = one("srun --mem=48G python a.py\nsrun: error: n1: task 0: Out Of Memory");
        assert_eq!(asked.total, Some(Bytes::gib(48)));
    }

    #[test]
    fn the_process_of_the_rank_is_not_another() {
        let message = one(
            "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of \
             79.15 GiB of which 1.00 GiB is free. Process 11 has 31.00 GiB memory in use. Process 22 has 46.00 GiB memory in \
             use. Of the allocated memory 43.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but \
             unallocated.\nfailed (exitcode: 1) local_rank: 2 (pid: 22) of binary: python",
        );
        assert_eq!(message.this_process, Some(Bytes::gib(46)));
        assert_eq!(message.others.len(), 1);
    }
}
