//! Python's stacks as `faulthandler` writes them, and what a thread was doing by its stack.

use oomph_trace::is_users_own;

/// Begins a line that says why the stacks below it were written.
pub const HEADING: &str = "== ";

/// A frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The file.
    pub file: String,
    /// The line in it.
    pub line: u32,
    /// The function.
    pub function: String,
}

/// The stack of the main thread in the last of the dumps that `text` has, the innermost frame first.
///
/// Python lists the newest thread first, and the main thread last.
pub fn main_thread(text: &str) -> Vec<Frame> {
    let mut frames = Vec::new();
    for line in text.lines() {
        if line.starts_with(HEADING)
            || line.starts_with("Thread 0x")
            || line.starts_with("Current thread 0x")
        {
            frames.clear();
        } else if let Some(frame) = frame(line) {
            frames.push(frame);
        }
    }
    frames
}

/// The error that Python says a crash was: `Segmentation fault`.
pub fn fatal(text: &str) -> Option<&str> {
    let found = text.lines().rev();
    let mut found = found.filter_map(|line| line.strip_prefix("Fatal Python error: "));
    found.next()
}

fn frame(line: &str) -> Option<Frame> {
    let rest = line.strip_prefix("  File \"")?;
    let (file, rest) = rest.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    Some(Frame {
        file: file.to_owned(),
        line: line.parse().ok()?,
        function: function.to_owned(),
    })
}

/// The user's own line, `file:line`, with the file's name alone.
pub fn place(frames: &[Frame]) -> Option<String> {
    let frame = frames.iter().find(|frame| is_own(&frame.file))?;
    let name = frame.file.rsplit('/').next().unwrap_or(&frame.file);
    Some(format!("{name}:{}", frame.line))
}

fn is_own(file: &str) -> bool {
    !file.contains('<') && is_users_own(file)
}

/// What a thread with this stack was doing, in words, if its stack says so.
///
/// The innermost known file decides. Files that are around any step (wrappers of modules, compiled code) are not among them, and
/// a module that is being imported does not do what it is for.
pub fn doing(frames: &[Frame]) -> Option<String> {
    const KNOWN: &[(&[&str], &str)] = &[
        (
            &[
                "/torch/utils/data/",
                "/datasets/iterable_dataset.py",
                "/webdataset/",
            ],
            "loading data",
        ),
        (
            &[
                "/torch/_dynamo/convert_frame.py",
                "/torch/_dynamo/symbolic_convert.py",
                "/torch/_inductor/compile_fx.py",
                "/torch/_inductor/graph.py",
                "/torch/_inductor/codecache.py",
                "/torch/_inductor/async_compile.py",
                "/triton/compiler/",
                "/triton/runtime/autotuner.py",
            ],
            "compiling",
        ),
        (
            &[
                "/torch/serialization.py",
                "/safetensors/",
                "/torch/distributed/checkpoint/",
            ],
            "saving or loading a file",
        ),
        (
            &["/torch/cuda/__init__.py", "/torch/cuda/streams.py"],
            "waiting for the GPU",
        ),
        (&["/subprocess.py"], "waiting for another program"),
        (
            &["/socket.py", "/ssl.py", "/http/client.py"],
            "waiting for the network",
        ),
    ];
    // What lies around the user's code started it.
    let inner = frames.iter().take_while(|frame| !is_own(&frame.file));
    if inner.into_iter().any(|frame| frame.function == "<module>") {
        return Some("importing modules".to_owned());
    }
    frames.iter().find_map(|frame| {
        if frame
            .file
            .ends_with("/torch/distributed/distributed_c10d.py")
        {
            let function = frame.function.rsplit('.').next().unwrap_or_default();
            return Some(format!("waiting for other ranks in {function}"));
        }
        KNOWN
            .iter()
            .find(|(files, _)| files.iter().any(|file| frame.file.contains(file)))
            .map(|(_, what)| (*what).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"== 20:15:02: SIGTERM
Current thread 0x00007f01 (most recent call first):
  File "/old.py", line 1 in old
== 20:16:02: no pass began
Thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f01 (most recent call first):
  File "/home/u/.venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2906 in all_reduce
  File "/home/u/my train, line 3 in it.py", line 91 in main
  File "/home/u/train.py", line 120 in <module>

Extension modules: numpy (total: 1)
"#;

    #[test]
    fn the_main_thread_of_the_last_dump_is_read() {
        let frames = main_thread(TEXT);
        assert_eq!(frames.len(), 3);
        assert_eq!(
            place(&frames).as_deref(),
            Some("my train, line 3 in it.py:91")
        );
        assert_eq!(
            doing(&frames).as_deref(),
            Some("waiting for other ranks in all_reduce")
        );
        assert!(main_thread("what\n  File \"x").is_empty());
    }

    #[test]
    fn what_it_was_doing_is_said_by_the_innermost_file_that_is_known() {
        let of = |files: &[&str]| {
            let frames: Vec<Frame> = files
                .iter()
                .map(|file| Frame {
                    file: file.trim_end_matches('!').to_owned(),
                    line: 1,
                    function: if file.ends_with('!') { "<module>" } else { "f" }.to_owned(),
                })
                .collect();
            doing(&frames)
        };
        let torch = "/x/lib/python3.11/site-packages/torch";
        for (files, expected) in [
            (
                vec!["/u/data.py", "T/utils/data/dataloader.py"],
                Some("loading data"),
            ),
            (
                vec!["T/_inductor/compile_fx.py", "T/_dynamo/eval_frame.py"],
                Some("compiling"),
            ),
            (
                vec!["T/_inductor/graph.py!", "/u/train.py!"],
                Some("importing modules"),
            ),
            // The launcher that runs the script is a module, too.
            (vec!["/u/train.py", "T/run.py!"], None),
            // Compiled code that runs, and a wrapped module.
            (vec!["/u/net.py", "T/_dynamo/eval_frame.py"], None),
            (
                vec!["/u/net.py", "T/distributed/fsdp/fully_sharded.py"],
                None,
            ),
            (
                vec!["T/serialization.py", "/u/train.py"],
                Some("saving or loading a file"),
            ),
        ] {
            let files: Vec<String> = files.iter().map(|file| file.replace('T', torch)).collect();
            let files: Vec<&str> = files.iter().map(String::as_str).collect();
            assert_eq!(of(&files).as_deref(), expected, "{files:?}");
        }
    }

    #[test]
    fn a_crash_has_a_name() {
        let text = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n";
        assert_eq!(fatal(text), Some("Segmentation fault"));
        assert_eq!(fatal(TEXT), None);
    }
}
