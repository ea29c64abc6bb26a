//! Whether a model fits at all: its parameters and their bits, by the text, against the memory of the GPUs that it names.

use oomph_trace::Bytes;
use oomph_trace::text::{Memory, MessageKind, OomMessage, Phase, Program, Sign};

use super::figures;
use super::next::{NextStep, advice, step};

/// What a GPU has beside weights, at the least: its context and the libraries'.
const MOST: f64 = 0.97;
/// What weights may take so that there is room for a cache or activations.
const ROOM: f64 = 0.85;
/// The same for adapters that are trained, with their activations.
const TRAINING: f64 = 0.6;
/// Bytes of each parameter that Adam trains in 16 bits: weight, gradient and two moments; and with a copy in 32 bits.
const TRAINED: [u64; 2] = [8, 16];

/// What a model needs, and what there is.
pub(super) struct Weights {
    parameters: u64,
    bits: u32,
    /// GPUs that it is split over.
    devices: u64,
    /// The memory of each.
    card: Bytes,
}

/// How a program is told to split a model and to have its weights in fewer bits.
struct Words {
    split: &'static str,
    bits: [(u32, &'static str); 2],
}

const AWQ: &str = "a checkpoint in 4 bits (AWQ, GPTQ) in place of this one";

fn words(message: &OomMessage) -> Option<Words> {
    let of = |program| match program {
        Program::Vllm => Some(Words {
            split: "--tensor-parallel-size",
            bits: [(8, "--quantization fp8"), (4, AWQ)],
        }),
        Program::Sglang => Some(Words {
            split: "--tp",
            bits: [(8, "--quantization fp8"), (4, AWQ)],
        }),
        Program::TextGenerationInference => Some(Words {
            split: "--num-shard",
            bits: [(8, "--quantize eetq"), (4, "--quantize bitsandbytes-nf4")],
        }),
        _ => None,
    };
    of(message.program).or_else(|| of(message.inside?))
}

fn value<'a>(message: &'a OomMessage, name: &str) -> Option<&'a str> {
    figures::setting(message, name)?.value.as_deref()
}

/// GPUs that a model is split over: what a server is told, or its launcher says.
fn devices(message: &OomMessage) -> Option<u64> {
    let number = |name| value(message, name).map_or(Some(1), |value| value.parse::<u64>().ok());
    let split = number("tensor_parallel_size")? * number("pipeline_parallel_size")?;
    let tables = &message.tables;
    if tables.shows(Sign::SpreadsOut) {
        let shown = (tables.cards.len() as u64).max(tables.count);
        return (shown > 0).then_some(shown);
    }
    let sharded = tables.shows(Sign::Fsdp) || tables.shows(Sign::DeepSpeed);
    let shards = sharded || message.inside == Some(Program::TextGenerationInference);
    let launched = tables.ranks.filter(|_| split == 1 && shards);
    Some(launched.unwrap_or(split).clamp(1, 1 << 10))
}

/// The bits of the weights; where nothing says so, 16, which is the least that programs take by themselves.
fn bits(message: &OomMessage, named: Option<u32>) -> u32 {
    let on = |name| figures::setting(message, name).is_some();
    let quantized = value(message, "quantization").map(str::to_ascii_lowercase);
    let of_word = |word: String| {
        if ["8", "eetq"].iter().any(|bits| word.contains(bits)) {
            8
        } else {
            4
        }
    };
    if let Some(bits) = named {
        bits
    } else if on("load_in_4bit") {
        4
    } else if on("load_in_8bit") {
        8
    } else if let Some(word) = quantized {
        of_word(word)
    } else if super::told::has_singles(message) {
        32
    } else {
        16
    }
}

/// What the model of a text needs, where the text tells its size and that of the GPU.
pub(super) fn of(message: &OomMessage) -> Option<Weights> {
    if message.memory != Memory::Device || message.handled {
        return None;
    }
    let model = message.tables.model.as_ref()?;
    Some(Weights {
        parameters: model.parameters,
        bits: bits(message, model.bits),
        devices: devices(message)?,
        card: figures::memory(message)?,
    })
}

impl Weights {
    fn all(&self) -> Bytes {
        Bytes((self.parameters as f64 / 8.0 * f64::from(self.bits)) as u64)
    }

    pub(super) fn each(&self) -> Bytes {
        Bytes(self.all().0 / self.devices)
    }

    fn takes(&self, share: f64, bits: u32, devices: u64) -> bool {
        let each = self.parameters as f64 / 8.0 * f64::from(bits) / devices as f64;
        each <= self.card.0 as f64 * share
    }

