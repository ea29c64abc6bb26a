//! What the kernel says of a process that it may have ended: its counters, and its log where that may be read.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::ExitStatus;
use std::time::{SystemTime, UNIX_EPOCH};

use oomph_run::black_box::About;
use oomph_run::ending::Outside;

use crate::signals;

/// The most lines of the log that are kept.
const LINES: usize = 4;

/// What can be found out about the process of a box, which is `running` or not; `status` is how its parent saw it end.
pub fn outside(about: &About, running: bool, status: Option<ExitStatus>) -> Outside {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let other_boot = !about.boot.is_empty() && boot.trim() != about.boot;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Outside {
        status: status.and_then(in_words),
        running,
        oom_kills: if other_boot { None } else { oom_kills(about) },
        log: if other_boot || running {
            Vec::new()
        } else {
            log_of(about.process)
        },
        other_boot,
        stacks: None,
        scheduler: std::env::var("SLURM_JOB_ID")
            .ok()
            .filter(|job| job.chars().all(|c| c.is_ascii_digit()))
            .map(|job| format!("sacct -j {job} -o JobID,State,ExitCode,MaxRSS,ReqMem")),
        now_us: now.map_or(0, |now| now.as_micros() as i64),
    }
}

/// How a process ended, if it did not end by itself.
fn in_words(status: ExitStatus) -> Option<String> {
    use std::os::unix::process::ExitStatusExt as _;
    if let Some(signal) = status.signal() {
        let name = name(signal);
        return Some(match signals::received() {
            Some(received) if signal == 9 => {
                format!("killed by {name}, some time after {received} (--grace)")
            }
            _ => format!("killed by {name}"),
        });
    }
    status
        .code()
        .filter(|code| *code != 0)
        .map(|code| format!("exit status {code}"))
}

fn name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal)
        .map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// By how much the kernel's counters of killed processes have grown: those of the process's own cgroup, if there are any.
fn oom_kills(about: &About) -> Option<(u64, String)> {
    about.oom_kills.iter().find_map(|(file, before)| {
        let now = count(&fs::read_to_string(file).ok()?)?;
        let more = now.checked_sub(*before).filter(|more| *more > 0)?;
        Some((more, format!("oom_kill in {file}")))
    })
}

/// What a file of counters has as `oom_kill`.
fn count(text: &str) -> Option<u64> {
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix("oom_kill "));
    values.next()?.trim().parse().ok()
}

/// Lines of the kernel's log that name a process. Most users may not read it.
fn log_of(process: u32) -> Vec<String> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open("/dev/kmsg");
    let Ok(mut log) = opened else {
        return Vec::new();
    };
    let mut found = Vec::new();
    // Each read gives one record, and an error after the last.
    let mut record = [0; 8192];
    while let Ok(length) = log.read(&mut record) {
        if length == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&record[..length]);
        if let Some(line) = of_process(&text, process) {
            found.push(line);
        }
    }
    found.drain(..found.len().saturating_sub(LINES));
    found
}

/// The message of a record of the log, if it is about a process that was killed, crashed, or made a GPU report an error.
fn of_process(record: &str, process: u32) -> Option<String> {
    let message = record.split_once(';')?.1.lines().next()?;
    let names = [
        format!("Killed process {process} "),
        format!("[{process}]: segfault"),
        format!("[{process}] general protection"),
    ];
    let is_gpus = message.contains("Xid") && message.contains(&format!("pid={process},"));
    (is_gpus || names.iter().any(|name| message.contains(name)))
        .then(|| format!("the kernel's log: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        let killed = "3,1,2,-;Memory cgroup out of memory: Killed process 42 (python) total-vm:1kB\n SUBSYSTEM=x\n";
        assert!(
            of_process(killed, 42)
                .unwrap()
                .contains("Killed process 42")
        );
        assert_eq!(of_process(killed, 4), None);
        let xid =
            "4,1,2,-;NVRM: Xid (PCI:0000:01:00): 31, pid=42, name=python, Ch 00000008, MMU Fault";
        assert!(of_process(xid, 42).is_some() && of_process(xid, 2).is_none());
        assert!(of_process("6,1,2,-;python[42]: segfault at 0 ip 0", 42).is_some());
        assert_eq!(of_process("6,1,2,-;eth0 is up, pid=42,", 42), None);
        assert_eq!(count("low 0\noom 1\noom_kill 3\n"), Some(3));
        assert_eq!(
            count("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            Some(2)
        );
        assert_eq!(count("nr_free 1\n"), None);
    }

    #[test]
    fn counters_that_have_grown_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "oom_kill 5\n").unwrap();
        let path = file.path().display().to_string();
        let about = |before| About {
            oom_kills: vec![("/missing".to_owned(), 0), (path.clone(), before)],
            ..About::default()
        };
        assert_eq!(oom_kills(&about(3)).unwrap().0, 2);
        assert!(oom_kills(&about(5)).is_none() && oom_kills(&about(9)).is_none());
    }

    #[test]
    fn signals_have_their_names() {
        assert_eq!(name(9), "SIGKILL");
        assert_eq!(name(11), "SIGSEGV");
        assert_eq!(name(6), "SIGABRT");
    }
}
