//! What a lever is: every facet of it behind one trait, [`Facets`], which each file of `levers/`
//! implements for the lever that it is named after. All others ask.

use oomph_allocator::Config;
use serde::{Deserialize, Serialize};

use crate::by_hand::{Context, Script, Work};
use crate::draft::Draft;
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;
use crate::sharding::{Fabric, Passes, Sharing, Volume};
use crate::units::Sequence;

/// How far results stay the same under a lever; the later, the less.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Results {
    /// Bitwise the same on the same kernels.
    Exact,
    /// The same mathematics in another order: equal to rounding.
    Rounding,
    /// Other numerics: another precision, or compressed state.
    Numerics,
}

/// A floating-point type of fewer bits.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the types' own names")]
pub enum Dtype {
    #[default]
    Bf16,
    Fp16,
}

impl Dtype {
    /// As plan files and `--json` have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }

    /// PyTorch's name.
    pub const fn torch(self) -> &'static str {
        match self {
            Self::Bf16 => "torch.bfloat16",
            Self::Fp16 => "torch.float16",
        }
    }
}

/// Where the search may use a lever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It costs no time and keeps results: the job is run with all of these at once, and what helped
    /// is part of every plan.
    Free,
    /// Only a run tells what it does: the job is run with it, on top of what is free.
    Measured,
    /// The same for a job that infers, each of them on top of the one before.
    Ladder,
    /// It is combined with the others; of a group at most one is chosen.
    Combined(Group),
    /// It is combined with all of these, for some of its modules.
    Modules,
    /// It buys back time where memory is enough.
    Time,
    /// Somebody asks for it: `--compile`, several GPUs.
    Asked,
}

/// What a combined lever is about: levers of one group replace each other. Combinations are looked at
/// in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "plain words")]
pub enum Group {
    Optimizer,
    Batch,
    Precision,
    Loss,
    InPlace,
    Recomputation,
    Gradients,
    Weights,
    Attention,
    Backward,
    Allocator,
}

impl Group {
    /// All of them, in order.
    pub(crate) const ALL: [Self; 11] = [
        Self::Optimizer,
        Self::Batch,
        Self::Precision,
        Self::Loss,
        Self::InPlace,
        Self::Recomputation,
        Self::Gradients,
        Self::Weights,
        Self::Attention,
        Self::Backward,
        Self::Allocator,
    ];
}

/// What becomes of the optimizer's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepChange {
    /// Another class makes it, which knows one way only.
    Replaced,
    /// It is one kernel for many tensors, without temporaries.
    Fused,
    /// It is made for each parameter within the backward pass.
    InBackward,
    /// Its state comes from host memory.
    OnHost,
    /// Its gradients do.
    GradientsOnHost,
}

/// All there is to say of a lever. What has a default is so for most of them.
pub(crate) trait Facets {
    // ---- what it is ----

    /// How far the job's results stay the same.
    fn results(&self) -> Results;

    /// A few words for a table.
    fn label(&self) -> String;

    /// When it steps in, in a script that is run with it: levers step in from the lowest number to the
    /// highest, the lower the further outside. Micro-batching (10) decides whether a step is made at
    /// all, gradient scaling (20) what it gets, and the rest (50) how it is made.
    fn order() -> u32
    where
        Self: Sized,
    {
        50
    }