    /// Whether the weights alone are more than the GPUs have.
    pub(super) fn never_fit(&self) -> bool {
        !self.takes(MOST, self.bits, self.devices)
    }

    /// The fewest GPUs over which the weights can be split so that there is room beside them.
    fn enough_devices(&self, room: f64) -> Option<u64> {
        let mut more = std::iter::successors(Some(self.devices.next_power_of_two()), |count| {
            Some(count * 2)
        })
        .take(8);
        more.find(|count| *count > self.devices && self.takes(room, self.bits, *count))
    }

    /// `70 billion parameters in 16 bits are 130.4 GiB of weights, 65.2 GiB for each of 2 GPUs, and the GPU has 44.3 GiB`.
    pub(super) fn sentence(&self) -> String {
        let shared = if self.devices > 1 {
            format!(", {} for each of {} GPUs", self.each(), self.devices)
        } else {
            String::new()
        };
        format!(
            "{} parameters in {} bits are {} of weights{shared}, and the GPU has {}",
            count(self.parameters),
            self.bits,
            self.all(),
            self.card
        )
    }
}

/// `70 billion`.
fn count(parameters: u64) -> String {
    let (unit, name) = if parameters >= 1_000_000_000 {
        (1e9, "billion")
    } else {
        (1e6, "million")
    };
    let number = format!("{:.1}", parameters as f64 / unit);
    format!("{} {name}", number.trim_end_matches(".0"))
}

/// Whether a program has no more than weights on the GPU yet, or nothing says how far it came.
fn is_early(message: &OomMessage) -> bool {
    let runs = |function: &str| {
        ["forward", "execute", "profile"]
            .iter()
            .any(|name| function.starts_with(name))
    };
    let mut frames = message.traceback.iter();
    match message.during {
        Some(phase) if phase.is_of_weights() || phase == Phase::Context => true,
        None => words(message).is_some() && !frames.any(|frame| runs(&frame.function)),
        Some(_) => false,
    }
}

/// That the weights alone are more than the GPUs have.
pub(super) fn never_fit(message: &OomMessage) -> Option<Weights> {
    let known = matches!(message.kind, MessageKind::Native | MessageKind::Cuda);
    of(message).filter(|weights| known && is_early(message) && weights.never_fit())
}

/// That the weights of a server are more than the GPUs have, or leave no room for a cache beside them.
pub(super) fn too_large(message: &OomMessage) -> Option<Weights> {
    let short =
        matches!(message.kind, MessageKind::Native | MessageKind::Cuda) && is_early(message);
    let budget = message.kind == MessageKind::Budget && message.setting.is_none();
    let tight = words(message).is_some() && (budget || short);
    let close = |weights: &Weights| tight && !weights.takes(ROOM, weights.bits, weights.devices);
    never_fit(message).or_else(|| of(message).filter(close))
}

/// That a model is far too small to fill the GPU by itself, with all that its training keeps of each parameter.
pub(super) fn small(message: &OomMessage) -> Option<String> {
    let [_, most] = TRAINED;
    let parameters = message.tables.model.as_ref()?.parameters;
    let gpu = matches!(message.memory, Memory::Device | Memory::Unknown);
    let need = Bytes(parameters * most);
    (gpu && need.0 < figures::memory(message)?.0 / 16).then(|| {
        format!(
            "the model has {} parameters: with gradients and an optimizer's state at most {need}, so it is not what fills the GPU; other \
             processes or the size of the inputs are",
            count(parameters)
        )
    })
}

