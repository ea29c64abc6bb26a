//! Products and languages that advice may name, and what in a text shows that they are used there: advice about others is no help.

use std::sync::LazyLock;

use super::program::Program;
use super::tables::Tables;
use super::words::Vocabulary;

/// A name as advice has it, and words of which a text has one where it fits.
type Backing = (&'static str, &'static [&'static str]);

const CONTAINERS: &[&str] = &["docker", "podman", "container", "kube"];
const CLUSTERS: &[&str] = &[
    "kube",
    "k8s",
    "oomkilled",
    "pod/",
    " pod",
    "pods",
    "helm",
    "evicted",
    "exit code:",
    "exitcode:",
    "last state",
    "terminated",
];
const TRTEXEC: &[&str] = &["trtexec", "&&&&", "--onnx"];

const NAMES: &[Backing] = &[
    ("docker", CONTAINERS),
    ("Kubernetes", CLUSTERS),
    ("kubectl", CLUSTERS),
    ("SLURM", &["slurm", "srun", "sbatch"]),
    ("systemd", &["systemd", ".service", ".slice", ".scope"]),
    ("DeepSpeed", &["deepspeed"]),
    ("deepspeed", &["deepspeed"]),
    ("accelerate", &["accelerate"]),
    (
        "torchrun",
        &["torchrun", "torch.distributed", "torch/distributed"],
    ),
    ("fairseq", &["fairseq"]),
    ("trtexec", TRTEXEC),
    ("--maxShapes", TRTEXEC),
    ("--memPoolSize", TRTEXEC),
    ("--fp16", TRTEXEC),
    ("TensorRT-LLM", &["tensorrt-llm", "tensorrt_llm", "trtllm"]),
    ("DataLoader", &["dataloader", "num_workers", "pt_data"]),
    ("eras", &["keras"]),
    ("the Trainer", &["trainer"]),
    ("colabfold", &["colabfold"]),
    ("LLM(", &["llm("]),
    (
        "Stable Diffusion",
        &["webui", "stable diffusion", "stable-diffusion", "forge"],
    ),
    ("NCCL", &["nccl"]),
    ("MPI", &["mpi"]),
    ("ninja", &["ninja"]),
];

/// Adds the names that a line backs.
pub(super) fn read(line: &str, found: &mut Vec<&'static str>) {
    static FINDER: LazyLock<Vocabulary<&'static str>> =
        LazyLock::new(|| Vocabulary::new(NAMES.iter().copied(), true));
    for (name, ..) in FINDER.all(line) {
        if !found.contains(&name) {
            found.push(name);
        }
    }
}

impl Tables {
    /// Whether the text shows the use of every product that advice names, beside the programs that run.
    pub fn backs(&self, advice: &str, runs: &[Program]) -> bool {
        let implied = |name: &str| {
            runs.iter().any(|program| match program {
                Program::Kubernetes => ["Kubernetes", "kubectl"].contains(&name),
                Program::Docker => name == "docker",
                program => program.name() == name,
            })
        };
        let mut names = NAMES.iter().map(|(name, _)| name);
        names.all(|name| self.backed.contains(name) || !advice.contains(name) || implied(name))
    }
}
