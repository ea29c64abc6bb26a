//! How a process ended, as its launcher or shell says: signal 9, which the kernel's OOM killer sends, and others.

use super::program::{Memory, Program};
use super::readers::{Line, Noted, Reader, or_join};
use super::words::{after, index, integer, listed, word};
use super::{MessageKind, OomMessage};

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["sigkill_handler] Killing subprocess "],
        read: |line, noted, _| {
            /// More than a node has ranks.
            const MOST: usize = 64;
            let pid = after(line.from, "subprocess ").and_then(integer)?;
            if noted.ended.len() < MOST {
                noted.ended.push(pid);
            }
            let mut message = ended(line, Program::DeepSpeed);
            message.pid = Some(pid);
            noted.launcher = Some(Box::new(message));
            None
        },
    },
    Reader {
        markers: &["exits with return code = -9"],
        read: |line, noted, _| {
            let mut message = ended(line, Program::DeepSpeed);
            // It ends all processes of the node; only of one it is certain that it was this one.
            if let [pid] = noted.ended.as_slice() {
                message.pid = Some(*pid);
            }
            noted.ended.clear();
            message.rank = after(line.text, "--local_rank=").and_then(index);
            Some(message)
        },
    },
    Reader {
        // Newer: `failed (exitcode: -9) for binary located at … with local_rank: 0 (process ID: 71)`.
        markers: &["(exitcode: -9) local_rank: ", "(exitcode: -9) for binary"],
        read: |line, _, _| {
            let mut message = ended(line, Program::Torchrun);
            message.rank = after(line.from, "local_rank: ").and_then(index);
            message.pid = after(line.from, "(pid: ")
                .or_else(|| after(line.from, "(process ID: "))
                .and_then(integer);
            Some(message)
        },
    },
    Reader {
        // torchrun's table of failures: `host : n1`, `rank : 3 (local_rank: 3)`, and why on a line below.
        markers: &["host  ", "rank  "],
        read: |line, noted, _| {
            let (name, value) = line.text.trim().split_once(':')?;
            match name.trim() {
                "host" => noted.failure.1 = word(value),
                "rank" => noted.failure.0 = index(value.trim_start()),
                _ => {}
            }
            None
        },
    },
    Reader {
        markers: &["Signal 9 (SIGKILL) received by PID "],
        read: |line, noted, before| {
            let mut message = ended(line, Program::Torchrun);
            message.pid = after(line.from, "by PID ").and_then(integer);
            (message.rank, message.host) = std::mem::take(&mut noted.failure);
            message.ranks = Vec::from_iter(message.rank);
            or_join(before, message)
        },
    },
    Reader {
        // `srun: error: n1: tasks 0,2: Killed`.
        markers: &["srun: error: "],
        read: |line, _, before| {
            let (host, rest) = after(line.from, "error: ")?.split_once(": task")?;
            let (numbers, end) = rest.trim_start_matches('s').trim_start().split_once(": ")?;
            end.starts_with("Killed").then_some(())?;
            let mut message = ended(line, Program::Shell);
            message.host = word(host);
            message.ranks = listed(numbers);
            message.rank = message.ranks.first().copied();
            or_join(before, message)
        },
    },
    Reader {
        // `kubectl exec`; which pod may stand in the list above it.
        markers: &["command terminated with exit code 137"],
        read: |line, noted, before| {
            let mut message = ended(line, Program::Shell);
            message.inside = Some(Program::Kubernetes);
            message.host.clone_from(&noted.pod);
            or_join(before, message)
        },
    },
    Reader {
        markers: &[
            "containerID",
            "lastState",
            "Last State:",
            "Last Termination State:",
        ],
        read: |_, noted, _| {
            noted.container = true;
            None
        },
    },
    Reader {
        // `kubectl get pods`: a name, and how many of its containers are ready.
        markers: &["Running ", "CrashLoopBackOff ", "OOMKilled "],
        read: |line, noted, _| {
            let mut words = line.text.split_whitespace();
            let (name, ready) = (words.next()?, words.next()?);
            let (one, all) = ready.split_once('/')?;
            if integer(one).is_some() && integer(all).is_some() {
                noted.pod = word(name);
            }
            None
        },
    },
    Reader {
        // An event of Docker's: a limit was reached.
        markers: &["container oom "],
        read: |line, _, before| {
            let mut message = ended(line, Program::Docker);
            message.process = after(line.from, "container.name=")
                .or_else(|| after(line.from, ", name="))
                .or_else(|| after(line.from, "(name="))
                .and_then(|name| name.split([',', ')']).next())
                .and_then(word);
            or_join(before, message)
        },
    },
    Reader {
        // torch.multiprocessing.spawn.
        markers: &[" terminated with signal SIGKILL"],
        read: |line, _, before| {
            let (head, _) = line.text.split_once(" terminated with signal")?;
            let mut message = ended(line, Program::Pytorch);
            message.rank = after(head, "process ").and_then(index);
            message.ranks = Vec::from_iter(message.rank);
            or_join(before, message)
        },
    },
    Reader {
        // `mpirun noticed that process rank 3 with PID 42 on node n1 exited on signal 9 (Killed)`.
        markers: &["exited on signal 9", "KILLED BY SIGNAL: 9"],
        read: |line, _, before| {
            let mut message = ended(line, Program::Shell);
            message.rank = after(line.text, "rank ").and_then(index);
            message.ranks = Vec::from_iter(message.rank);
            message.pid = after(line.text, "PID ").and_then(integer);
            message.host = after(line.text, "on node ").and_then(word);
            or_join(before, message)
        },
    },
    Reader {
        // A compiler's driver.
        markers: &["Killed signal terminated program "],
        read: |line, _, before| {
            let mut message = ended(line, Program::Shell);
            message.process = after(line.from, "program ").and_then(word);
            or_join(before, message)
        },
    },
    Reader {
        markers: &["Killed", "killed  ", "已杀死", "强制终止", "強制終了"],
        read: shell,
    },
    Reader {
        markers: &[
            "exited with code 137",
            "exit status 137",
            "xit code",
            "xit Code:",
            "xitCode",
            "died with <Signals.SIGKILL: 9>",
            "{SIGKILL(-9)}",
            "signal: killed",
            "signal 9 (SIGKILL)",
            "status=9/KILL",
        ],
        read: |line, noted, before| {
            /// Lines of a container's state, whatever their order.
            const STATE: usize = 4;
            if line.from.starts_with("xit") {
                let number = line.from.get("xit code".len() - 1..)?;
                let number = number.trim_start_matches(|c: char| !c.is_ascii_digit() && c != '-');
                (integer(number) == Some(137)).then_some(())?;
            }
            // A command that looks for the words.
            if line.text.contains("grep ") {
                return None;
            }
            // A pod's state has it beside its reason.
            match before {
                Some(before)
                    if matches!(
                        before.program,
                        Program::Kubernetes | Program::Docker | Program::Systemd
                    ) =>
                {
                    before.last = line.part;
                    None
                }
                before => {
                    let mut message = ended(line, Program::Shell);
                    message.pid = super::facts::pid(&line.near().to_ascii_lowercase());
                    // `kubectl describe`, or the same in JSON.
                    let limit = noted.limits_line.is_some();
                    if limit || noted.pod.is_some() || noted.container {
                        message.inside = Some(Program::Kubernetes);
                        message.host.clone_from(&noted.pod);
                        message.total = noted.limit;
                        if noted
                            .reason_line
                            .is_some_and(|reason| line.part - reason <= STATE)
                        {
                            message.setting = Some("not its limit");
                        }
                    }
                    or_join(before, message)
                }
            }
        },
    },
];

