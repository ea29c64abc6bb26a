//! What to say of a job's steps.

use std::collections::HashMap;

use crate::work::{Line, Steps, Work};
use crate::{Figures, Host, Played, device, play};

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
    /// Of the GPU's work, transfers to and from the host.
    pub loading_seconds: f64,
    /// Of the GPU's work, what goes between GPUs.
    pub communication_seconds: f64,
    /// Transfers in streams of their own, beside the GPU's other work.
    pub beside_seconds: f64,
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
        let played = played(steps, gpu, host);
        let (median, step) = *usual(&played)?;
        let (first, last) = (played.first()?.0.seconds, played.last()?.0.seconds);
        let steps_differ = last > first * (1.0 + DIFFERENT);
        let mut seconds: HashMap<String, f64> = HashMap::new();
        let mut unknown: Vec<String> = Vec::new();
        for work in step
            .iter()
            .filter_map(|&line| steps.table.get(line as usize))
        {
            let took = device::took(work, steps, gpu);
            if took.seconds > 0.0 && !matches!(work, Work::Copy(_, _, Some(_))) {
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
        } else if median.beside > median.device {
            (Bound::Loading, median.beside)
        } else if median.loading > median.device / 2.0 {
            (Bound::Loading, median.loading)
        } else if median.communication > median.device / 2.0 {
            (Bound::Communication, median.communication)
        } else {
            (Bound::Device, median.device)
        };
        let [shortest, longest] = range(&median);
        Some(Self {
            step_seconds: median.seconds,
            low: (if steps_differ { first } else { median.seconds }) * shortest,
            high: (if steps_differ { last } else { median.seconds }) * longest,
            device_seconds: median.device,
            host_seconds: median.host,
            loading_seconds: median.loading,
            communication_seconds: median.communication,
            beside_seconds: median.beside,
            bound,
            share: (busy / median.seconds).min(1.0),
            steps_differ,
            host: host.name.clone(),
            consumers,
            unknown,
        })
    }
}

/// Each step as it is played, the shortest first.
fn played<'a>(steps: &'a Steps, gpu: &Figures, host: &Host) -> Vec<(Played, &'a [Line])> {
    let mut whole: Vec<(u32, &[Line])> = match &steps.steps[..] {
        [_, later @ ..] if !later.is_empty() => {
            later.iter().map(|step| (step.0, &step.1[..])).collect()
        }
        // What comes before the end of the first step includes the beginning of the script.
        all => all
            .iter()
            .map(|step| (step.0, after_setup(steps, &step.1)))
            .collect(),
    };
    // A generation and the pass that it ends with are two ends, with nothing between them.
    let works = |(_, step): &(u32, &[Line])| {
        (step
            .iter()
            .filter_map(|&line| steps.table.get(line as usize)))
        .any(|work| !matches!(work, Work::Place(_) | Work::Modules(_)))
    };
    if whole.iter().any(works) {
        whole.retain(works);
    }
    let mut played: Vec<_> = whole
        .into_iter()
        .flat_map(|(count, step)| {
            let played = play(steps, step, gpu, host);
            std::iter::repeat_n((played, step), count as usize)
        })
        .collect();
    played.sort_by(|a, b| a.0.seconds.total_cmp(&b.0.seconds));
    played
}

/// The median of sorted steps, the lower one of two: what a few steps do besides, an evaluation say, is not what each does.
fn usual<T>(played: &[T]) -> Option<&T> {
    played.get(played.len().saturating_sub(1) / 2)
}

/// What comes after the last work of the setup and of loading weights.
fn after_setup<'a>(steps: &Steps, step: &'a [Line]) -> &'a [Line] {
    let is_setup = |line: &Line| {
        let Some(Work::Place(place)) = steps.table.get(*line as usize) else {
            return None;
        };
        let (phase, _) = steps.places.get(*place)?;
        Some(phase == "setup" || phase == "load")
    };
    let places: Vec<(usize, bool)> = step
        .iter()
        .enumerate()
        .filter_map(|(at, line)| Some((at, is_setup(line)?)))
        .collect();
    let last = places.iter().rposition(|(_, setup)| *setup);
    let next = last.map_or(Some(&(0, false)), |last| places.get(last + 1));
    next.map_or(step, |(at, _)| &step[*at..])
}

