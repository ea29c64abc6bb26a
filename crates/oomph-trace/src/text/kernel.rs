//! The Linux kernel's OOM killer, in `dmesg` and in the system's log.

use super::program::{Memory, Program};
use super::readers::{Line, Noted, Reader, continues, join, or_join};
use super::words::{after, between, integer, size, size_after, word};
use super::{MessageKind, OomMessage};
use crate::units::Bytes;

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["Killed process ", "Kill process "],
        read: killed,
    },
    Reader {
        // In other words, or another language: the figures are the kernel's.
        markers: &[" total-vm:"],
        read: |line, noted, before| {
            let (head, _) = line.text.split_once(" total-vm:")?;
            let (numbers, _) = head.rsplit_once(" (")?;
            let at = numbers.rfind(' ')? + 1;
            let known = ["Killed process ", "Kill process "];
            if known.iter().any(|words| line.text.contains(words)) {
                return None;
            }
            ended(line, line.text.get(at..)?, noted, before)
        },
    },
    Reader {
        // The second half of a line that was broken in two.
        markers: &["anon-rss:"],
        read: |line, _, before| {
            let before = before.filter(|before| {
                before.program == Program::Kernel
                    && before.in_use.is_none()
                    && line.part - before.last <= 1
            })?;
            if line.text.trim_start().starts_with("anon-rss:") {
                before.in_use = held(line.text);
            }
            None
        },
    },
    Reader {
        // Who asked for the memory; the line about what was killed follows.
        markers: &[
            " invoked oom-killer: ",
            "Out of memory and no killable processes",
        ],
        read: |line, _, _| {
            let mut message = line.message(Program::Kernel, MessageKind::Killed);
            message.memory = Memory::Host;
            message.host = host(line.text);
            Some(message)
        },
    },
    Reader {
        // All that a log has of it may be where the kernel was.
        markers: TRACE,
        read: |line, noted, before| {
            // The kernel calls it for a group's limit alone.
            let group = line.text.contains("mem_cgroup_out_of_memory");
            if let Some(before) = before.filter(|before| before.program == Program::Kernel) {
                if group {
                    name_group(before, noted);
                }
                before.last = line.part;
                return None;
            }
            let mut message = line.message(Program::Kernel, MessageKind::Killed);
            message.memory = Memory::Host;
            message.host = host(line.text);
            if group {
                name_group(&mut message, noted);
            }
            Some(message)
        },
    },
    Reader {
        // Who asked for the memory was perhaps in a container.
        markers: &["mem_cgroup", "cpuset="],
        read: |line, _, before| {
            let before = before.filter(|before| before.program == Program::Kernel)?;
            let group = line.from.split(['=', ' ']).nth(1).unwrap_or_default();
            let container =
                group.len() >= 64 || group.contains("docker") || group.contains("kubepods");
            if line.from.starts_with("mem_cgroup") || container {
                before.setting = Some("perhaps a group");
                before.last = line.part;
            }
            None
        },
    },
    Reader {
        // It follows the line about what was killed; its figures are of what is left.
        markers: &["oom_reaper: reaped process "],
        read: |line, _, before| {
            let pid = after(line.from, "process ").and_then(integer)?;
            let mut message = line.message(Program::Kernel, MessageKind::Killed);
            message.memory = Memory::Host;
            message.pid = Some(pid);
            message.process = between(line.from, "(", ")").and_then(word);
            message.host = host(line.text);
            or_join(before, message)
        },
    },
    Reader {
        // Before 4.19: `Task in /a/b killed as a result of limit of /a`.
        markers: &[" killed as a result of limit of "],
        read: |line, noted, _| {
            let path = after(line.from, "limit of ").and_then(word);
            // A terminal may have broken the line within it: the group that the task was in is the same or below it.
            let task = between(line.text, "Task in ", " killed").and_then(word);
            noted.cgroup_path = match (path, task) {
                (Some(path), Some(task))
                    if path.len() < task.len()
                        && task.starts_with(&path)
                        && line.text.trim_end().ends_with(&path) =>
                {
                    let whole = task.as_bytes().get(path.len()) == Some(&b'/');
                    Some(if whole { path } else { task })
                }
                (path, _) => path,
            };
            None
        },
    },
    Reader {
        markers: &["Memory cgroup stats for /"],
        read: |line, noted, before| {
            noted.cgroup_parts = group_parts(line.from);
            if noted.cgroup_path.is_none() {
                let path = after(line.from, "stats for ").and_then(|rest| rest.split(':').next());
                noted.cgroup_path = path.and_then(word);
            }
            if let Some(before) = before.filter(|before| before.program == Program::Kernel) {
                name_group(before, noted);
                before.last = line.part;
                return None;
            }
            // All that is left of it may be the account of a group that was full.
            let [usage, limit] = noted.cgroup;
            if usage? < Bytes(limit?.0 / 50 * 49) {
                return None;
            }
            let mut message = line.message(Program::Kernel, MessageKind::Killed);
            message.memory = Memory::Host;
            message.host = host(line.text);
            of_group(&mut message, noted);
            Some(message)
        },
    },
    Reader {
        // What was killed and in which group; how much it held stands on the line that follows.
        markers: &["oom-kill:constraint="],
        read: |line, noted, before| {
            let mut message = line.message(Program::Kernel, MessageKind::Killed);
            message.memory = Memory::Host;
            message.process = between(line.from, ",task=", ",").and_then(word);
            message.pid = after(line.from, ",pid=").and_then(integer);
            message.host = host(line.text);
            if line.from.contains("CONSTRAINT_MEMCG") {
                noted.cgroup_path = between(line.from, "oom_memcg=", ",").and_then(word);
                of_group(&mut message, noted);
            } else if line.from.contains("CONSTRAINT_NONE")
                && ["=/docker", "=/kubepods", "=/lxc"]
                    .iter()
                    .any(|group| line.from.contains(group))
            {
                message.setting = Some("not its container's limit");
            } else if line.from.contains("CONSTRAINT_NONE") {
                message.setting = Some("the whole system");
            } else if line.from.contains("CONSTRAINT_MEMORY_POLICY") {
                message.setting = Some("a memory policy");
            } else if line.from.contains("CONSTRAINT_CPUSET") {
                message.setting = Some("a cpuset");
            }
            or_join(before, message)
        },
    },
    Reader {
        markers: &["memory: usage "],
        read: |line, noted, before| {
            noted.cgroup = [
                size_after(line.from, "usage "),
                size_after(line.from, "limit "),
            ];
            if let Some(before) = before
                && before.program == Program::Kernel
                && before.allocator.is_some()
            {
                name_group(before, noted);
                before.last = line.part;
            }
            None
        },
    },
];

