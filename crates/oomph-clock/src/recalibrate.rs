//! What real steps teach of a machine's host and its GPU.

use crate::estimate::typical;
use crate::work::{Line, Path, Steps, Work};
use crate::{Figures, Host, alone};

/// What steps took a real GPU, each of them between waits for it: seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RealSteps {
    /// The whole step.
    pub whole: f64,
    /// Until all of it was issued.
    pub issued: f64,
}

/// How many times as long a machine takes as the clocks say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    /// Its host takes that many times as long as the default host, if the steps tell.
    pub host: Option<f64>,
    /// Its GPU takes that many times as long as its figures say, if the steps tell.
    pub gpu: Option<f64>,
}

/// Factors beyond these are no machine's.
const LEAST: f64 = 0.1;
const MOST: f64 = 20.0;
/// One that needs so many times as long as the other decides how long a step takes.
const DECIDES: f64 = 1.2;
/// With less than this part of a step between the end of its issue and its own, the GPU waits for the host.
const HIDDEN: f64 = 0.1;

/// What real steps of a job say, of which `steps` is what they do. `host` makes a host that takes everything so many times as
/// long as the default one; `known` is the factor that was known of this one. Nothing if steps differ, or no factor explains them.
pub fn factors(
    steps: &Steps,
    gpu: &Figures,
    host: &dyn Fn(f64) -> Host,
    known: f64,
    real: RealSteps,
) -> Option<Factors> {
    let step = typical(steps, gpu, &host(known))?;
    let played = |of_host, of_gpu| alone(steps, step, &gpu.slower(of_gpu), &host(of_host));
    let gpu_waits = real.issued > real.whole * (1.0 - HIDDEN);
    if steps_wait(steps, step) {
        // What was issued tells nothing: the host waits for the GPU in the middle of the step.
        // What is left of a step when one of the two takes next to nothing is what the other needs.
        let (_, of_gpu) = played(LEAST, 1.0);
        let (_, of_host) = played(known, LEAST);
        if of_gpu.max(of_host) < DECIDES * of_gpu.min(of_host) {
            return None;
        }
        return if of_gpu > of_host {
            let gpu = solve(|factor| played(known, factor).1, real.whole)?;
            Some(Factors {
                host: None,
                gpu: Some(gpu),
            })
        } else {
            let host = solve(|factor| played(factor, 1.0).1, real.whole)?;
            Some(Factors {
                host: Some(host),
                gpu: None,
            })
        };
    }
    let host = solve(|factor| played(factor, 1.0).0, real.issued);
    let gpu = (!gpu_waits)
        .then(|| solve(|factor| played(host.unwrap_or(known), factor).1, real.whole))
        .flatten();
    (host.is_some() || gpu.is_some()).then_some(Factors { host, gpu })
}

/// Whether the host waits for the GPU within a step.
fn steps_wait(steps: &Steps, step: &[Line]) -> bool {
    step.iter().any(|&line| {
        matches!(
            steps.table.get(line as usize),
            Some(Work::Wait | Work::Copy(Path::Pageable, ..))
        )
    })
}

/// The factor at which `seconds`, which grows with it, is `wanted`; nothing if none does it.
fn solve(seconds: impl Fn(f64) -> f64, wanted: f64) -> Option<f64> {
    let (mut low, mut high) = (LEAST, MOST);
    if seconds(low) > wanted || seconds(high) < wanted {
        return None;
    }
    for _ in 0..40 {
        let middle = (low * high).sqrt();
        if seconds(middle) < wanted {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some((low * high).sqrt())
}

/// What the factors of several jobs say of a GPU. Jobs differ among themselves by some 12 %; GPUs that the clocks are fitted to
/// (`fitted`) by some 5 % from what the clocks say, others by some 20 % (`bench/time`). So the fewer the jobs, the less they say.
pub fn gpu_factor(factors: &[f64], fitted: bool) -> f64 {
    let doubt = if fitted { 5.8 } else { 0.36 };
    let sum: f64 = factors.iter().map(|factor| factor.ln()).sum();
    (sum / (factors.len() as f64 + doubt)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Step;

    fn steps(bytes: f64, waits: bool) -> Steps {
        let mut table = vec![
            Work::Operator(false),
            Work::Moving(bytes, "fill".to_owned()),
        ];
        if waits {
            table.push(Work::Wait);
        }
        let step: Vec<Line> = (0..100)
            .flat_map(|_| [0, 1])
            .chain(waits.then_some(2))
            .collect();
        Steps {
            table,
            steps: vec![Step(4, step)],
            ..Steps::default()
        }
    }

    /// What is learned of a machine whose host and GPU take so many times as long.
    fn learned(bytes: f64, waits: bool, of_host: f64, of_gpu: f64) -> Factors {
        let steps = steps(bytes, waits);
        let gpu = Figures::of(oomph_gpus::find("rtx-4090").unwrap()).unwrap();
        let host = |factor| Host::slower(String::new(), factor);
        let step = typical(&steps, &gpu, &host(1.0)).unwrap();
        let (issued, whole) = alone(&steps, step, &gpu.slower(of_gpu), &host(of_host));
        factors(&steps, &gpu, &host, 1.0, RealSteps { whole, issued }).unwrap()
    }

    #[test]
    fn a_machine_is_known_by_its_steps() {
        let is = |found: Option<f64>, wanted: f64| (found.unwrap() / wanted - 1.0).abs() < 0.01;
        // Long kernels: the host is done early, and both are seen.
        let both = learned(1e9, false, 1.7, 1.3);
        assert!(is(both.host, 1.7) && is(both.gpu, 1.3));
        // Short ones: the GPU is hidden behind the host.
        let hidden = learned(1e3, false, 2.0, 1.3);
        assert!(is(hidden.host, 2.0) && hidden.gpu.is_none());
        // A wait at the end hides when the host was done: what decides is what the whole step tells.
        let waits = learned(1e9, true, 1.7, 1.3);
        assert!(is(waits.gpu, 1.3) && waits.host.is_none());
        let waits = learned(1e3, true, 2.0, 1.0);
        assert!(is(waits.host, 2.0) && waits.gpu.is_none());
    }

    /// BERT on an H200: kernels take 17 ms, and the host 24, or twice that. It was the GPU that was said to be 2.6 times as slow.
    #[test]
    fn a_host_that_needs_somewhat_longer_than_the_gpu_decides_where_steps_wait() {
        let learned = learned(4e7, true, 1.9, 1.0);
        assert!((learned.host.unwrap() / 1.9 - 1.0).abs() < 0.01 && learned.gpu.is_none());
    }

    #[test]
    fn steps_that_no_machine_takes_teach_nothing() {
        let gpu = Figures::of(oomph_gpus::find("rtx-4090").unwrap()).unwrap();
        let host = |factor| Host::slower(String::new(), factor);
        let real = RealSteps {
            whole: 1e-9,
            issued: 1e-9,
        };
        assert_eq!(factors(&steps(1e3, false), &gpu, &host, 1.0, real), None);
    }

    #[test]
    fn few_jobs_say_little_of_a_gpu_that_is_known() {
        assert!(gpu_factor(&[1.5], true) < 1.07);
        assert!(gpu_factor(&[1.5], false) > 1.3);
        assert!(gpu_factor(&[1.5; 20], true) > 1.3);
        assert!((gpu_factor(&[], true) - 1.0).abs() < 1e-12);
    }
}