/// What the median step does, unless steps differ.
pub(crate) fn typical<'a>(steps: &'a Steps, gpu: &Figures, host: &Host) -> Option<&'a [Line]> {
    let played = played(steps, gpu, host);
    let (first, last) = (played.first()?.0.seconds, played.last()?.0.seconds);
    (last <= first * (1.0 + DIFFERENT)).then_some(usual(&played)?.1)
}

/// What one module's work of one kind takes the GPU in one phase.
#[derive(Debug, Clone, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct Part {
    /// The phase of the script.
    pub phase: String,
    /// The module, empty for none.
    pub module: String,
    /// What kind of work it is.
    pub work: String,
    /// Seconds of a step.
    pub seconds: f64,
}

/// The median step's work by phase, module and kind, the most first.
pub fn parts(steps: &Steps, gpu: &Figures, host: &Host) -> Vec<Part> {
    all_parts(steps, gpu, host, false)
}

/// The same with copies that run beside kernels, in streams of their own.
pub fn parts_and_copies(steps: &Steps, gpu: &Figures, host: &Host) -> Vec<Part> {
    all_parts(steps, gpu, host, true)
}

fn all_parts(steps: &Steps, gpu: &Figures, host: &Host, copies: bool) -> Vec<Part> {
    let played = played(steps, gpu, host);
    let Some((_, step)) = usual(&played) else {
        return Vec::new();
    };
    let mut place = usize::MAX;
    let mut seconds: HashMap<(usize, String), f64> = HashMap::new();
    for work in step
        .iter()
        .filter_map(|&line| steps.table.get(line as usize))
    {
        let took = device::took(work, steps, gpu).seconds;
        match work {
            Work::Place(number) => place = *number,
            Work::Copy(_, _, Some(_)) if !copies => {}
            _ if took > 0.0 => {
                *seconds.entry((place, consumer(work, steps))).or_default() += took;
            }
            _ => {}
        }
    }
    let mut parts: Vec<_> = seconds
        .into_iter()
        .map(|((place, work), seconds)| {
            let (phase, module) = steps.places.get(place).cloned().unwrap_or_default();
            Part {
                phase,
                module,
                work,
                seconds,
            }
        })
        .collect();
    parts.sort_by(|a, b| {
        let names = |part: &Part| (part.phase.clone(), part.module.clone(), part.work.clone());
        (b.seconds.total_cmp(&a.seconds)).then_with(|| names(a).cmp(&names(b)))
    });
    parts
}

