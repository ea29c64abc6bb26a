//! One card for all processes of a run: what each of them held, and what that means for the verdict.

use serde::Serialize;

use crate::summary::{Assumption, Basis, Oom, Summary, Verdict};

/// What the virtual GPUs of a run saw of its processes.
#[derive(Debug, Clone, Default)]
pub struct Cards {
    /// For each GPU the most that all processes held at one time.
    pub peaks: Vec<u64>,
    /// The processes that held memory, or were refused any.
    pub processes: Vec<Held>,
    /// Processes whose figures are lost, as there were too many.
    pub forgotten: u64,
}

/// What one process held.
#[derive(Debug, Clone)]
pub struct Held {
    /// Its id.
    pub process: u32,
    /// The beginning of its command line.
    pub command: String,
    /// The GPU that it held most of.
    pub device: u32,
    /// The most that it held of it.
    pub peak_bytes: u64,
    /// What it held when all processes together held most.
    pub held_bytes: u64,
    /// Its last request, if that found no room.
    pub refused_bytes: Option<u64>,
    /// The call of CUDA's whose error it last asked about.
    pub failed_call: Option<String>,
}

/// A process that left a record.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Its id.
    pub process: u32,
    /// How it ended.
    pub verdict: Verdict,
    /// Whether it was ended after the steps that were asked for.
    pub stopped: bool,
    /// How it failed, if it did.
    pub failure: Option<String>,
    /// Whether it is a rank of a distributed job.
    pub is_rank: bool,
    /// Its directory inside the run's; empty for the script's own process.
    pub directory: String,
}

/// All processes of a run.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    /// What they held.
    pub cards: Cards,
    /// Those that left a record.
    pub recorded: Vec<Recorded>,
    /// The one whose record the summary is of; 0 if there is none.
    pub summarized: u32,
    /// The script's own; 0 if a launcher's ranks are the job.
    pub script: u32,
}

/// A process of a run that shared its GPU with others.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct ProcessSummary {
    /// Its id.
    pub process: u32,
    /// The beginning of its command line.
    pub command: String,
    /// The GPU that it held most of, as the machine counts.
    pub device: u32,
    /// The most that it held of it.
    pub peak_bytes: u64,
    /// What it held when all processes together held most.
    pub held_bytes: u64,
    /// Whether it ran under the recorder.
    pub recorded: bool,
    /// Whether it ran out of memory.
    pub out_of_memory: bool,
}

impl Processes {
    /// The processes that used a GPU, other than the script's own.
    pub fn others(&self) -> impl Iterator<Item = &Held> {
        let processes = self.cards.processes.iter();
        processes.filter(|held| held.process != self.script && held.peak_bytes > 0)
    }

    fn record_of(&self, process: u32) -> Option<&Recorded> {
        self.recorded.iter().find(|known| known.process == process)
    }

    fn ran_out(&self, held: &Held) -> bool {
        match self.record_of(held.process) {
            Some(recorded) => recorded.verdict == Verdict::OutOfMemory,
            None => held.refused_bytes.is_some(),
        }
    }

    /// Whether processes shared a GPU, or one of them is no rank and not the script.
    fn are_several(&self) -> bool {
        let held = &self.cards.processes;
        let alone =
            |at: usize, one: &Held| held[..at].iter().all(|other| other.device != one.device);
        let shared = held.iter().enumerate().any(|(at, one)| !alone(at, one));
        let unknown = |one: &Held| self.record_of(one.process).is_none();
        shared || held.iter().any(unknown) || (self.script != 0 && self.others().next().is_some())
    }

    /// In the order in which they first used a GPU.
    fn summaries(&self) -> Vec<ProcessSummary> {
        let held = self.cards.processes.iter();
        held.map(|held| ProcessSummary {
            process: held.process,
            command: held.command.clone(),
            device: held.device,
            peak_bytes: held.peak_bytes,
            held_bytes: held.held_bytes,
            recorded: self.record_of(held.process).is_some(),
            out_of_memory: self.ran_out(held),
        })
        .collect()
    }
}

impl Summary {
    /// Makes the summary of one process that of all: the card's peak, and the verdict of the worst.
    pub fn join_processes(&mut self, all: &Processes) {
        if !all.are_several() {
            return;
        }
        self.processes = all.summaries();
        self.hold_together(all);
        self.judge_together(all);
        for held in &all.cards.processes {
            if all.record_of(held.process).is_none() && held.process != all.script {
                self.assumptions.push(Assumption {
                    kind: "processes".to_owned(),
                    what: format!(
                        "process {} ran without oomph's recorder: only its memory is known, and values that it computed on the GPU are not",
                        held.process
                    ),
                    location: None,
                    count: 1,
                });
            }
        }
        if all.cards.forgotten > 0 {
            self.assumptions.push(Assumption {
                kind: "processes".to_owned(),
                what: format!(
                    "{} processes are not listed, as more than 1024 used the GPU",
                    all.cards.forgotten
                ),
                location: None,
                count: all.cards.forgotten,
            });
        }
    }

    fn hold_together(&mut self, all: &Processes) {
        let peaks = all.cards.peaks.iter().copied().enumerate();
        let Some((device, peak)) = peaks.max_by_key(|&(at, peak)| (peak, std::cmp::Reverse(at)))
        else {
            return;
        };
        self.peak.used_bytes = self.peak.used_bytes.max(peak);
        let on_it = |held: &&Held| held.device as usize == device;
        let others: u64 = (all.cards.processes.iter().filter(on_it))
            .filter(|held| held.process != all.summarized)
            .map(|held| held.held_bytes)
            .sum();
        if others > 0 {
            self.by_category.insert("other_processes", others);
        }
    }

    fn judge_together(&mut self, all: &Processes) {
        if let Some(held) = all.cards.processes.iter().find(|held| all.ran_out(held)) {
            self.verdict = Verdict::OutOfMemory;
            self.basis = Basis::CutShort;
            self.peak.lower_bound = true;
            let oom = self.oom.get_or_insert_with(|| Oom {
                step: 0,
                phase: String::new(),
                module: None,
                location: None,
                requested_bytes: held.refused_bytes.unwrap_or(0),
                short_bytes: None,
                unlimited_failure: None,
                process: None,
            });
            if all.script != 0 && held.process != all.script {
                oom.process = Some(held.process);
            }
            return;
        }
        if let Some(refused) = all
            .recorded
            .iter()
            .find(|one| one.verdict == Verdict::Refused)
        {
            self.verdict = Verdict::Refused;
            self.failure.clone_from(&refused.failure);
        }
        if self.verdict != Verdict::Fits {
            return;
        }
        if all
            .recorded
            .iter()
            .any(|one| one.verdict == Verdict::NoVerdict)
        {
            self.verdict = Verdict::NoVerdict;
            self.basis = Basis::CutShort;
            self.peak.lower_bound = true;
        } else if all.recorded.iter().any(|one| one.stopped) {
            self.basis = Basis::SteadySteps;
        }
    }
}
