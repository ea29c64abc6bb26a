//! What runs jobs on clusters and stops them when the host's memory is used up: SLURM, Kubernetes, Ray.

use super::kernel::logged_on;
use super::named;
use super::program::{Memory, Program};
use super::readers::{Line, Noted, Reader, or_join};
use super::words::{after, between, integer, listed, size, size_after, word};
use super::{MessageKind, OomMessage};
use crate::units::Bytes;

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["oom-kill event", "oom_kill event"],
        read: |line, noted, before| {
            let mut message = stopped(line, Program::Slurm);
            message.host = noted.cancelled_on.take();
            message.total = noted.batch_memory.take();
            message.job = after(line.from, "StepId=")
                .or_else(|| after(line.from, "in step "))
                .and_then(job);
            tasks(line.text, &mut message);
            or_join(before, message)
        },
    },
    Reader {
        // It may have gone on: the limit was only met.
        markers: &[
            "hit memory limit at least once",
            "hit memory+swap limit at least once",
        ],
        read: |line, _, before| {
            let mut message = stopped(line, Program::Slurm);
            message.job = line
                .text
                .split_once(" hit memory")
                .and_then(|(head, _)| job(head.rsplit(' ').next()?));
            message.handled = true;
            or_join(before, message)
        },
    },
    Reader {
        // The state of a job in `seff`, `scontrol`, `sacct` (which cuts it) and in mails.
        markers: &["OUT_OF_ME"],
        read: state,
    },
    Reader {
        markers: &[
            " exceeded memory limit (",
            " exceeded virtual memory limit (",
        ],
        read: |line, _, before| {
            let mut message = stopped(line, Program::Slurm);
            let (head, _) = line.text.split_once(" exceeded ")?;
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
            let mut message = stopped(line, Program::Slurm);
            tasks(line.text, &mut message)?;
            or_join(before, message)
        },
    },
    Reader {
        markers: &["Exceeded job memory limit", "Exceeded step memory limit"],
        read: |line, _, before| {
            let mut message = stopped(line, Program::Slurm);
            message.setting = line
                .from
                .contains("at some point")
                .then_some("at some point");
            or_join(before, message)
        },
    },
    Reader {
        // What a batch script asked for, before the message or after it.
        markers: &["#SBATCH --mem="],
        read: |line, noted, before| {
            let asked = after(line.text, "--mem=").and_then(word)?;
            // A number alone counts MiB; 0 means all that the node has.
            let asked = integer(&asked)
                .filter(|_| asked.bytes().all(|byte| byte.is_ascii_digit()))
                .map_or_else(|| size(&asked), |number| Some(Bytes(number << 20)))
                .filter(|asked| asked.0 > 0)?;
            match before {
                Some(before) if before.program == Program::Slurm => {
                    before.total = before.total.or(Some(asked));
                }
                _ => noted.batch_memory = Some(asked),
            }
            None
        },
    },
    Reader {
        markers: &[" CANCELLED AT "],
        read: |line, noted, before| {
            // `*** JOB 42 ON cn3152 CANCELLED AT …`, after the message or before it.
            let host = between(line.text, " ON ", " CANCELLED").and_then(word);
            match before {
                Some(before) if before.program == Program::Slurm => {
                    before.host = before.host.take().or(host);
                }
                _ => noted.cancelled_on = host,
            }
            None
        },
    },
    Reader {
        // HTCondor: the last use that it measured may be old, so it is no figure of the moment.
        markers: &[
            "gone over cgroup memory limit of ",
            "gone over memory limit of ",
        ],
        read: |line, _, before| {
            let mut message = stopped(line, super::named::of("htcondor")?);
            message.total = super::facts::first_size(after(line.from, "limit of ")?);
            let used = after(line.from, "measured usage: ").and_then(super::facts::first_size);
            let part = used.map(|used| ("the last use that was measured".to_owned(), used));
            message.parts.extend(part);
            message.host = after(line.text, "Error from ")
                .and_then(|rest| rest.split([':', ' ']).next())
                .and_then(word);
            or_join(before, message)
        },
    },
    Reader {
        markers: &["OOMKilled"],
        read: pod,
    },
    Reader {
        // Of a container that reached its limit, Kubernetes says `OOMKilled`.
        markers: &["Reason:", "\"reason\":", "reason: Error"],
        read: |line, noted, before| {
            /// Lines between the exit code and the reason, which stands behind it in YAML.
            const STATE: usize = 4;
            let value = after(line.from, ":").map(|rest| rest.trim().trim_matches(['"', ',']));
            let error = value == Some("Error");
            noted.reason_line = error.then_some(line.part);
            if error
                && let Some(before) = before
                && before.program == Program::Shell
                && before.inside == Some(Program::Kubernetes)
                && line.part - before.last <= STATE
            {
                before.setting = before.setting.or(Some("not its limit"));
            }
            None
        },
    },
    Reader {
        markers: &["OOM-killed", "OOM killed"],
        read: |line, _, before| or_join(before, stopped(line, Program::Kubernetes)),
    },
    Reader {
        // Amazon's service of containers.
        markers: &["Container killed due to memory usage"],
        read: |line, _, before| {
            let mut message = stopped(line, Program::Docker);
            message.setting = Some("ECS");
            or_join(before, message)
        },
    },
    Reader {
        // `seff`.
        markers: &["Memory Utilized: ", "Memory Efficiency: "],
        read: |line, _, before| {
            let before = before.filter(|before| before.program == Program::Slurm)?;
            before.in_use = before.in_use.or(size_after(line.from, "Utilized: "));
            before.total = before.total.or(size_after(line.from, "% of "));
            before.last = line.part;
            None
        },
    },
    Reader {
        // An eviction: the node was short, whatever the container's limit.
        markers: &[
            "low on resource: memory",
            "low on resource: [MemoryPressure]",
            "had condition: [MemoryPressure]",
        ],
        read: |line, _, before| {
            let mut message = stopped(line, Program::Kubernetes);
            message.setting = Some("eviction");
            message.free = size_after(line.from, "available: ");
            container(line.from, &mut message);
            or_join(before, message)
        },
    },
    Reader {
        markers: &["Container "],
        read: |line, _, before| {
            if let Some(before) = before
                && before.setting == Some("eviction")
            {
                container(line.from, before);
                before.last = line.part;
            }
            None
        },
    },
    Reader {
        markers: &["OOMKilling"],
        read: |line, noted, _| {
            noted.event_line = Some(line.part);
            None
        },
    },
    Reader {
        // The kubelet: `System OOM encountered, victim process: python, pid: 42`.
        markers: &["System OOM encountered", "Cgroup OOM encountered"],
        read: |line, _, before| {
            let mut message = stopped(line, Program::Kubernetes);
            if line.from.starts_with("System") {
                message.setting = Some("eviction");
            }
            message.process = after(line.from, "victim process: ").and_then(word);
            message.pid = after(line.from, "pid: ").and_then(integer);
            or_join(before, message)
        },
    },
    Reader {
        // earlyoom, nohang and oomd watch the host's memory, and end a process before the kernel has to.
        markers: &[
            "mem avail: ",
            "Victim status (found in",
            "PID:       ",
            "Vm, MiB: ",
            "sending SIGTERM to process ",
            "sending SIGKILL to process ",
            "Killing process: ",
            "Sending SIGTERM to the victim",
            "Sending SIGKILL to the victim",
            "oomd kill: ",
        ],
        read: watcher,
    },
    Reader {
        markers: &[
            "systemd-oomd",
            "Failed with result 'oom-kill'",
            "has been killed by the OOM killer",
        ],
        read: systemd,
    },
    Reader {
        markers: &["Name:"],
        read: |line, noted, before| {
            let rest = line.text.strip_prefix("Name:")?;
            let far = before.is_none_or(|before| before.program != Program::Kubernetes);
            if far {
                noted.pod = word(rest);
            }
            None
        },
    },
    Reader {
        // What was ended is not the process that the container is.
        markers: &["xit Code:    0", "xitCode: 0", "xitCode\": 0"],
        read: |line, _, before| {
            let before = before.filter(|before| before.program == Program::Kubernetes)?;
            before.setting = before.setting.or(Some("exit code 0"));
            before.last = line.part;
            None
        },
    },
    Reader {
        markers: &["Restart Count:", "restartCount: ", "restartCount\": "],
        read: |line, _, before| {
            let before = before.filter(|before| before.program == Program::Kubernetes)?;
            before.restarts = after(line.from, ":").and_then(|rest| integer(rest.trim_start()));
            before.last = line.part;
            None
        },
    },
    Reader {
        // A container's state in YAML.
        markers: &["name: "],
        read: |line, _, before| {
            let before = before.filter(|before| before.program == Program::Kubernetes)?;
            let name = line.text.trim_start().strip_prefix("name: ")?;
            before.process = before.process.take().or_else(|| word(name));
            None
        },
    },
    Reader {
        markers: &["Limits:", "limits:"],
        read: |line, noted, _| {
            if line.text.trim().eq_ignore_ascii_case("limits:") {
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
        markers: &["killed due to memory pressure (OOM)"],
        read: |line, _, before| {
            let mut message = stopped(line, Program::Ray);
            message.host = between(line.from, "IP: ", ")").and_then(word);
            or_join(before, message)
        },
    },
    Reader {
        // `System memory low at node with IP 1.2.3.4. Used memory (23.6GB) / total capacity (33.2GB)`.
        markers: &["System memory low at node with IP "],
        read: |line, _, before| {
            let mut message = stopped(line, Program::Ray);
            message.host = after(line.from, " IP ")
                .and_then(word)
                .map(|host| host.trim_end_matches('.').to_owned());
            message.in_use = size_after(line.from, "Used memory (");
            message.total = size_after(line.from, "total capacity (");
            or_join(before, message)
        },
    },
    Reader {
        // Up to Ray 1.
        markers: &["of the memory on node"],
        read: |line, _, _| {
            let mut message = stopped(line, Program::Ray);
            message.host = after(line.from, "on node ").and_then(word);
            super::facts::figures(line.from, &mut message);
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

/// `srun: error: nid001277: tasks 1-3: Out Of Memory`: the node and the ranks.
fn tasks(text: &str, message: &mut OomMessage) -> Option<()> {
    let (_, rest) = text.split_once("srun: error: ")?;
    let (host, tasks) = rest.split_once(": ")?;
    let (_, numbers) = tasks.split_once(' ')?;
    let (numbers, end) = numbers.split_once(": ")?;
    end.starts_with("Out Of Memory").then_some(())?;
    message.host = word(host);
    message.ranks = listed(numbers);
    message.rank = message.ranks.first().copied();
    Some(())
}

/// `State: OUT_OF_MEMORY (exit code 0)`, `JobState=OUT_OF_MEMORY`, `1234.batch … OUT_OF_ME+ 0:125`.
fn state(line: &Line<'_>, _: &mut Noted, before: Option<&mut OomMessage>) -> Option<OomMessage> {
    let (head, _) = line.text.split_once("OUT_OF_ME")?;
    let first = line.text.split_whitespace().next()?;
    let row = first.starts_with(|c: char| c.is_ascii_digit() || c == '[')
        && head.ends_with([' ', '|', '\t'])
        && (line.from.starts_with("OUT_OF_ME+")
            || line.text.contains(":125")
            || head.contains('.'));
    let named = ["State: ", "JobState=", "State="]
        .iter()
        .any(|name| head.ends_with(name));
    let mail = head.contains("Slurm Job_id=");
    if !row && !named && !mail {
        return None;
    }
    let mut message = stopped(line, Program::Slurm);
    if row {
        // `MaxRSS` in KiB, and `ReqMem` of a node or of a core.
        let words = line.text.split([' ', '|', '\t']);
        for word in words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
            let unit = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            match unit {
                "K" => message.in_use = message.in_use.or(size(word)),
                "Mn" | "Gn" | "Tn" => message.total = size(word.trim_end_matches('n')),
                _ => {}
            }
        }
    }
    message.job = after(head, "Job_id=")
        .or_else(|| after(head, "JobId="))
        .and_then(job)
        .or_else(|| row.then(|| first.split('|').next().and_then(job)).flatten());
    or_join(before, message)
}

/// `Container NAME was using 48458972Ki, request is 15Gi, …`.
fn container(text: &str, message: &mut OomMessage) {
    if let Some(rest) = after(text, "Container ") {
        message.process = message.process.take().or_else(|| word(rest));
        message.in_use = message.in_use.or_else(|| size_after(rest, " was using "));
    }
}

/// `mem avail: 105 of 30236 MiB`, then `sending SIGTERM to process 42 uid 1000 "python": oom_score 9, VmRSS 29931 MiB`; nohang's has a list of
/// the victim above it, and oomd's names a group.
fn watcher(
    line: &Line<'_>,
    noted: &mut Noted,
    before: Option<&mut OomMessage>,
) -> Option<OomMessage> {
    /// Lines from the figures to the end of the process.
    const NEAR: usize = 40;
    let mib =
        |text: &str| integer(text.trim_start()).map(|count| Bytes(count.saturating_mul(1 << 20)));
    let near = noted
        .watched
        .take()
        .filter(|noted| line.part - noted.last <= NEAR);
    let begins = |words: &str| line.from.starts_with(words);
    let mut message = near.map_or_else(
        || stopped(line, named::of("earlyoom").unwrap_or(Program::Unknown)),
        |noted| *noted,
    );
    if begins("mem avail") {
        let (free, all) = after(line.from, ":")?.split_once(" of ")?;
        message.around.free = mib(free);
        message.around.total = mib(all);
        let swap = after(line.from, "swap free:").and_then(mib);
        message.parts = swap
            .map(|free| ("free swap".to_owned(), free))
            .into_iter()
            .collect();
        noted.watched = Some(Box::new(message));
        return None;
    } else if begins("Victim") {
        message = stopped(line, named::of("nohang")?);
        noted.watched = Some(Box::new(message));
        return None;
    } else if begins("PID") || begins("Vm,") {
        if matches!(message.program, Program::Named(named) if named.id == "nohang") {
            message.pid = message.pid.or(after(line.from, "PID: ")
                .map(str::trim_start)
                .and_then(integer));
            message.process = message
                .process
                .or(between(line.from, "name: ", ",").and_then(word));
            message.in_use = message.in_use.or(after(line.from, " RSS:").and_then(mib));
            noted.watched = Some(Box::new(message));
        }
        return None;
    } else if begins("oomd") {
        message = stopped(line, named::of("oomd kill")?);
        let group = line.from.split_whitespace().nth(5)?;
        message.process = group.rsplit('/').next().and_then(word);
    } else if !begins("Sending") {
        message.pid = after(line.from, "process ")
            .or_else(|| after(line.from, "pid: "))
            .and_then(integer);
        message.process = between(line.from, "\"", "\"")
            .or_else(|| between(line.from, "process: ", ","))
            .and_then(word);
        message.in_use =
            after(line.from, "VmRSS").and_then(|rest| size(rest.trim_start_matches([':', ' '])));
    }
    // What it names first of the process stands on this line.
    let own = stopped(line, message.program);
    (message.line, message.text, message.at, message.last) = (own.line, own.text, own.at, own.last);
    let before = before.filter(|before| before.kind == MessageKind::Killed);
    or_join(before, message)
}

/// systemd's own OOM killer, which acts before the memory is used up, and what systemd says of the kernel's.
fn systemd(line: &Line<'_>, _: &mut Noted, before: Option<&mut OomMessage>) -> Option<OomMessage> {
    let own = line.text.contains("systemd-oomd");
    let done = ["Killed /", " killed ", "oom-kill", "OOM killer"]
        .iter()
        .any(|word| line.text.contains(word));
    let (head, words) = ["systemd-oomd[", "systemd["]
        .iter()
        .find_map(|name| line.text.split_once(name))
        .and_then(|(head, rest)| Some((head, rest.split_once("]: ")?.1)))
        .unwrap_or(("", line.text));
    if !done || (own && words.contains("Considered ")) {
        return None;
    }
    let mut message = stopped(line, Program::Systemd);
    message.host = logged_on(head);
    message.process = words
        .strip_prefix("Killed ")
        .and_then(|path| path.split_whitespace().next()?.rsplit('/').next())
        .or_else(|| Some(words.split_once(": ")?.0))
        .and_then(word);
    if own {
        message.setting = Some("systemd-oomd");
    }
    or_join(before, message)
}

/// A container's state (`Reason: OOMKilled`), or a row of `kubectl get pods`.
fn pod(line: &Line<'_>, _: &mut Noted, mut before: Option<&mut OomMessage>) -> Option<OomMessage> {
    // `docker inspect` has the word for every container.
    let value = after(line.from, "OOMKilled")
        .and_then(|rest| rest.trim_start_matches('"').strip_prefix([':', '=']))
        .map(str::trim_start);
    if value.is_some_and(|value| value.starts_with("true")) {
        return Some(stopped(line, Program::Docker));
    }
    if value.is_some_and(|value| value.starts_with("false")) {
        // Then the limit of the container was not the reason.
        if let Some(before) = before
            && before.kind == MessageKind::Killed
            && matches!(before.program, Program::Shell | Program::Unknown)
        {
            before.setting = Some("not its limit");
            before.last = line.part;
        }
        return None;
    }
    let mut message = stopped(line, Program::Kubernetes);
    // The name of the namespace may stand before that of the pod.
    let words: Vec<&str> = line.text.split_whitespace().take(4).collect();
    message.host = words.windows(3).find_map(|row| match row {
        [name, ready, "OOMKilled"] if ready.contains('/') => word(name),
        _ => None,
    });
    if let Some(before) = before.as_deref_mut()
        && before.program == Program::Shell
        && before.pid.is_none()
    {
        // The exit status stands before the reason.
        before.program = Program::Kubernetes;
        before.text.clone_from(&message.text);
    }
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
    if near {
        noted.limit = line
            .text
            .trim()
            .strip_prefix("memory:")
            .and_then(|value| size(value.trim_start().trim_matches('"')));
        if let Some(before) = before
            && (before.program == Program::Kubernetes || before.inside == Some(Program::Kubernetes))
        {
            before.total = noted.limit.or(before.total);
        }
        // What follows is another's: `requests:`, the next container.
        noted.limits_line = noted.limits_line.filter(|_| noted.limit.is_none());
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
    fn slurm_limits_what_the_script_asked_for() {
        let killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=11.0. Some of the step tasks have been OOM Killed.";
        let script = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --mem=64G";
        for text in [format!("{killed}\n{script}"), format!("{script}\n{killed}")] {
            assert_eq!(one(&text).total, Some(Bytes::gib(64)));
        }
        let number = format!("#SBATCH --mem=2048\n{killed}");
        assert_eq!(one(&number).total, Some(Bytes::gib(2)));
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
