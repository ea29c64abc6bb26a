//! Who shares a GPU with a server: by the text's tables, its own measurement, or another server that the text starts.

use oomph_trace::Bytes;
use oomph_trace::text::{MessageKind, OomMessage, Program, Sign};

use super::figures;
use super::next::{NextStep, advice, others_on_the_gpu, step};

/// How a server is given its share of the GPU.
const SHARE: &str = "--gpu-memory-utilization";

/// What others take of a server's share of the GPU.
pub(super) struct Shared {
    /// What was in use before this one, where the text says so.
    held: Option<Bytes>,
    /// The GPU's memory.
    total: Option<Bytes>,
    /// The share that both servers are given, where the text has two.
    sum: Option<f64>,
    /// The smallest share that the text has, or what is usual beside another server.
    least: f64,
}

/// Shares of the GPU that the text's servers are given.
fn shares(message: &OomMessage) -> Vec<f64> {
    let settings = message.settings.iter();
    let shares = settings.filter(|setting| setting.name == "gpu_memory_utilization");
    shares
        .filter_map(|setting| setting.value.as_deref()?.parse().ok())
        .collect()
}

/// That another process, mostly another server, uses up the share of one that finds no room for its cache.
pub(super) fn of(message: &OomMessage) -> Option<Shared> {
    if message.kind != MessageKind::Budget
        || message.program != Program::Vllm
        || message.setting.is_some()
    {
        return None;
    }
    let total = message
        .total
        .or_else(|| figures::stated(message, "total_gpu_memory"))
        .or(message.around.total);
    let tables = &message.tables;
    let index = tables.number(message.device.or((!tables.visible.is_empty()).then_some(0)));
    let listed = tables.holders_of(index);
    // Of a list that shows both, the larger one was there before.
    let listed = listed
        .first()
        .map(|held| held.used)
        .filter(|_| index.is_some() || tables.cards.len() == 1);
    let before = figures::stated(message, "initial_memory_usage");
    let second = tables.shows(Sign::SecondServer);
    // A context and a desktop take less than that.
    let much = |held: &Bytes| held.0 >= total.map_or(1 << 30, |total| total.0 / 6);
    let held = before.or(listed.filter(|_| second)).filter(much);
    let shares = shares(message);
    if held.is_none() && !(second && shares.len() > 1) {
        return None;
    }
    let sum = shares.iter().sum::<f64>();
    let sum = (shares.len() > 1 && sum <= 0.97).then_some(sum);
    let least = shares.iter().copied().fold(0.4, f64::min).max(0.1);
    Some(Shared {
        held,
        total,
        sum,
        least,
    })
}

impl Shared {
    pub(super) fn sentence(&self, name: &str) -> String {
        let held = self.held.map_or_else(String::new, |held| {
            let of = self
                .total
                .map_or_else(String::new, |total| format!(" of {total}"));
            format!(": {held}{of}, by the text")
        });
        format!(
            "{name}'s share of the GPU is used up by what another process holds there already{held}. Its share counts all that is in \
             use on the GPU, not only its own, so nothing is left of it for keys and values"
        )
    }

    pub(super) fn steps(&self, message: &OomMessage) -> Vec<NextStep> {
        let mut steps = Vec::new();
        let room = self
            .held
            .zip(self.total)
            .map(|(held, total)| held.0 as f64 / total.0.max(1) as f64);
        if let Some(sum) = self.sum {
            steps.push(step(
                format!("{SHARE} {sum:.2}"),
                "for the server that is started second: the sum of both shares, since its share counts what the first one holds",
            )
            .computed());
        } else if let Some(room) = room.filter(|room| room + self.least <= 0.95) {
            steps.push(step(
                format!("{SHARE} {:.2}", room + self.least),
                format!("for this server: a share that includes the {room:.2} of the GPU that others hold, and {:.2} of its own", self.least),
            )
            .computed());
        } else {
            steps.push(advice(format!(
                "a share that includes what the other server holds and what this one needs ({SHARE}), or a GPU of its own"
            )));
        }
        steps.push(advice(
            "or a GPU of its own for this server (CUDA_VISIBLE_DEVICES, docker run --gpus)",
        ));
        steps.push(others_on_the_gpu(message));
        steps
    }
}

/// That another model was loaded beside the one of a message, as the end of a sentence.
pub(super) fn of_models(message: &OomMessage) -> Option<String> {
    let ollama = message.inside == Some(Program::Ollama) || message.program == Program::Ollama;
    (ollama && message.tables.shows(Sign::SecondServer))
        .then(|| "; by the text another model was loaded already, and it stays on the GPU for a while after its last request".to_owned())
}

/// What a server's share leaves to all that it does not plan, where a request that it did not plan failed.
pub(super) fn beside_share(message: &OomMessage) -> Option<String> {
    let name = match message.inside? {
        Program::Vllm => "gpu_memory_utilization",
        Program::Sglang => "mem_fraction_static",
        _ => return None,
    };
    let setting = figures::setting(message, name)?;
    let share: f64 = setting
        .value
        .as_deref()?
        .parse()
        .ok()
        .filter(|share| (0.1..1.0).contains(share))?;
    let total = message.total?;
    let rest = Bytes((total.0 as f64 * (1.0 - share)) as u64);
    Some(format!(
        "{} {share} sets {} of {total} aside for weights and keys and values, which leaves about {rest} for activations, CUDA graphs, \
         image inputs, contexts and other processes, and that was used up",
        setting.written,
        total.saturating_sub(rest)
    ))
}