/// What makes weights fit that do not: fewer bits or more GPUs, as many as the figures say.
pub(super) fn steps(message: &OomMessage, weights: &Weights) -> Vec<NextStep> {
    let words = words(message);
    let mut steps = Vec::new();
    let room = if message.tables.shows(Sign::Trains) {
        TRAINING
    } else {
        ROOM
    };
    if weights.bits == 32 && weights.takes(room, 16, weights.devices) {
        let each = Bytes(weights.parameters * 2 / weights.devices);
        steps.push(step(
            if words.is_some() { "--dtype half" } else { "torch_dtype=torch.float16" },
            format!("the text sets 32 bits: in 16 the weights take {each} of each GPU (bfloat16 where the card has it)"),
        ));
    }
    let fits = |bits| bits < weights.bits && weights.takes(room, bits, weights.devices);
    for (bits, set) in words.as_ref().map_or(
        [
            (8, "load_in_8bit=True (BitsAndBytesConfig)"),
            (4, "load_in_4bit=True (BitsAndBytesConfig)"),
        ],
        |words| words.bits,
    ) {
        if steps.is_empty() && fits(bits) {
            let each =
                Bytes((weights.parameters as f64 / 8.0 * f64::from(bits)) as u64 / weights.devices);
            let what = format!("in {bits} bits the weights take {each} of each GPU");
            steps.push(if set.starts_with("a ") {
                advice(format!("{set}: {what}"))
            } else {
                step(set, what)
            });
        }
    }
    if let Some(devices) = weights.enough_devices(room) {
        let each = Bytes(weights.all().0 / devices);
        let what = format!("split over {devices} such GPUs, the weights take {each} of each");
        steps.push(match &words {
            Some(words) => step(format!("{} {devices}", words.split), what),
            None => step(
                "device_map=\"auto\"",
                format!("in one process, not one for each GPU: {what}"),
            ),
        });
    }
    if !weights.never_fit() && message.program == Program::Vllm {
        steps.push(step(
            "--gpu-memory-utilization 0.95 --max-model-len 4096 --enforce-eager",
            "or the little room that is left: a larger share, shorter requests, no CUDA graphs",
        ));
    }
    steps.push(advice(
        "a smaller model, or GPUs with more memory: no batch, length or share of the GPU makes weights smaller",
    ));
    steps
}

/// What training all parameters with Adam takes of each GPU.
pub(super) struct Training {
    weights: Weights,
    /// All in 16 bits, and with a copy of the weights and moments in 32 bits, as is usual.
    need: [Bytes; 2],
}

/// Such training, where it takes more than the GPU has.
pub(super) fn training(message: &OomMessage) -> Option<Training> {
    let tables = &message.tables;
    let less = [Sign::Adapters, Sign::SmallOptimizer, Sign::Offloads];
    let early = matches!(
        message.during,
        Some(Phase::Evaluating | Phase::Generating | Phase::Saving | Phase::Collecting)
    );
    if message.program != Program::Pytorch
        || message.inside.is_some()
        || !tables.shows(Sign::Trains)
        || less.iter().any(|sign| tables.shows(*sign))
        || early
    {
        return None;
    }
    let mut weights = of(message).filter(|weights| weights.bits >= 16)?;
    // Plain data parallelism has all of it on each GPU.
    let sharded = tables.shows(Sign::Fsdp) || tables.shows(Sign::DeepSpeed);
    weights.devices = if sharded { tables.ranks? } else { 1 };
    let need = TRAINED.map(|bytes| Bytes(weights.parameters * bytes / weights.devices));
    (need[1] > weights.card).then_some(Training { weights, need })
}

impl Training {
    /// Whether no precision makes it fit.
    pub(super) fn never_fits(&self) -> bool {
        self.need[0] > self.weights.card
    }

    pub(super) fn sentence(&self) -> String {
        let Self { weights, need } = self;
        let over = match weights.devices {
            1 => String::new(),
            devices => format!(" of each of {devices} GPUs"),
        };
        let verdict = if self.never_fits() {
            "so no batch is small enough"
        } else {
            "so with such a copy, which is usual, no batch is small enough"
        };
        format!(
            "training all {} parameters with Adam takes {}{over} in 16 bits, and {} with a copy in 32 bits (weights, gradients and \
             moments: {} and {} bytes of each parameter); the GPU has {}, {verdict}",
            count(weights.parameters),
            need[0],
            need[1],
            TRAINED[0],
            TRAINED[1],
            weights.card
        )
    }

    pub(super) fn steps(&self) -> Vec<NextStep> {
        let Self { weights, need } = self;
        let all = Bytes(need[1].0 * weights.devices);
        let devices = (all.0 as f64 / (weights.card.0 as f64 * ROOM)).ceil() as u64;
        // Moments and a copy of the weights, in 32 bits.
        let host = Bytes(weights.parameters * 12);
        vec![
            advice(
                "train adapters and not all parameters (LoRA; QLoRA with the weights in 4 bits)",
            ),
            advice(format!(
                "shard weights, gradients and the optimizer's state (DeepSpeed's ZeRO-3, FSDP's full_shard) over at least {devices} such \
                 GPUs: that is {} of each, and activations beside it",
                Bytes(all.0 / devices)
            )),
            advice(format!(
                "the optimizer's state on the CPU (\"offload_optimizer\" of DeepSpeed, CPUOffload of FSDP): about {host} of the host's memory"
            )),
            advice("an optimizer with less state (8-bit Adam, Adafactor), and 16 bits throughout"),
        ]
    }
}
