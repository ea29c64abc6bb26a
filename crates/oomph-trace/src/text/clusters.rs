//! What runs jobs on clusters and stops them when the host's memory is used up: SLURM, Kubernetes, Ray.

use super::program::{Memory, Program};
use super::readers::{Line, Noted, Reader, or_join};
use super::words::{after, between, integer, listed, size, size_after, word};
use super::{MessageKind, OomMessage};

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["oom-kill event", "oom_kill event"],
        read: |line, _, before| {
            let mut message = stopped(line, Program::Slurm);
            message.job = after(line.from, "StepId=")
                .or_else(|| after(line.from, "in step "))
                .and_then(job);
            or_join(before, message)
        },
    },
    Reader {
        markers: &[" exceeded memory limit ("],
        read: |line, _, before| {
            let mut message = stopped(line, Program::Slurm);
            let (head, _) = line.text.split_once(" exceeded memory limit")?;
            message.job = head.rsplit(' ').next().and_then(job);
            // In KiB.
            let figures = between(line.from, "(", ")")?;
            let (used, limit) = figures.split_once(" > ")?;
            message.in_use = size(&format!("{used} KiB"));
            message.total = size(&format!("{limit} KiB"));
            or_join(before, message)
        },
    },
    Reader {
        markers: &[": Out Of Memory"],
        read: |line, _, before| {
            let (_, rest) = line.text.split_once("srun: error: ")?;
            let (host, tasks) = rest.split_once(": ")?;
            let mut message = stopped(line, Program::Slurm);
            message.host = word(host);
            let (_, numbers) = tasks.split_once(' ')?;
            message.ranks = listed(numbers.split_once(':')?.0);
            message.rank = message.ranks.first().copied();
            or_join(before, message)
        },
    },
    Reader {
        markers: &["Exceeded job memory limit", "Exceeded step memory limit"],
        read: |line, _, before| or_join(before, stopped(line, Program::Slurm)),
    },
    Reader {
        markers: &[" CANCELLED AT "],
        read: |line, _, before| {
            // `*** JOB 42 ON cn3152 CANCELLED AT …`
            if let Some(before) = before
                && before.program == Program::Slurm
                && before.host.is_none()
            {
                before.host = between(line.text, " ON ", " CANCELLED").and_then(word);
            }
            None
        },
    },
    Reader {
        markers: &["OOMKilled"],
        read: pod,
    },
    Reader {
        markers: &["OOM-killed", "low on resource: memory"],
        read: |line, _, before| or_join(before, stopped(line, Program::Kubernetes)),
    },
    Reader {
        markers: &["Limits:"],
        read: |line, noted, _| {
            if line.text.trim() == "Limits:" {
                noted.limits_line = Some(line.part);
            }
            None
        },
    },
    Reader {
        markers: &["memory:"],
        read: limit,
    },
    Reader {
        markers: &["Task was killed due to the node running low on memory"],
        read: |line, _, _| Some(stopped(line, Program::Ray)),
    },
    Reader {
        // Up to Ray 1.
        markers: &["of the memory on node "],
        read: |line, _, _| {
            let mut message = stopped(line, Program::Ray);
            message.host = after(line.from, "on node ").and_then(word);
            let (used, total) = between(line.from, "is used (", ")")?.split_once(" / ")?;
            let unit = total.rsplit(' ').next()?;
            message.in_use = size(&format!("{used} {unit}"));
            message.total = size(total);
            Some(message)
        },
    },
    Reader {
        markers: &["Memory on the node (IP: "],
        read: ray,
    },
];

fn stopped(line: &Line<'_>, program: Program) -> OomMessage {
    let mut message = line.message(program, MessageKind::Killed);
    message.memory = Memory::Host;
    message
}

/// `191.batch cgroup.`: the name of a job's step.
fn job(text: &str) -> Option<String> {
    word(text).map(|job| job.trim_end_matches('.').to_owned())
}

/// A container's state (`Reason: OOMKilled`), or a row of `kubectl get pods`.
fn pod(line: &Line<'_>, _: &mut Noted, before: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = stopped(line, Program::Kubernetes);
    // The name of the namespace may stand before that of the pod.
    let words: Vec<&str> = line.text.split_whitespace().take(4).collect();
    message.host = words.windows(3).find_map(|row| match row {
        [name, ready, "OOMKilled"] if ready.contains('/') => word(name),
        _ => None,
    });
    or_join(before, message)
}

/// The limit of a pod: `memory:` after `Limits:`.
fn limit(
    line: &Line<'_>,
    noted: &mut Noted,
    before: Option<&mut OomMessage>,
) -> Option<OomMessage> {
    /// A limit each of the CPU, of disks, of GPUs.
    const NEAR: usize = 4;
    let near = noted
        .limits_line
        .is_some_and(|number| line.part - number <= NEAR);
    if let Some(before) = before
        && before.program == Program::Kubernetes
        && near
    {
        noted.limits_line = None;
        before.total = line
            .text
            .trim()
            .strip_prefix("memory:")
            .and_then(size)
            .or(before.total);
    }
    None
}

/// `Memory on the node (IP: …) where the task (…, name=NAME, pid=1, …) was running was 59.49GB / 62.58GB`.
fn ray(line: &Line<'_>, _: &mut Noted, before: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = stopped(line, Program::Ray);
    message.host = between(line.from, "(IP: ", ",").and_then(word);
    message.pid = after(line.from, "pid=").and_then(integer);
    message.process = between(line.from, "name=", ",").and_then(word);
    let figures = after(line.from, " was running was ")?;
    message.in_use = size(figures);
    message.total = size_after(figures, " / ");
    or_join(before, message)
}

#[cfg(test)]
mod tests {
    use crate::text::tests::one;
    use crate::units::Bytes;

    #[test]
    fn slurm_names_tasks_and_nodes() {
        let message = one(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM Killed.\nsrun: error: nid001277: tasks 1-3: Out Of Memory",
        );
        assert_eq!(message.ranks, [1, 2, 3]);
        assert_eq!(message.host.as_deref(), Some("nid001277"));
        assert_eq!(message.job.as_deref(), Some("440575.0"));
    }

    #[test]
    fn slurm_counts_in_kibibytes() {
        let message =
            one("slurmstepd-n7: error: Job 42 exceeded memory limit (3072 > 2048), being killed");
        assert_eq!(message.in_use, Some(Bytes::mib(3)));
        assert_eq!(message.total, Some(Bytes::mib(2)));
        assert_eq!(message.host.as_deref(), Some("n7"));
    }

    #[test]
    fn the_limit_of_a_pod_is_not_its_request() {
        let message = one(
            "Reason: OOMKilled\nExit Code: 137\nLimits:\n  cpu: 1\n  memory:  16Gi\nRequests:\n  memory:  8Gi",
        );
        assert_eq!(message.total, Some(Bytes::gib(16)));
        let message = one("Reason: OOMKilled\nRequests:\n  memory:  8Gi");
        assert_eq!(message.total, None);
    }
}
