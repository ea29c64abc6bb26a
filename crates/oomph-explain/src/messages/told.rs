//! What people tell around a message where it decides: more processes than GPUs, a run that is resumed, slots of a server that each
//! have a whole context.

use oomph_trace::Bytes;
use oomph_trace::text::{Memory, OomMessage, Program};

use super::figures;
use super::next::{NextStep, advice, step};

/// What the text tells, and what to do about it first.
pub(super) struct Tale {
    /// The end of the verdict.
    pub(super) says: String,
    pub(super) steps: Vec<NextStep>,
}

/// The tale of a text, if it tells one.
pub(super) fn of(message: &OomMessage) -> Option<Tale> {
    if message.handled {
        return None;
    }
    of_slots(message)
        .or_else(|| of_ranks(message))
        .or_else(|| of_processes(message))
        .or_else(|| of_tensorflows_start(message))
}

/// TensorFlow takes nearly all that is free when it begins: where that is little, others held the GPU.
fn of_tensorflows_start(message: &OomMessage) -> Option<Tale> {
    let figures = message.tables.figures.iter();
    let mut starts = figures
        .filter(|figure| figure.text.contains("device:GPU:") && figure.text.contains(" with "));
    let start = starts.find_map(|figure| figure.sizes.first().copied())?;
    let (_, card) = figures::card(message)?;
    let whole = Bytes(card.memory.total_bytes);
    (message.program == Program::Tensorflow && start.0 < whole.0 / 2).then(|| Tale {
        says: format!(
            "; when it began, TensorFlow could take no more than {start} of the {} that a {} has: another process holds the rest (a notebook \
             that is still open, an earlier run)",
            whole, card.name
        ),
        steps: vec![
            super::next::others_on_the_gpu(message),
            advice("end what holds it (the kernels of other notebooks), then start this program again"),
        ],
    })
}

/// A server of models sets aside a whole context for each request at once.
fn of_slots(message: &OomMessage) -> Option<Tale> {
    let ollama = message.inside == Some(Program::Ollama) || message.program == Program::Ollama;
    let (each, all) = message.tables.told.slots.filter(|_| ollama)?;
    let slots = all / each;
    Some(Tale {
        says: format!(
            "; its cache has room for {all} tokens, {slots} times the {each} of one sequence: by that it serves {slots} requests at once, \
             each with a whole context"
        ),
        steps: vec![
            step(
                "OLLAMA_NUM_PARALLEL=1 ollama serve",
                format!(
                    "one request at a time (in the server's environment): the cache, and the buffers with it, are then a {slots}th"
                ),
            ),
            step(
                "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve",
                "no matrix of all scores, and keys and values in 8 bits",
            ),
            advice("a shorter context (in a session: /set parameter num_ctx 8192)"),
        ],
    })
}

/// More ranks than GPUs: several have to share one.
fn of_ranks(message: &OomMessage) -> Option<Tale> {
    let tables = &message.tables;
    let (ranks, gpus) = (tables.ranks?, tables.count);
    if message.memory != Memory::Device || gpus == 0 || ranks <= gpus || gpus > 16 {
        return None;
    }
    Some(Tale {
        says: format!(
            "; the text starts {ranks} processes on {gpus} GPUs, so several of them share one"
        ),
        steps: vec![
            advice(format!(
                "one process for each GPU: {gpus} in place of {ranks} (accelerate: --num_processes {gpus}, torchrun: --nproc_per_node {gpus})"
            )),
            advice(
                "each of them on a device of its own (cuda:LOCAL_RANK), also what is loaded before the training, as encoders are",
            ),
        ],
    })
}

/// Workers of one service, each of which loads the model for itself.
fn of_processes(message: &OomMessage) -> Option<Tale> {
    let (line, count, _) = message.tables.told.processes.as_ref()?;
    let (what, place) = match message.memory {
        Memory::Device => (
            "GPU",
            "a GPU of its own for each group of workers (CUDA_VISIBLE_DEVICES)",
        ),
        Memory::Host => ("machine", "more memory for the machine or the container"),
        _ => return None,
    };
    Some(Tale {
        says: format!(
            "; by line {line} {count} workers of one service run there, and each is a process with its own copy of the model and its own \
             pool: together they fill the {what}"
        ),
        steps: vec![
            advice(format!(
                "fewer workers: one or two in place of {count}, with threads or batches for requests at the same time; what one needs times \
                 their number has to fit"
            )),
            advice(format!(
                "or {place}, and a limit for each in its framework's own setting"
            )),
        ],
    })
}

/// The names of a size in settings that stand for samples at once, or for the size of one.
pub(super) const BATCHES: &[&str] = &[
    "train_batch_size",
    "batch_size",
    "micro_batch_size",
    "train_micro_batch_size_per_gpu",
    "minibatch_size",
    "samples_per_gpu",
    "imgs_per_gpu",
    "ims_per_batch",
    "batch",
];
const INPUTS: &[&str] = &[
    "max_length",
    "max_len",
    "max_seq_len",
    "max_seq_length",
    "seq_len",
    "seq_length",
    "sequence_length",
    "sequence_len",
    "block_size",
    "cutoff_len",
    "source_max_len",
    "target_max_len",
    "max_prompt_length",
    "max_completion_length",
    "image_size",
    "img_size",
    "imgsz",
    "resolution",
    "crop_size",
    "num_frames",
];

/// The samples at once and the size of each, where the text sets both.
pub(super) fn sizes(message: &OomMessage) -> Option<(u64, u64)> {
    let of = |names: &[&str]| {
        message
            .settings
            .iter()
            .filter(|setting| names.contains(&setting.name.to_ascii_lowercase().as_str()))
            .find_map(|setting| setting.value.as_deref()?.parse::<u64>().ok())
    };
    of(BATCHES).zip(of(INPUTS))
}

/// What the text sets of the samples at once, or of their size: `now --source_max_len 384, --target_max_len 128`.
pub(super) fn now(message: &OomMessage, batch: bool) -> Option<String> {
    /// More are no reminder.
    const MOST: usize = 2;
    let names = if batch { BATCHES } else { INPUTS };
    let set: Vec<String> = message
        .settings
        .iter()
        .filter(|setting| names.contains(&setting.name.to_ascii_lowercase().as_str()))
        .filter_map(|setting| {
            let value = setting.value.as_deref()?;
            let number: f64 = value.parse().ok()?;
            (number > 1.0).then(|| format!("{} {value}", setting.written))
        })
        .take(MOST)
        .collect();
    (!set.is_empty()).then(|| format!("now: {}", set.join(", ")))
}

/// Words by which people call what a step sets.
pub(super) fn was_in_vain(message: &OomMessage, command: &str) -> bool {
    let told = &message.tables.told;
    let mut names = command
        .split_whitespace()
        .filter(|word| word.starts_with('-') || word.contains('='))
        .map(|word| {
            let name = word.split('=').next().unwrap_or_default();
            name.trim_start_matches('-')
                .replace('-', "_")
                .to_ascii_lowercase()
        })
        .peekable();
    // Short names are words of many sentences.
    names.peek().is_some() && names.all(|name| name.len() > 5 && told.in_vain(&[&name]))
}

/// Whether the text sets a number type of 32 bits.
pub(super) fn has_singles(message: &OomMessage) -> bool {
    ["torch_dtype", "dtype"].iter().any(|name| {
        figures::setting(message, name)
            .and_then(|setting| setting.value.as_deref())
            .is_some_and(|value| matches!(value, "float" | "float32" | "fp32"))
    })
}
