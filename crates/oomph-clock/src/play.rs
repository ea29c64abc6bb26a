//! The host, the GPU and what copies beside it as queues.

use crate::device::took;
use crate::host::{self, Threads};
use crate::work::{Line, Path, Steps, Way, Work};
use crate::{Figures, Host};

/// Launches that a queue holds: with more the host waits.
const DEPTH: usize = 1024;
/// Bytes of a number that a script reads, at most.
const NUMBER: f64 = 16.0;

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
    /// When the copies are over that run beside its kernels: those to the host, and those from it.
    links: [f64; 2],
    /// When each of the newest launches ends.
    ends: std::collections::VecDeque<f64>,
}

impl Queues {
    fn end(&self) -> f64 {
        let [out, into] = self.links;
        self.host.max(self.device).max(out).max(into)
    }

    fn turn(&mut self, steps: &Steps, step: &[Line], gpu: &Figures, host: &Host) -> Played {
        let mut sum = Played::default();
        let mut deviations = 0.0;
        let works: Vec<_> = step
            .iter()
            .filter_map(|&line| steps.table.get(line as usize))
            .collect();
        let busy = Busy::new(steps, &works, host.levers);
        self.busy(&mut sum, host.factor * busy.step);
        let (mut autograds, mut optimizes, mut prepared) = (false, false, false);
        for work in works {
            if !prepared && needs_batch(steps, work) {
                prepared = true;
                self.busy(&mut sum, host.beside);
            }
            match work {
                Work::Operator(backward) => {
                    autograds = *backward;
                    let operator = if optimizes {
                        busy.optimizer
                    } else {
                        of(host::OPERATOR, autograds)
                    };
                    self.busy(&mut sum, host.factor * operator);
                }
                Work::Place(_) => optimizes = is_in(steps, work, "optimizer"),
                Work::Modules(_) => {}
                Work::Wait => {
                    self.busy(&mut sum, host.factor * host::WAIT);
                    self.host = self.end();
                }
                _ => {
                    let took = took(work, steps, gpu);
                    if let Work::Copy(_, _, Some(_)) = work {
                        // No operator of the job's, in whatever phase.
                        self.busy(&mut sum, host.factor * of(host::launch(work), autograds));
                    } else if !optimizes {
                        let launch =
                            of(host::launch(work), autograds) + of(busy.between, autograds);
                        self.busy(&mut sum, host.factor * launch);
                    }
                    if self.ends.len() >= DEPTH
                        && let Some(end) = self.ends.pop_front()
                    {
                        self.host = self.host.max(end);
                    }
                    if let Work::Copy(_, _, Some(way)) = work {
                        let [out, into] = &mut self.links;
                        let link = if *way == Way::Out { out } else { into };
                        *link = link.max(self.host) + took.seconds;
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
        if !prepared {
            self.busy(&mut sum, host.beside);
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

/// What keeps the default host busy beside single operators and launches, seconds.
struct Busy {
    /// Once a step.
    step: f64,
    /// At each launch: modules, nodes and gradients, of which the log says only how many a step has.
    between: Threads,
    /// At each operator of an optimizer.
    optimizer: f64,
}

impl Busy {
    /// `levers` is what these take in the step.
    fn new(steps: &Steps, works: &[&Work], levers: f64) -> Self {
        let [mut modules, mut nodes, mut gradients] = [0.0; 3];
        // Operators: all, those before the backward pass, the engine's, Python's in it; launches in each thread; operators and
        // beginnings of optimizers.
        let (mut operators, mut first, mut of_autograd, mut again) = (0.0, 0.0, 0.0, 0.0);
        let (mut launches, mut own, mut begun) = ([0.0; 2], 0.0, 0.0);
        let (mut autograds, mut optimizes, mut backward) = (false, false, false);
        for work in works {
            match work {
                Work::Modules(counted) => [modules, nodes, gradients] = *counted,
                Work::Operator(by_engine) => {
                    autograds = *by_engine;
                    operators += 1.0;
                    of_autograd += f64::from(u8::from(autograds));
                    again += f64::from(u8::from(backward && !autograds));
                    first += f64::from(u8::from(!backward && !optimizes && !autograds));
                    own += f64::from(u8::from(optimizes));
                }
                Work::Place(_) => {
                    backward = is_in(steps, work, "backward");
                    let before = std::mem::replace(&mut optimizes, is_in(steps, work, "optimizer"));
                    begun += f64::from(u8::from(optimizes && !before));
                }
                Work::Wait | Work::Copy(_, _, Some(_)) => {}
                _ if optimizes => {}
                _ => launches[usize::from(autograds)] += 1.0,
            }
        }
        let trains = of_autograd > 0.0;
        // Nodes that a backward pass makes itself are not counted. Where it computes activations again, Python calls its operators,
        // each about a node; gradients of gradients are the engine's own, and a node has one or two operators. More than there were
        // before the backward pass are not computed again: an optimizer in hooks, say, makes no nodes.
        let nodes = if trains {
            nodes.max(of_autograd - nodes) + f64::min(again, first)
        } else {
            0.0
        };
        let made = host::MODULE * modules + host::NODE.made * (nodes - gradients).max(0.0);
        let evaluated = host::NODE.backward * (nodes - gradients).max(0.0)
            + host::GRADIENT.backward * gradients;
        let turns = f64::max(begun, 1.0);
        let lists = (own / turns).clamp(1.0, host::LISTS) / (own / turns).max(1.0);
        let levers = levers / f64::max(launches[0] + launches[1], 1.0);
        Self {
            step: if trains {
                host::step(operators)
            } else {
                host::PASS
            },
            between: Threads {
                made: made / f64::max(launches[0], 1.0) + levers,
                backward: evaluated / f64::max(launches[1], 1.0) + levers,
            },
            optimizer: host::OPTIMIZER + host::LISTED * gradients / turns * lists,
        }
    }
}

/// What takes so long in one of the threads.
const fn of(threads: Threads, autograds: bool) -> f64 {
    if autograds {
        threads.backward
    } else {
        threads.made
    }
}

/// Whether the step's batch is there before this work: what copies more than a number between the host and the GPU, or a module's
/// forward pass. What is read back of the step before, a loss, comes before the batch is prepared, and waits.
fn needs_batch(steps: &Steps, work: &Work) -> bool {
    match work {
        Work::Copy(Path::Pinned | Path::Pageable, bytes, None) => *bytes > NUMBER,
        Work::Place(place) => (steps.places.get(*place))
            .is_some_and(|(phase, module)| phase == "forward" && !module.is_empty()),
        _ => false,
    }
}

/// Whether a place is in this phase.
fn is_in(steps: &Steps, work: &Work, wanted: &str) -> bool {
    let Work::Place(place) = work else {
        return false;
    };
    (steps.places.get(*place)).is_some_and(|(phase, _)| phase == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_seconds(table: &[Work], step: &[Line]) -> f64 {
        let gpu = Figures::of(oomph_gpus::find("h200").unwrap()).unwrap();
        let steps = Steps {
            table: table.to_vec(),
            places: vec![
                ("backward".to_owned(), String::new()),
                ("optimizer".to_owned(), String::new()),
            ],
            ..Steps::default()
        };
        play(&steps, step, &gpu, &Host::default()).host
    }

    fn small() -> Work {
        Work::Moving(1.0, "cudnn".to_owned())
    }

    #[test]
    fn a_batch_is_prepared_beside_the_gpu_unless_the_script_waited_for_that_before() {
        let gpu = Figures::of(oomph_gpus::find("h200").unwrap()).unwrap();
        let steps = Steps {
            table: vec![
                Work::Copy(Path::Pinned, 4.0, None),
                Work::Wait,
                Work::Copy(Path::Pageable, 1e6, None),
                Work::Moving(2e11, "fill".to_owned()),
            ],
            ..Steps::default()
        };
        let seconds = |step: &[Line], beside| {
            let host = Host {
                beside,
                ..Host::default()
            };
            play(&steps, step, &gpu, &host).seconds
        };
        let more = |step| seconds(step, 10e-3) - seconds(step, 0.0);
        assert!(more(&[2, 3]).abs() < 1e-6);
        assert!((more(&[0, 1, 2, 3]) - 10e-3).abs() < 1e-6);
    }

    #[test]
    fn copies_both_ways_run_beside_each_other() {
        let gpu = Figures::of(oomph_gpus::find("h200").unwrap()).unwrap();
        let copy = |way| Work::Copy(Path::Pinned, 1e9, Some(way));
        let steps = Steps {
            table: vec![copy(Way::Out), copy(Way::In)],
            ..Steps::default()
        };
        let seconds = |step: &[Line]| play(&steps, step, &gpu, &Host::default()).seconds;
        assert!(seconds(&[0, 1]) < 1.1 * seconds(&[0]));
        assert!(seconds(&[0, 0]) > 1.9 * seconds(&[0]));
    }

    #[test]
    fn levers_keep_the_host_busy_between_its_launches() {
        let host = |levers| {
            let gpu = Figures::of(oomph_gpus::find("h200").unwrap()).unwrap();
            let steps = Steps {
                table: vec![Work::Operator(false), small(), Work::Operator(true)],
                ..Steps::default()
            };
            let host = Host {
                levers,
                ..Host::slower(String::new(), 2.0)
            };
            play(&steps, &[0, 1, 1, 2, 1], &gpu, &host).host
        };
        assert!((host(3e-3) - host(0.0) - 6e-3).abs() < 1e-9);
    }

    #[test]
    fn nodes_keep_the_host_busy_where_a_step_trains() {
        let busy = |backward| {
            let counted = Work::Modules([10.0, 30.0, 0.0]);
            let table = [Work::Operator(backward), small(), counted];
            host_seconds(&table, &[0, 1, 0, 1, 2])
        };
        let launch = host::launch(&small());
        let training = host::step(2.0)
            + 2.0 * (host::OPERATOR.backward + launch.backward)
            + 30.0 * host::NODE.backward;
        assert!((busy(true) - training).abs() < 1e-9);
        let inferring =
            host::PASS + 2.0 * (host::OPERATOR.made + launch.made) + 10.0 * host::MODULE;
        assert!((busy(false) - inferring).abs() < 1e-9);
    }

    #[test]
    fn what_is_computed_again_makes_nodes_again() {
        let counted = Work::Modules([10.0, 30.0, 0.0]);
        let of = |by_engine| {
            let table = [
                Work::Operator(false),
                Work::Place(0),
                Work::Operator(true),
                Work::Operator(by_engine),
                counted.clone(),
            ];
            host_seconds(&table, &[0, 1, 2, 3, 4])
        };
        // Without a launch nothing is between: the operator itself is Python's.
        let dearer = of(false) - of(true);
        assert!((dearer - (host::OPERATOR.made - host::OPERATOR.backward)).abs() < 1e-9);
        let with_a_launch = |by_engine| {
            let table = [
                Work::Operator(false),
                Work::Place(0),
                Work::Operator(true),
                small(),
                Work::Operator(by_engine),
                small(),
                counted.clone(),
            ];
            host_seconds(&table, &[0, 1, 2, 3, 4, 5, 6])
        };
        let launch = host::launch(&small());
        let node = host::NODE.made + host::NODE.backward;
        let modules = 10.0 * host::MODULE + 30.0 * host::NODE.made;
        let wanted = host::OPERATOR.made - host::OPERATOR.backward + launch.made - launch.backward
            + node
            + modules;
        assert!((with_a_launch(false) - with_a_launch(true) - wanted).abs() < 1e-9);
    }

    /// `bags_b8192` was estimated 67 % too slow.
    #[test]
    fn an_optimizer_in_hooks_of_the_backward_pass_makes_no_nodes() {
        let table = [
            Work::Operator(false),
            Work::Place(0),
            Work::Operator(true),
            small(),
            Work::Modules([10.0, 30.0, 0.0]),
        ];
        let with_hooks = |operators: usize| {
            let step = [[0, 1].as_slice(), &vec![0; operators], &[2, 3, 4]].concat();
            host_seconds(&table, &step)
        };
        let more = with_hooks(110) - with_hooks(100);
        assert!((more - 10.0 * host::OPERATOR.made).abs() < 1e-9);
    }

    #[test]
    fn an_optimizer_takes_time_for_each_gradient_by_list_or_one_by_one() {
        let optimizer = |gradients: f64, operators: usize| {
            let table = [
                Work::Operator(true),
                Work::Place(1),
                Work::Operator(false),
                small(),
                Work::Modules([0.0, gradients, gradients]),
            ];
            let mut step = vec![0, 1];
            step.extend(std::iter::repeat_n([2, 3], operators).flatten());
            step.push(4);
            host_seconds(&table, &step) - host_seconds(&table, &[0, 1, 4])
        };
        let each = optimizer(200.0, 9) - optimizer(100.0, 9);
        assert!((each - 900.0 * host::LISTED).abs() < 1e-9);
        // With a loop there are nine operators for each gradient, and no lists.
        let loops = optimizer(100.0, 900);
        let wanted =
            900.0 * host::OPTIMIZER + 100.0 * host::LISTS * host::LISTED + host::step(901.0)
                - host::step(1.0);
        assert!((loops / wanted - 1.0).abs() < 0.01);
    }
}
