//! What the processes of a run held on its virtual GPUs: the file that `crates/oomph-vgpu/src/card.rs`
//! writes and describes.

use std::fs;
use std::path::Path;

use oomph_run::processes::{Cards, Held};

const GPUS: usize = 64;
const SLOTS: usize = 1024;
const HEAD: usize = 8;
const OWN: usize = 16;
const COMMAND: usize = 16;
const SLOT: usize = OWN + COMMAND + 3 * GPUS;

const TAKEN: usize = 1;
const CROWDED: usize = 2;
const PROCESS: usize = 0;
const REFUSED: usize = 3;
const FAILED: usize = 4;
const NAME: usize = 7;

/// Reads the file; nothing was held if there is none.
pub fn read(path: &Path) -> Cards {
    let bytes = fs::read(path).unwrap_or_default();
    let words: Vec<u64> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|&word| u64::from_ne_bytes(word))
        .collect();
    let word = |index: usize| words.get(index).copied().unwrap_or(0);
    let taken = usize::try_from(word(TAKEN)).unwrap_or(SLOTS).min(SLOTS);
    let mut cards = Cards {
        peaks: (0..GPUS).map(|gpu| word(HEAD + gpu)).collect(),
        processes: Vec::new(),
        forgotten: word(CROWDED),
    };
    for slot in 0..taken {
        let at = HEAD + GPUS + slot * SLOT;
        let on = |gpu: usize, what: usize| word(at + OWN + COMMAND + 3 * gpu + what);
        let Some(gpu) = (0..GPUS).max_by_key(|&gpu| (on(gpu, 1), GPUS - gpu)) else {
            continue;
        };
        let refused = word(at + REFUSED);
        if on(gpu, 1) == 0 && refused == 0 {
            continue;
        }
        let text = |from: usize, count: usize| -> Vec<u8> {
            (from..from + count)
                .flat_map(|part| word(at + part).to_le_bytes())
                .collect()
        };
        let call = String::from_utf8_lossy(&text(FAILED + 1, NAME))
            .trim_end_matches('\0')
            .to_owned();
        let error = word(at + FAILED);
        cards.processes.push(Held {
            process: u32::try_from(word(at + PROCESS)).unwrap_or(0),
            command: command_line(&text(OWN, COMMAND)),
            device: u32::try_from(gpu).unwrap_or(0),
            peak_bytes: on(gpu, 1),
            held_bytes: on(gpu, 2),
            refused_bytes: (refused > 0).then_some(refused),
            failed_call: (error > 0).then(|| format!("{call} (CUDA error {error})")),
        });
    }
    cards
}

/// What `/proc/PID/cmdline` says, as one would type it: without directories and the recorder.
fn command_line(bytes: &[u8]) -> String {
    const RECORDER: [&str; 2] = ["-m", "oomph.launch"];
    const SPAWN: &str = "from multiprocessing.spawn import spawn_main";
    let text = String::from_utf8_lossy(bytes);
    let mut words: Vec<String> = text
        .trim_end_matches(['\0', char::REPLACEMENT_CHARACTER])
        .split('\0')
        .map(|word| word.replace(char::is_control, " "))
        .collect();
    if words.iter().any(|word| word.starts_with(SPAWN)) {
        return "multiprocessing.spawn".to_owned();
    }
    if words.get(1..3).is_some_and(|found| found == RECORDER) {
        words.drain(1..3);
    }
    for word in &mut words {
        if word.starts_with('/')
            && let Some((_, name)) = word.rsplit_once('/')
        {
            *word = name.to_owned();
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_short_or_absent_is_no_harm() {
        assert!(read(Path::new("/nowhere")).processes.is_empty());
        let path = std::env::temp_dir().join(format!("oomph-card-cut-{}", std::process::id()));
        let write = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            fs::write(&path, bytes).unwrap();
        };
        let mut words = vec![0_u64, 3, 0];
        write(&words);
        assert!(read(&path).processes.is_empty());
        words.resize(HEAD + GPUS + SLOT, 0);
        words[HEAD] = 50;
        let slot = HEAD + GPUS;
        words[slot] = 77;
        words[slot + OWN] = u64::from_le_bytes(*b"a\0b.py\0\0");
        words[slot + FAILED] = 1;
        words[slot + FAILED + 1] = u64::from_le_bytes(*b"cuCtxGet");
        words[slot + FAILED + 2] = u64::from_le_bytes(*b"Id\0\0\0\0\0\0");
        words[slot + OWN + COMMAND + 1] = 40;
        words[slot + OWN + COMMAND + 2] = 30;
        write(&words);
        let found = read(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(found.peaks[0], 50);
        let [held] = &found.processes[..] else {
            panic!("{found:?}")
        };
        assert_eq!(
            (held.process, held.peak_bytes, held.held_bytes),
            (77, 40, 30)
        );
        assert_eq!(held.command, "a b.py");
        assert_eq!(held.refused_bytes, None);
        let call = "cuCtxGetId (CUDA error 1)";
        assert_eq!(held.failed_call.as_deref(), Some(call));
    }

    #[test]
    fn commands_are_named_as_one_would_type_them() {
        for (line, name) in [
            (
                "/usr/bin/python3\0-m\0oomph.launch\0/home/me/train.py\0--lr\0",
                "python3 train.py --lr",
            ),
            (
                "python\0-B\0-c\0from multiprocessing.spawn import spawn_main; spawn_main(3)",
                "multiprocessing.spawn",
            ),
            ("", ""),
        ] {
            assert_eq!(command_line(line.as_bytes()), name);
        }
    }
}
