//! The host and the GPU as two queues.

use crate::device::took;
use crate::work::{Line, Path, Steps, Work};
use crate::{Figures, Host};

/// Launches that a queue holds: with more the host waits.
const DEPTH: usize = 1024;

/// One step, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Played {
    /// From the end of the step before to its own.
    pub seconds: f64,
    /// The GPU's work.
    pub device: f64,
    /// The host's work.
    pub host: f64,
    /// How far the GPU's time may be off, as a part of the step: the deviations of its kernels.
    pub spread: f64,
    /// Of the GPU's work, what transfers to and from the host take.
    pub loading: f64,
    /// What transfers take that run beside the GPU's other work.
    pub beside: f64,
    /// Of the GPU's work, what goes between GPUs.
    pub communication: f64,
}

/// Plays a step as one of many that follow each other.
pub fn play(steps: &Steps, step: &[Line], gpu: &Figures, host: &Host) -> Played {
    // The second turn begins as a step in the middle of a job does.
    let mut queues = Queues::default();
    queues.turn(steps, step, gpu, host);
    let before = queues.end();
    let mut sum = queues.turn(steps, step, gpu, host);
    sum.seconds = queues.end() - before;
    sum
}

/// Plays a step that begins and ends with an idle GPU: seconds until all of it is issued, and until it is over.
pub fn alone(steps: &Steps, step: &[Line], gpu: &Figures, host: &Host) -> (f64, f64) {
    let mut queues = Queues::default();
    queues.turn(steps, step, gpu, host);
    (queues.host, queues.end())
}

#[derive(Debug, Default)]
struct Queues {
    /// When the host is done with what it did so far.
    host: f64,
    /// When the GPU is.
    device: f64,
    /// When the copies are over that run beside its kernels.
    link: f64,
    /// When each of the newest launches ends.
    ends: std::collections::VecDeque<f64>,
}

impl Queues {
    fn end(&self) -> f64 {
        self.host.max(self.device).max(self.link)
    }

    fn turn(&mut self, steps: &Steps, step: &[Line], gpu: &Figures, host: &Host) -> Played {
        let mut sum = Played::default();
        let mut deviations = 0.0;
        let works: Vec<_> = step
            .iter()
            .filter_map(|&line| steps.table.get(line as usize))
            .collect();
        let number = |is: fn(&Work) -> bool| works.iter().filter(|work| is(work)).count() as f64;
        // Nodes that a backward pass makes itself, where it computes activations again, are not counted: its operators are.
        let at_least = number(|work| matches!(work, Work::Operator(true)));
        let trains = at_least > 0.0;
        let (own, module) = if trains {
            (host.step, host.module)
        } else {
            (host.pass, host.module_alone)
        };
        // The log has modules and nodes at its end; they are busy all along.
        let mut between = 0.0;
        for work in &works {
            if let Work::Modules(count, nodes) = work {
                let nodes = if trains { nodes.max(at_least) } else { 0.0 };
                between += module * count + host.node * nodes;
            }
        }
        between /= number(|work| !is_of_host(work)).max(1.0);
        self.busy(&mut sum, own);
        for work in works {
            match work {
                Work::Operator(false) => self.busy(&mut sum, host.operator),
                Work::Operator(true) | Work::Modules(..) | Work::Place(_) => {}
                Work::Wait => {
                    self.busy(&mut sum, host.wait);
                    self.host = self.end();
                }
                _ => {
                    let took = took(work, steps, gpu);
                    self.busy(&mut sum, between + host.launch * f64::from(took.launches));
                    if self.ends.len() >= DEPTH
                        && let Some(end) = self.ends.pop_front()
                    {
                        self.host = self.host.max(end);
                    }
                    if let Work::Copy(_, _, true) = work {
                        self.link = self.link.max(self.host) + took.seconds;
                        sum.beside += took.seconds;
                        continue;
                    }
                    self.device = self.device.max(self.host) + took.seconds;
                    self.ends.push_back(self.device);
                    if took.waits {
                        self.host = self.end();
                    }
                    sum.device += took.seconds;
                    deviations += took.seconds * took.deviation;
                    match work {
                        Work::Copy(path, ..) if *path != Path::Within => {
                            sum.loading += took.seconds;
                        }
                        Work::Fixed(_, what) if what == "collective" => {
                            sum.communication += took.seconds;
                        }
                        _ => {}
                    }
                }
            }
        }
        sum.spread = if sum.device > 0.0 {
            deviations / sum.device
        } else {
            0.0
        };
        sum
    }

    fn busy(&mut self, sum: &mut Played, seconds: f64) {
        self.host += seconds;
        sum.host += seconds;
    }
}

/// Whether this keeps only the host busy.
const fn is_of_host(work: &Work) -> bool {
    matches!(
        work,
        Work::Operator(_) | Work::Modules(..) | Work::Place(_) | Work::Wait
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_nodes_keep_the_host_busy_where_a_step_trains() {
        let gpu = Figures::of(oomph_gpus::find("h200").unwrap()).unwrap();
        let host = Host::default();
        let small = Work::Moving(1.0, "cudnn".to_owned());
        let steps = |backward| Steps {
            table: vec![
                Work::Operator(backward),
                small.clone(),
                Work::Modules(10.0, 30.0),
            ],
            ..Steps::default()
        };
        let busy = |backward| play(&steps(backward), &[0, 1, 0, 1, 2], &gpu, &host).host;
        let training = host.step + 2.0 * host.launch + 10.0 * host.module + 30.0 * host.node;
        assert!((busy(true) - training).abs() < 1e-9);
        let inferring = host.pass + 2.0 * (host.operator + host.launch) + 10.0 * host.module_alone;
        assert!((busy(false) - inferring).abs() < 1e-9);
    }
}