/// How many times as long nine of ten steps take, at least and at most: where the host and the GPU take about as long, either may be
/// the one that decides.
fn range(step: &Played) -> [f64; 2] {
    const OF_HOST: f64 = 1.5;
    let of_device = 1.1 + step.spread;
    let device = step.device.max(step.beside);
    if step.host.max(device) <= 0.0 {
        return [1.0 / of_device, of_device];
    }
    let seconds = |host: f64, gpu: f64| (step.host * host).max(device * gpu);
    let told = seconds(1.0, 1.0);
    [
        seconds(1.0 / OF_HOST, 1.0 / of_device) / told,
        seconds(OF_HOST, of_device) / told,
    ]
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
        Work::Attention(_) => "attention".to_owned(),
        Work::BatchNorm { .. } => "normalization".to_owned(),
        Work::Moving(_, what)
        | Work::Fixed(_, what)
        | Work::Chain(_, _, _, what)
        | Work::Walk { what, .. } => what.clone(),
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
    fn a_single_step_begins_after_the_setup_and_its_parts_are_told_apart() {
        let place = |phase: &str, module: &str| (phase.to_owned(), module.to_owned());
        let steps = Steps {
            places: vec![
                place("setup", ""),
                place("forward", "Net.a"),
                place("load", "Net.b"),
            ],
            table: vec![
                Work::Place(0),
                Work::Place(1),
                Work::Place(2),
                Work::Moving(1e9, "fill".to_owned()),
                Work::Moving(2e9, "pooling".to_owned()),
            ],
            ..Steps::default()
        };
        let gpu = Figures::of(oomph_gpus::find("h200").unwrap()).unwrap();
        let first = Steps {
            steps: vec![crate::Step(1, vec![0, 3, 2, 3, 1, 4, 3])],
            ..steps.clone()
        };
        let found = parts(&first, &gpu, &Host::default());
        let told: Vec<_> = found
            .iter()
            .map(|part| {
                (
                    part.phase.as_str(),
                    part.module.as_str(),
                    part.work.as_str(),
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                ("forward", "Net.a", "pooling"),
                ("forward", "Net.a", "fill")
            ]
        );
        let device = Estimate::new(&first, &gpu, &Host::default())
            .unwrap()
            .device_seconds;
        let all: f64 = found.iter().map(|part| part.seconds).sum();
        assert!((all / device - 1.0).abs() < 1e-9);
        // Of several steps the later ones count whole.
        let later = Steps {
            steps: vec![crate::Step(1, vec![0, 3]), crate::Step(2, vec![2, 3, 1, 4])],
            ..steps
        };
        assert_eq!(parts(&later, &gpu, &Host::default()).len(), 2);
    }

    #[test]
    fn the_host_widens_the_interval_where_it_takes_almost_as_long_as_the_gpu() {
        let played = |host, device| Played {
            host,
            device,
            spread: 0.1,
            ..Played::default()
        };
        let near = |found: [f64; 2], wanted: [f64; 2]| {
            (found.iter().zip(wanted)).all(|(found, wanted)| (found - wanted).abs() < 1e-9)
        };
        assert!(near(range(&played(0.1, 1.0)), [1.0 / 1.2, 1.2]));
        assert!(near(range(&played(0.95, 1.0)), [1.0 / 1.2, 0.95 * 1.5]));
        assert!(near(range(&played(1.0, 0.1)), [1.0 / 1.5, 1.5]));
        assert!(near(range(&played(1.0, 0.9)), [0.75, 1.5]));
    }

    #[test]
    fn ends_of_steps_with_nothing_before_them_are_no_steps() {
        let steps = Steps {
            table: vec![
                Work::Place(0),
                Work::Moving(1e9, "fill".to_owned()),
                Work::Modules([0.0; 3]),
            ],
            ..Steps::default()
        };
        let gpu = Figures::of(oomph_gpus::find("h200").unwrap()).unwrap();
        let seconds = |of: &[&[Line]]| {
            let steps = Steps {
                steps: of
                    .iter()
                    .map(|step| crate::Step(1, step.to_vec()))
                    .collect(),
                ..steps.clone()
            };
            Estimate::new(&steps, &gpu, &Host::default()).unwrap()
        };
        let (work, nothing): (&[Line], &[Line]) = (&[0, 1, 2], &[0, 2]);
        let plain = seconds(&[work, work, work]);
        let doubled = seconds(&[work, nothing, work, nothing, work, nothing]);
        assert!((plain.step_seconds / doubled.step_seconds - 1.0).abs() < 1e-9);
        assert!(!doubled.steps_differ && doubled.device_seconds > 1e-4);
    }

    #[test]
    fn of_two_steps_the_shorter_is_the_usual_one() {
        let steps = |of: &[&[Line]]| Steps {
            table: vec![Work::Moving(1e9, "fill".to_owned())],
            steps: of
                .iter()
                .map(|step| crate::Step(1, step.to_vec()))
                .collect(),
            ..Steps::default()
        };
        let gpu = Figures::of(oomph_gpus::find("h200").unwrap()).unwrap();
        let seconds = |of| {
            let found = Estimate::new(&steps(of), &gpu, &Host::default()).unwrap();
            assert!(found.steps_differ || of.len() == 2);
            found.step_seconds
        };
        // The first step is not one of them; the last evaluates, too.
        let usual = seconds(&[&[0], &[0; 5]]);
        let evaluates = seconds(&[&[0], &[0; 5], &[0; 50]]);
        assert!((evaluates / usual - 1.0).abs() < 1e-9);
    }

    /// A copy beside kernels is no part of what the device does, but of the times of scopes on a virtual clock.
    #[test]
    fn copies_beside_kernels_are_parts_where_they_are_asked_for() {
        let steps = Steps {
            places: vec![("optimizer".to_owned(), String::new())],
            table: vec![
                Work::Place(0),
                Work::Copy(crate::Path::Pinned, 1e9, Some(crate::Way::Out)),
                Work::Moving(1e6, "fill".to_owned()),
            ],
            steps: vec![crate::Step(1, vec![0, 1, 2])],
            ..Steps::default()
        };
        let gpu = Figures::of(oomph_gpus::find("h200").unwrap()).unwrap();
        let seconds = |found: Vec<Part>| -> f64 { found.iter().map(|part| part.seconds).sum() };
        let alone = seconds(parts(&steps, &gpu, &Host::default()));
        let both = seconds(parts_and_copies(&steps, &gpu, &Host::default()));
        assert!(alone < 1e-4 && both > 1e9 / gpu.link, "{alone} {both}");
    }

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