/// What the kernel keeps of files that were read or written.
const FILE_CACHE: &str = "cache of files";

/// Functions of the kernel that only its OOM killer calls.
const TRACE: &[&str] = &[
    "oom_kill_process+0x",
    "oom_kill_process.cold",
    " out_of_memory+0x",
    " out_of_memory.cold",
    " out_of_memory.part",
    "mem_cgroup_out_of_memory+0x",
];

/// `Out of memory: Killed process 42 (python) total-vm:9kB, anon-rss:8kB, file-rss:1kB, shmem-rss:0kB`.
fn killed(
    line: &Line<'_>,
    noted: &mut Noted,
    before: Option<&mut OomMessage>,
) -> Option<OomMessage> {
    ended(line, after(line.from, "process ")?, noted, before)
}

/// The same from the number of the process on.
/// What a process held in all.
fn held(text: &str) -> Option<Bytes> {
    let parts: Vec<Bytes> = ["anon-rss:", "file-rss:", "shmem-rss:"]
        .iter()
        .filter_map(|name| size_after(text, name))
        .collect();
    (!parts.is_empty()).then(|| parts.into_iter().sum())
}

fn ended(
    line: &Line<'_>,
    rest: &str,
    noted: &mut Noted,
    before: Option<&mut OomMessage>,
) -> Option<OomMessage> {
    /// The lines of an event of Kubernetes.
    const EVENT: usize = 3;
    let pid = integer(rest)?;
    let mut message = line.message(Program::Kernel, MessageKind::Killed);
    message.memory = Memory::Host;
    message.pid = Some(pid);
    message.process = between(rest, "(", ")").and_then(word);
    message.in_use = held(rest);
    message.host = host(line.text);
    // An event of Kubernetes does not name the group.
    let event = noted
        .event_line
        .is_some_and(|event| line.part - event <= EVENT);
    if event || line.text.contains("kernel-monitor") {
        noted
            .cgroup_path
            .get_or_insert_with(|| "of a pod".to_owned());
    }
    if line.text.contains("emory cgroup out of memory") {
        of_group(&mut message, noted);
    }
    // `Kill process 7 (java) score 9 or sacrifice child`, and the child on the next line.
    let child = |before: &OomMessage| {
        before.program == Program::Kernel
            && line.part - before.last <= 1
            && before.text.contains("or sacrifice child")
    };
    match before
        .filter(|before| before.in_use.is_none() && (continues(before, &message) || child(before)))
    {
        // It says more than the lines before it.
        Some(before) => {
            before.pid = message.pid;
            before.process.clone_from(&message.process);
            // That it was the whole system stands on the line before.
            if before.text.contains("ut of memory: Kill") {
                before.setting = Some("the whole system");
            }
            before.line = message.line;
            before.text.clone_from(&message.text);
            before.at = message.at;
            if message
                .allocator
                .as_deref()
                .is_some_and(|name| name != "memory cgroup")
            {
                before.allocator = message.allocator.take();
            }
            join(before, message);
            None
        }
        None => Some(message),
    }
}

