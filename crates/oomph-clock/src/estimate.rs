//! What to say of a job's steps.

use std::collections::HashMap;

use crate::work::{Steps, Work};
use crate::{Figures, Host, device, play};

/// What a step waits for most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The GPU's kernels.
    Device,
    /// The host, which does not launch quickly enough.
    Host,
    /// Copies from the host.
    Loading,
    /// Other GPUs.
    Communication,
}

/// Something that takes much of the GPU's time.
#[derive(Debug, Clone, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct Consumer {
    /// What it is.
    pub name: String,
    /// Seconds of a step.
    pub seconds: f64,
}

/// How long a step takes.
#[derive(Debug, Clone, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct Estimate {
    /// The median step.
    pub step_seconds: f64,
    /// Nine of ten steps should lie between this and `high`.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// The GPU's work in the median step.
    pub device_seconds: f64,
    /// The host's.
    pub host_seconds: f64,
    /// What decides.
    pub bound: Bound,
    /// Its part of the step.
    pub share: f64,
    /// Whether steps differ, so that `low` and `high` are those of different steps, too.
    pub steps_differ: bool,
    /// The host that is assumed.
    pub host: String,
    /// What takes most of the GPU's time, the most first.
    pub consumers: Vec<Consumer>,
    /// Kernels of which only the launch is known.
    pub unknown: Vec<String>,
}

/// Steps that differ by more than this do differ.
const DIFFERENT: f64 = 0.05;
/// Consumers that are named.
const NAMED: usize = 3;

impl Estimate {
    /// The steps of a job on a GPU, with this host; nothing if no whole step was recorded.
    pub fn new(steps: &Steps, gpu: &Figures, host: &Host) -> Option<Self> {
        // What comes before the first step's end includes the beginning of the script.
        let whole = if steps.steps.len() > 1 {
            &steps.steps[1..]
        } else {
            &steps.steps[..]
        };
        let mut played: Vec<_> = whole
            .iter()
            .flat_map(|step| {
                let played = play(steps, &step.1, gpu, host);
                std::iter::repeat_n((played, step), step.0 as usize)
            })
            .collect();
        played.sort_by(|a, b| a.0.seconds.total_cmp(&b.0.seconds));
        let (median, step) = *played.get(played.len() / 2)?;
        let (first, last) = (played.first()?.0.seconds, played.last()?.0.seconds);
        let steps_differ = last > first * (1.0 + DIFFERENT);
        let mut seconds: HashMap<String, f64> = HashMap::new();
        let mut unknown: Vec<String> = Vec::new();
        for work in step
            .1
            .iter()
            .filter_map(|&line| steps.table.get(line as usize))
        {
            let took = device::took(work, steps, gpu);
            if took.seconds > 0.0 {
                *seconds.entry(consumer(work, steps)).or_default() += took.seconds;
            }
            if let (true, Work::Kernel { name, .. }) = (took.guessed, work)
                && let Some(name) = steps.names.get(*name)
            {
                let name = plain(name);
                if !name.is_empty() && !unknown.contains(&name) {
                    unknown.push(name);
                }
            }
        }
        let mut consumers: Vec<_> = seconds
            .into_iter()
            .map(|(name, seconds)| Consumer { name, seconds })
            .collect();
        consumers.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then(a.name.cmp(&b.name)));
        consumers.truncate(NAMED);
        let (bound, busy) = if median.host > median.device {
            (Bound::Host, median.host)
        } else if median.loading > median.device / 2.0 {
            (Bound::Loading, median.loading)
        } else if median.communication > median.device / 2.0 {
            (Bound::Communication, median.communication)
        } else {
            (Bound::Device, median.device)
        };
        let spread = spread(bound, median.spread);
        Some(Self {
            step_seconds: median.seconds,
            low: (if steps_differ { first } else { median.seconds }) / (1.0 + spread),
            high: (if steps_differ { last } else { median.seconds }) * (1.0 + spread),
            device_seconds: median.device,
            host_seconds: median.host,
            bound,
            share: (busy / median.seconds).min(1.0),
            steps_differ,
            host: host.name.clone(),
            consumers,
            unknown,
        })
    }
}

/// The part by which nine of ten steps are off at most.
fn spread(bound: Bound, device: f64) -> f64 {
    match bound {
        Bound::Host => 0.40,
        _ => 0.08 + 0.8 * device,
    }
}

/// What a piece of work counts as.
fn consumer(work: &Work, steps: &Steps) -> String {
    match work {
        Work::Kernel { name, .. } => {
            let plain = steps
                .names
                .get(*name)
                .map(|name| plain(name))
                .unwrap_or_default();
            GROUPS
                .iter()
                .find(|(part, _)| plain.contains(part))
                .map_or(plain, |(_, group)| (*group).to_owned())
        }
        Work::Product(_) => "matrix products".to_owned(),
        Work::Convolution { .. } => "convolutions".to_owned(),
        Work::Fused { .. } => "attention".to_owned(),
        Work::BatchNorm { .. } => "normalization".to_owned(),
        Work::Moving(_, what) | Work::Fixed(_, what) => what.clone(),
        Work::Copy(..) => "copies".to_owned(),
        _ => String::new(),
    }
}

/// Parts of names of kernels, and what those that have them are called together.
const GROUPS: &[(&str, &str)] = &[
    ("multi_tensor_apply", "steps over lists of tensors"),
    ("norm", "normalization"),
    ("Norm", "normalization"),
    ("GammaBeta", "normalization"),
    ("Moments", "normalization"),
    ("oft", "softmax"),
    ("dropout", "dropout"),
    ("nll_loss", "losses"),
    ("reduce_kernel", "reductions"),
    ("CatArray", "concatenation"),
    ("elementwise_kernel", "elementwise kernels"),
    ("embedding", "embeddings"),
    ("pool", "pooling"),
    ("flash_", "attention"),
    ("fmha", "attention"),
];

/// The longest word of a mangled name before its templates: `_ZN2at6native13reduce_kernelI…` is `reduce_kernel`.
fn plain(mangled: &str) -> String {
    let Some(mut rest) = mangled.strip_prefix("_Z") else {
        return mangled.to_owned();
    };
    rest = rest.trim_start_matches(['N', 'K']);
    let mut last = "";
    loop {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let length: usize = rest[..digits].parse().unwrap_or(0);
        if length == 0 || digits + length > rest.len() {
            return last.to_owned();
        }
        last = &rest[digits..digits + length];
        rest = &rest[digits + length..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mangled_names_become_plain() {
        assert_eq!(
            plain("_ZN2at6native13reduce_kernelILi128E"),
            "reduce_kernel"
        );
        assert_eq!(plain("_Z3addPf"), "add");
        assert_eq!(plain("triton_poi_fused_add_0"), "triton_poi_fused_add_0");
        assert_eq!(plain("_ZN9"), "");
    }
}