fn ended(line: &Line<'_>, program: Program) -> OomMessage {
    let mut message = line.message(program, MessageKind::Killed);
    message.memory = Memory::Host;
    message
}

/// `Killed` alone; `job.sh: line 28:  8156 Killed   python3 main.py`; `[1]    55263 killed  python3 main.py`.
fn shell(line: &Line<'_>, _: &mut Noted, before: Option<&mut OomMessage>) -> Option<OomMessage> {
    // In an issue it may stand in bold letters.
    let text = line.text.trim().trim_matches(['*', '`']);
    let mut message = ended(line, Program::Shell);
    if !["Killed", "Killed: 9", "已杀死", "强制终止", "強制終了"].contains(&text) {
        let (head, _) = text
            .split_once(" Killed  ")
            .or_else(|| text.split_once(" killed  "))
            .or_else(|| Some((text.strip_suffix(" Killed")?, "")))
            // Behind a bar of progress.
            .or_else(|| {
                let bar = text.strip_suffix("Killed")?;
                bar.ends_with([']', '|', '%']).then_some(("0", bar))
            })
            // Where the spaces were lost.
            .or_else(|| {
                let found = text.split_once(" Killed ")?;
                (found.0.contains(": line ") || found.0.starts_with('[')).then_some(found)
            })?;
        let pid = head.rsplit(' ').next()?;
        if pid.is_empty() || !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        message.pid = integer(pid).filter(|pid| *pid > 0);
    }
    or_join(before, message)
}

#[cfg(test)]
mod tests {
    use crate::text::tests::{all, one};

    #[test]
    fn what_shells_print() {
        assert_eq!(one("Killed").pid, None);
        assert_eq!(one("step 144: loss 0.2\n\n**Killed**").pid, None);
        assert_eq!(
            one("job.sh: line 28:  8156 Killed                  python3 main.py").pid,
            Some(8156)
        );
        assert_eq!(
            one("[1]    55263 killed     python3 main.py").pid,
            Some(55263)
        );
        assert_eq!(
            one("job.sh: line 8: 34475 Killed python main.py --in x").pid,
            Some(34475)
        );
        assert_eq!(all("Killed the lights  and left").len(), 0);
        assert_eq!(all("the job was Killed  by me").len(), 0);
    }

    #[test]
    fn launchers_name_the_rank() {
        let message =
            one("api:failed (exitcode: -9) local_rank: 3 (pid: 812917) of binary: python");
        assert_eq!((message.rank, message.pid), (Some(3), Some(812_917)));
        let message = one(
            "api: [ERROR] failed (exitcode: -9) for binary located at /opt/mem/bin/python with local_rank: 2 (process ID: 88)",
        );
        assert_eq!((message.rank, message.pid), (Some(2), Some(88)));
        let message = one(
            "[launch.py:428:sigkill_handler] Killing subprocess 1\n[launch.py:428:sigkill_handler] Killing subprocess 2\n['python', '--local_rank=5'] exits with return code = -9",
        );
        assert_eq!((message.rank, message.pid), (Some(5), None));
    }
}