/// A memory cgroup was full, not the host.
fn of_group(message: &mut OomMessage, noted: &mut Noted) {
    let [usage, limit] = std::mem::take(&mut noted.cgroup);
    message.total = limit;
    message.around.in_use = usage;
    message.parts = std::mem::take(&mut noted.cgroup_parts);
    message.job = noted.cgroup_path.as_deref().and_then(job);
    message.allocator = Some(match noted.cgroup_path.take() {
        Some(path) => format!("memory cgroup {path}"),
        None => "memory cgroup".to_owned(),
    });
}

/// What of a group's memory is the cache of files, and what processes hold: `cache:900KB rss:70KB …`.
fn group_parts(stats: &str) -> Vec<(String, Bytes)> {
    // A number without its unit was cut by the end of a line.
    let part = |(name, what): (&str, &str)| {
        let rest = after(stats, name)?;
        let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        unit.starts_with(['K', 'k'])
            .then(|| Some((what.to_owned(), size(rest)?)))?
    };
    [
        (" cache:", FILE_CACHE),
        (":cache:", FILE_CACHE),
        (" rss:", "memory of processes"),
    ]
    .into_iter()
    .filter_map(part)
    .collect()
}

/// The job of SLURM whose group it is: `/slurm/uid_1001/job_42/step_0`.
fn job(path: &str) -> Option<String> {
    let number = after(path, "/job_").and_then(integer)?;
    path.contains("slurm").then(|| number.to_string())
}

/// The same for a message whose lines before the group's name are read already.
fn name_group(message: &mut OomMessage, noted: &Noted) {
    let [usage, limit] = noted.cgroup;
    message.total = message.total.or(limit);
    message.around.in_use = message.around.in_use.or(usage);
    let path = noted.cgroup_path.as_ref();
    message.job = message.job.take().or_else(|| job(path?.as_str()));
    match (&message.allocator, path) {
        (None, None) => message.allocator = Some("memory cgroup".to_owned()),
        (Some(name), Some(_)) if name.contains(' ') && name != "memory cgroup" => {}
        (_, Some(path)) => message.allocator = Some(format!("memory cgroup {path}")),
        _ => {}
    }
}

/// `May 15 23:09:30 HOST kernel: [518.05] …` of the system's log.
fn host(text: &str) -> Option<String> {
    let (head, _) = text.split_once(" kernel: ")?;
    logged_on(head)
}

/// The host behind the time of a line of the system's log, or alone.
pub(super) fn logged_on(head: &str) -> Option<String> {
    let words: Vec<&str> = head.split_whitespace().collect();
    match words.as_slice() {
        // The date of syslog has three words, that of journald's other formats one.
        [_, _, _, host] | [_, host] | [host] => word(host),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::text::Memory;
    use crate::text::tests::one;
    use crate::units::Bytes;

    #[test]
    fn what_was_killed_and_what_it_held() {
        let message = one(
            "Jun 29 07:24:44 box kernel: Out of memory: Killed process 42 (python) total-vm:900kB, anon-rss:8kB, file-rss:1kB, shmem-rss:2kB",
        );
        assert_eq!(message.memory, Memory::Host);
        assert_eq!(message.pid, Some(42));
        assert_eq!(message.process.as_deref(), Some("python"));
        assert_eq!(message.in_use, Some(Bytes(11 << 10)));
        assert_eq!(message.total, None);
        assert_eq!(message.host.as_deref(), Some("box"));
    }

    #[test]
    fn the_limit_of_a_cgroup_stands_before() {
        let message = one(
            "memory: usage 1024kB, limit 1024kB, failcnt 9\noom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/docker/7e29,task=java\nMemory cgroup out of memory: Kill process 7 (java) score 1309 or sacrifice child",
        );
        assert_eq!(message.total, Some(Bytes(1 << 20)));
        assert_eq!(
            message.allocator.as_deref(),
            Some("memory cgroup /docker/7e29")
        );
        assert_eq!(message.in_use, None);
    }
}
