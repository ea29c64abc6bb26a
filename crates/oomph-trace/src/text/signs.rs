//! What a text shows of where and how a program ran, which decides what step fits: the words may stand anywhere in it.

use std::sync::LazyLock;

use super::words::Vocabulary;

/// Something that the text shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Sign {
    /// It ran on Windows.
    Windows,
    /// It trains.
    Trains,
    /// It infers, generates or evaluates.
    Infers,
    /// A runner of tests called it.
    Tests,
    /// `DistributedDataParallel` is set up: it makes its buckets of gradients.
    DataParallel,
    /// ONNX Runtime's provider for the CPU.
    OnCpu,
    /// A provider for CUDA is chosen.
    OnCuda,
    /// TensorRT has no other implementation for a node.
    NoImplementation,
    /// A batch of one.
    SmallestBatch,
    /// Several processes use the accelerator.
    SharesGpu,
}

const WORDS: &[(Sign, &[&str])] = &[
    (
        Sign::Windows,
        &[
            "c:\\",
            "d:\\",
            "e:\\",
            "nvidia-smi.exe",
            "windows 1",
            "os: windows",
        ],
    ),
    (
        Sign::Trains,
        &[
            ".backward(",
            "optimizer.step",
            "train.py",
            "training_step",
            "trainer.",
            "--do_train",
            "--train",
            "finetun",
            "fine-tun",
            "train(",
            "train_",
            "value_and_grad",
            "training step",
            "epoch ",
            "epoch:",
        ],
    ),
    (
        Sign::Infers,
        &[
            "inference",
            ".generate(",
            "predict",
            "evaluate(",
            "sampling",
            "pipeline(",
            "no_grad",
            "alphafold",
            "af2",
        ],
    ),
    (
        Sign::Tests,
        &["pytest", "unittest", ".py::", "test session starts"],
    ),
    (Sign::DataParallel, &["dist.reducer(", "_ddp_init_helper"]),
    (
        Sign::NoImplementation,
        &["could not find any implementation for node"],
    ),
    // This layout exists there alone.
    (Sign::OnCpu, &["_nchwc'"]),
    (
        Sign::SmallestBatch,
        &[
            "batch size 1 ",
            "batch size of 1 ",
            "batch_size=1 ",
            "batch size = 1 ",
            "batch_size 1 ",
        ],
    ),
    (
        Sign::SharesGpu,
        &[
            "two processes",
            "two python processes",
            "several processes",
            "multiple processes",
            "concurrent",
        ],
    ),
];

impl Sign {
    /// Adds what a line shows. `before_is_provider`: whether the heading that asks for the provider stands above.
    pub(super) fn read(line: &str, before_is_provider: &mut bool, found: &mut Vec<Self>) {
        static FINDER: LazyLock<Vocabulary<Sign>> = LazyLock::new(|| {
            Vocabulary::new(WORDS.iter().map(|(sign, words)| (*sign, *words)), true)
        });
        let mut add = |sign| {
            if !found.contains(&sign) {
                found.push(sign);
            }
        };
        for (sign, ..) in FINDER.all(line) {
            add(sign);
        }
        // The form of an issue: a heading, and the answer below.
        let text = line.trim().trim_start_matches(['#', ' ']);
        if *before_is_provider && !text.is_empty() {
            *before_is_provider = false;
            if text.contains("CUDA") {
                add(Self::OnCuda);
            } else if text.contains("CPU") {
                add(Self::OnCpu);
            }
        }
        *before_is_provider |= text == "Execution Provider";
    }
}

#[cfg(test)]
mod tests {
    use super::Sign;

    #[test]
    fn signs_stand_anywhere() {
        let shown = |text: &str| {
            let (mut provider, mut found) = (false, Vec::new());
            for line in text.lines() {
                Sign::read(line, &mut provider, &mut found);
            }
            found
        };
        assert_eq!(
            shown("File \"C:\\lib\\a.py\"\nloss.backward()"),
            [Sign::Windows, Sign::Trains]
        );
        assert_eq!(shown("### Execution Provider\n\nCUDA"), [Sign::OnCuda]);
        assert_eq!(shown("Conv node. Name:'12_nchwc'"), [Sign::OnCpu]);
        assert_eq!(shown("self.reducer = dist.Reducer("), [Sign::DataParallel]);
        assert_eq!(shown("a line"), []);
    }
}