    /// The modules that it is for, if it names any.
    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        None
    }

    /// Variables that must be in the environment before torch is imported. `get` reads it.
    fn environment(&self, _get: &dyn Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What a shell starts the script with, where that does all of it.
    fn command(&self) -> Option<String> {
        None
    }

    /// Whether it has to be there before Python starts, which `oomph run` sees to.
    fn needs_launcher(&self) -> bool {
        false
    }

    /// Whether a CPU does not show what it does to results: other kernels of the GPU.
    fn is_only_on_gpu(&self) -> bool {
        false
    }

    // ---- where the search may use it ----

    /// When the search thinks of it.
    fn stage() -> Stage
    where
        Self: Sized;

    /// What of it is worth trying on a job.
    fn candidates(_model: &Model, _options: &Options) -> Vec<Self>
    where
        Self: Sized,
    {
        Vec::new()
    }

    /// Why a script's ways rule it out, where that is worth a word.
    fn excluded(_model: &Model) -> Option<&'static str>
    where
        Self: Sized,
    {
        None
    }

    /// The modules that it may be for, in the order in which that pays.
    fn sequence(_draft: &Draft<'_>) -> Sequence
    where
        Self: Sized,
    {
        Sequence::default()
    }

    /// The same with the smallest blocks instead of those around them, if some lie in others.
    fn finer_sequence(_draft: &Draft<'_>) -> Sequence
    where
        Self: Sized,
    {
        Sequence::default()
    }

    /// The lever for these modules, if it is for some of a sequence.
    fn of_modules(_modules: Vec<String>) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// Whether it can have what checkpointed modules keep: their arguments.
    fn takes_arguments() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Whether a training loop may apply it between two steps.
    fn is_midway() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Whether it goes together with others.
    fn goes_with(&self, _others: &[Lever]) -> bool {
        true
    }

    /// Whether it goes together with a way to share the job: what was seen to, not what might.
    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        true
    }

    /// Leaves those of its modules to another lever that lie inside of `blocks`; whether any remain.
    fn leave_to(&mut self, _blocks: &[String]) -> bool {
        true
    }

    /// The same for so many percent of what it moves, if it can leave the rest where it is.
    fn in_part(&self, _model: &Model, _percent: u8) -> Option<Lever> {
        None
    }

    /// What runs of it teach of, where that is not its name: its kinds may be unlike.
    fn taught_as(&self) -> Option<&'static str> {
        None
    }

    // ---- what it does to a job ----

    /// Changes a draft as the lever would change the job. What only changes times, or what happens
    /// outside of training steps, or what only a run shows, changes nothing here.
    fn apply(&self, _draft: &mut Draft<'_>) {}

    /// Nanoseconds of the host in a step that the record of a run with it does not have.
    fn host_ns(&self) -> f64 {
        0.0
    }

    /// Whether it is applied to what all others have made of a draft, not to the job as it is.
    fn is_applied_last(&self) -> bool {
        false
    }

    /// Whether a run is to tell what it does to a job that nothing else makes fit with the same results: what a
    /// model of the job says of it may be far too much there, as where gradients of gradients are taken.
    fn is_last_resort(&self) -> bool {
        false
    }

    /// Whether passes without gradients before the first step may need less with it, too; a run tells how much.
    fn lessens_evaluation(&self) -> bool {
        false
    }

    /// Whether it runs the model on samples before the first step, on fewer where memory is short.
    fn looks_at_samples(&self) -> bool {
        false
    }

    /// Changes the allocator's settings.
    fn configure(&self, _config: &mut Config) {}

    /// What a run with it does not tell.
    fn unknown(&self) -> Option<&'static str> {
        None
    }

    /// How the job is shared among GPUs, if it is.
    fn sharing(&self) -> Option<Sharing> {
        None
    }

    /// Nanoseconds that a step waits for the other GPUs, beside what its passes hide; they take so long
    /// for all `parts` micro-batches together.
    fn waits(&self, _fabric: &Fabric, _volume: &Volume, _passes: Passes, _parts: f64) -> f64 {
        0.0
    }

    /// Into how many parts each batch that is trained on goes, one after the other.
    fn micro_batches(&self) -> Option<u32> {
        None
    }

    /// The type of fewer bits that models compute in while they train.
    fn computes_in(&self) -> Option<Dtype> {
        None
    }

    /// Whether gradients are scaled until the step.
    fn scales_gradients(&self) -> bool {
        false
    }

    /// What becomes of the optimizer's step.
    fn step(&self) -> Option<StepChange> {
        None
    }

    /// Modules whose inside is computed again.
    fn checkpointed(&self) -> &[String] {
        &[]
    }

    /// Modules whose results are computed again.
    fn recomputed(&self) -> &[String] {
        &[]
    }

    /// Modules that run some rows at a time, and whose inside is not to be treated by itself.
    fn chunked(&self) -> &[String] {
        &[]
    }

    // ---- by hand ----

    /// Where the change goes and how it looks, in words.
    fn snippet(&self) -> String;

    /// Changes the script; `None` if there is no clear place. `levers` are all of the plan.
    fn place(&self, _work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        None
    }

    /// The line of the script that the words are about.
    fn line(&self, script: &Script<'_>) -> Option<usize>;

    /// What is around the model's call and the loss.
    fn context(&self) -> Option<Context> {
        None
    }

    /// What takes its place by hand where that saves too little: it needs less memory and more time.
    fn coarser(&self, _levers: &[Lever]) -> Option<Lever> {
        None
    }

    /// Whether the change by hand waits for copies to the host, which the lever hides.
    fn waits_by_hand(&self) -> bool {
        false
    }

    /// What remains to be done in any case.
    fn rest(&self) -> Option<String> {
        None
    }

    /// The arguments of frameworks that do it.
    fn switches(&self) -> Switches {
        Switches::default()
    }
}

/// What frameworks have of their own for a lever: arguments with their values.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    /// Of Hugging Face's `TrainingArguments`.
    pub(crate) huggingface: Option<(&'static str, String)>,
    /// Of `lightning.Trainer`.
    pub(crate) lightning: Option<(&'static str, String)>,
    /// Of `Accelerator`.
    pub(crate) accelerate: Option<(&'static str, String)>,
    /// Whether only a run tells that the framework does the same.
    pub(crate) needs_run: bool,
}

/// A boolean of Python.
pub(crate) const fn python(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

pub(crate) fn on(enabled: bool) -> &'static str {
    if enabled { "on" } else { "off" }
}

/// `GPT.blocks[0:6]` for consecutive numbers, `12 parts of GPT.blocks[0:6]` for what is in such blocks, else the first name and
/// how many more.
#[must_use]
pub fn places(modules: &[String]) -> String {
    // Runs of consecutive blocks, in the order of the plan: the stem, the first number and the last, and how many modules.
    let mut runs: Vec<Run<'_>> = Vec::new();
    for name in modules {
        let Some(found) = run_of(name) else {
            return first_and_more(modules);
        };
        match runs.last_mut() {
            Some(run)
                if run.stem == found.stem
                    && run.inside == found.inside
                    && (run.last + 1 == found.first || run.inside && run.last == found.first) =>
            {
                run.last = found.first;
                run.modules += 1;
            }
            _ => runs.push(found),
        }
    }
    match &runs[..] {
        [run] if run.modules > 1 => run.to_string(),
        [one, other] if one.modules > 1 && other.modules > 1 => format!("{one} and {other}"),
        _ => first_and_more(modules),
    }
}

/// The names of modules, as comments of Python.
pub(crate) fn comments(modules: &[String]) -> String {
    let lines = modules.iter().map(|module| format!("# {module}\n"));
    lines.collect::<String>().trim_end().to_owned()
}

fn first_and_more(modules: &[String]) -> String {
    match modules {
        [] => "nothing".to_owned(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

/// Blocks with consecutive numbers.
struct Run<'a> {
    stem: &'a str,
    first: u32,
    last: u32,
    /// Whether the modules are parts of the blocks.
    inside: bool,
    modules: usize,
}

impl std::fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.inside {
            write!(f, "{} parts of ", self.modules)?;
        }
        write!(f, "{}[{}:{}]", self.stem, self.first, self.last + 1)
    }
}

/// The block that a name is of, or is inside of: the first number in it, of `blocks.3` or of `encoder_layer_3`.
fn run_of(name: &str) -> Option<Run<'_>> {
    let mut at = 0;
    for part in name.split('.') {
        let end = part.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (word, number) = part.split_at(end);
        if at > 0 && (word.is_empty() || word.ends_with('_')) && !number.is_empty() {
            let stem = name.get(..at + end)?;
            return Some(Run {
                stem: stem.strip_suffix('.').unwrap_or(stem),
                first: number.parse().ok()?,
                last: number.parse().ok()?,
                inside: name.len() > at + part.len(),
                modules: 1,
            });
        }
        at += part.len() + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_modules_are_a_range() {
        let names = |numbers: &[u32]| -> Vec<String> {
            numbers.iter().map(|n| format!("GPT.blocks.{n}")).collect()
        };
        assert_eq!(places(&names(&[0, 1, 2])), "GPT.blocks[0:3]");
        assert_eq!(places(&names(&[0, 2])), "GPT.blocks.0 and 1 more");
        assert_eq!(places(&names(&[4])), "GPT.blocks.4");
        let series = [0, 1, 2].map(|n| format!("ViT.encoder_layer_{n}"));
        assert_eq!(places(&series), "ViT.encoder_layer_[0:3]");
        let of = |names: &[&str]| {
            places(
                &names
                    .iter()
                    .map(|&name| name.to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        let parts = ["N.h.3.norm", "N.h.3.mlp.1", "N.h.4.norm", "N.h.5.mlp.1"];
        assert_eq!(of(&parts), "4 parts of N.h[3:6]");
        let stages = ["R.layer1.0", "R.layer1.1", "R.layer2.0", "R.layer2.1"];
        assert_eq!(of(&stages), "R.layer1[0:2] and R.layer2[0:2]");
        assert_eq!(of(&["R.layer1.0.bn1", "R.fc"]), "R.layer1.0.bn1 and 1 more");
        assert_eq!(of(&["R.0.bn1", "R.2.bn1"]), "R.0.bn1 and 1 more");
        assert_eq!(of(&[]), "nothing");
        let other = ["ViT.conv1", "ViT.conv2"].map(str::to_owned);
        assert_eq!(places(&other), "ViT.conv1 and 1 more");
    }
}
