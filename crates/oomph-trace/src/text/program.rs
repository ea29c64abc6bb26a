//! Which program a message is of, and which memory it is about.

use std::sync::LazyLock;

pub use super::named::{Named, Uses};
use super::words::Vocabulary;

/// The program that wrote a message, or in which it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Program {
    /// PyTorch.
    Pytorch,
    /// JAX and XLA.
    Jax,
    /// TensorFlow.
    Tensorflow,
    /// ONNX Runtime.
    OnnxRuntime,
    /// TensorRT and TensorRT-LLM.
    TensorRt,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Text Generation Inference.
    TextGenerationInference,
    /// llama.cpp and what is built on it.
    LlamaCpp,
    /// Ollama, which runs llama.cpp.
    Ollama,
    /// `ComfyUI`, which runs PyTorch.
    ComfyUi,
    /// A web interface of Stable Diffusion, which runs PyTorch.
    StableDiffusion,
    /// RELION.
    Relion,
    /// `PaddlePaddle`.
    Paddle,
    /// `XGBoost`.
    Xgboost,
    /// `CTranslate2`, which faster-whisper runs on.
    CTranslate2,
    /// CuPy.
    Cupy,
    /// RMM, the allocator of RAPIDS.
    Rmm,
    /// Numba.
    Numba,
    /// `NumPy`.
    Numpy,
    /// Python itself.
    Python,
    /// Triton, the compiler of kernels.
    Triton,
    /// NCCL.
    Nccl,
    /// cuBLAS.
    Cublas,
    /// cuDNN.
    Cudnn,
    /// CUDA's driver or runtime.
    Cuda,
    /// `DeepSpeed`'s launcher.
    DeepSpeed,
    /// torchrun.
    Torchrun,
    /// Ray.
    Ray,
    /// SLURM.
    Slurm,
    /// The Linux kernel.
    Kernel,
    /// Kubernetes.
    Kubernetes,
    /// systemd, and its own OOM killer.
    Systemd,
    /// Docker, and other engines of containers.
    Docker,
    /// A shell, or whoever else says how a process ended.
    Shell,
    /// One that is known by name only.
    Named(&'static Named),
    /// None of these.
    Unknown,
}

impl Program {
    /// Its name in JSON.
    pub const fn id(self) -> &'static str {
        self.names().0
    }

    /// Its name in a sentence.
    pub const fn name(self) -> &'static str {
        self.names().1
    }

    /// Whether it is a library, which other programs run on.
    pub(super) const fn runs_inside(self) -> bool {
        matches!(
            self,
            Self::Pytorch
                | Self::Cublas
                | Self::Cudnn
                | Self::Cuda
                | Self::Nccl
                | Self::Triton
                | Self::TensorRt
                | Self::LlamaCpp
        )
    }

    /// Whether it is a server, whose own memory is the GPU's.
    pub const fn serves(self) -> bool {
        matches!(
            self,
            Self::Vllm | Self::Sglang | Self::TextGenerationInference
        )
    }

    /// Whether it runs on PyTorch.
    pub const fn runs_on_torch(self) -> bool {
        self.serves()
            || matches!(
                self,
                Self::Pytorch
                    | Self::ComfyUi
                    | Self::StableDiffusion
                    | Self::DeepSpeed
                    | Self::Torchrun
            )
    }

    /// Whether it runs models and trains none.
    pub fn only_infers(self) -> bool {
        match self {
            Self::Vllm
            | Self::Sglang
            | Self::TextGenerationInference
            | Self::LlamaCpp
            | Self::Ollama
            | Self::ComfyUi
            | Self::StableDiffusion
            | Self::CTranslate2
            | Self::OnnxRuntime
            | Self::TensorRt => true,
            Self::Named(named) => match named.uses {
                Uses::Paints => true,
                // These two train as well.
                Uses::Chats => !matches!(named.id, "mlx" | "text-generation-webui"),
                _ => named.id.starts_with("whisper"),
            },
            _ => false,
        }
    }

    /// Which memory its own words are about, where they do not say.
    pub(super) const fn memory(self) -> Memory {
        match self {
            Self::Named(named) => named.memory,
            Self::Ray | Self::Slurm => Memory::Host,
            // Their errors of that name are about the GPU.
            Self::Pytorch | Self::Vllm | Self::Sglang | Self::TextGenerationInference => {
                Memory::Device
            }
            _ => Memory::Unknown,
        }
    }

    /// Whether it starts other programs, and says who it is only there.
    pub(super) const fn starts_others(self) -> bool {
        matches!(
            self,
            Self::Ollama | Self::ComfyUi | Self::StableDiffusion | Self::Relion
        )
    }

    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Pytorch => ("pytorch", "PyTorch"),
            Self::Jax => ("jax", "JAX (XLA)"),
            Self::Tensorflow => ("tensorflow", "TensorFlow"),
            Self::OnnxRuntime => ("onnxruntime", "ONNX Runtime"),
            Self::TensorRt => ("tensorrt", "TensorRT"),
            Self::Vllm => ("vllm", "vLLM"),
            Self::Sglang => ("sglang", "SGLang"),
            Self::TextGenerationInference => {
                ("text-generation-inference", "Text Generation Inference")
            }
            Self::LlamaCpp => ("llama.cpp", "llama.cpp"),
            Self::Ollama => ("ollama", "Ollama"),
            Self::ComfyUi => ("comfyui", "ComfyUI"),
            Self::StableDiffusion => (
                "stable-diffusion-webui",
                "a web interface of Stable Diffusion",
            ),
            Self::Relion => ("relion", "RELION"),
            Self::Paddle => ("paddle", "PaddlePaddle"),
            Self::Xgboost => ("xgboost", "XGBoost"),
            Self::CTranslate2 => ("ctranslate2", "CTranslate2"),
            Self::Cupy => ("cupy", "CuPy"),
            Self::Rmm => ("rmm", "RMM (RAPIDS)"),
            Self::Numba => ("numba", "Numba"),
            Self::Numpy => ("numpy", "NumPy"),
            Self::Python => ("python", "Python"),
            Self::Triton => ("triton", "Triton"),
            Self::Nccl => ("nccl", "NCCL"),
            Self::Cublas => ("cublas", "cuBLAS"),
            Self::Cudnn => ("cudnn", "cuDNN"),
            Self::Cuda => ("cuda", "CUDA"),
            Self::DeepSpeed => ("deepspeed", "DeepSpeed's launcher"),
            Self::Torchrun => ("torchrun", "torchrun"),
            Self::Ray => ("ray", "Ray"),
            Self::Slurm => ("slurm", "SLURM"),
            Self::Kernel => ("kernel", "the Linux kernel"),
            Self::Kubernetes => ("kubernetes", "Kubernetes"),
            Self::Systemd => ("systemd", "systemd"),
            Self::Docker => ("docker", "Docker"),
            Self::Shell => ("shell", "a shell or a launcher"),
            Self::Named(named) => (named.id, named.name),
            Self::Unknown => ("unknown", "a program that oomph does not know"),
        }
    }
}

/// Which memory ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Memory {
    /// The GPU's, or another accelerator's.
    Device,
    /// The host's (RAM), with its pinned and its shared memory.
    Host,
    /// The shared memory of a multiprocessor, which a kernel asks for by itself.
    OnChip,
    /// The message does not say.
    Unknown,
    /// None: the error is about something else.
    None,
}

impl Memory {
    /// Its name in JSON.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::OnChip => "on_chip",
            Self::Unknown => "unknown",
            Self::None => "none",
        }
    }

    /// This one, or another where this one is not known.
    pub(super) const fn or(self, other: Self) -> Self {
        if matches!(self, Self::Unknown) {
            other
        } else {
            self
        }
    }

    /// Its name in a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "GPU memory",
            Self::Host => "host memory (RAM)",
            Self::OnChip => "shared memory on the chip",
            Self::Unknown => "memory",
            Self::None => "no matter of memory",
        }
    }
}

const HARDWARE: &[(Hardware, &[&str])] = &[
    (
        Hardware::Apple,
        &[
            "MPS backend",
            "Metal buffer",
            "ggml_metal",
            "kIOGPU",
            "[METAL]",
            "[metal::",
            "mlx.core",
            "device mps",
            "Apple M",
        ],
    ),
    (
        Hardware::Tpu,
        &["XLA:TPU", "space hbm", "libtpu", "TPU v", "TpuDevice"],
    ),
    (
        Hardware::Jetson,
        &["NvMap", "Jetson", "Tegra", "tegra-", "tegra_", "tegrastats"],
    ),
    (
        Hardware::Ascend,
        &["NPU out of memory", "Ascend", "torch_npu", "aclrt"],
    ),
    (
        Hardware::Gaudi,
        &["hl-smi", "habana", "PT_DEVMEM", "PT_HPU", "HPU"],
    ),
    (
        Hardware::Neuron,
        &[
            "TDRV:",
            "nrt_",
            "neuronx",
            "neuron-top",
            "NeuronCore",
            "NeuronDevice",
        ],
    ),
    (
        Hardware::Intel,
        &[
            "XPU out of memory",
            "SYCL",
            "sycl",
            "device:XPU",
            "device='xpu'",
            "Arc(TM)",
            "UR_RESULT_ERROR",
            "PI_ERROR",
            "ZE_RESULT",
            "level_zero",
            "Level-Zero",
        ],
    ),
    (
        Hardware::Amd,
        &[
            "HIP ",
            "hipMalloc",
            "hipError",
            "access fault by GPU",
            "HSA_STATUS",
            "ROCm",
            "rocm",
            "Radeon",
            "amdgpu",
        ],
    ),
    (
        Hardware::DirectX,
        &[
            "DmlExecutionProvider",
            "DirectML",
            "device:DML:",
            "Direct3D",
            "D3D1",
            "DXGI_",
            "8007000E",
            "8007000e",
        ],
    ),
    (
        Hardware::Vulkan,
        &[
            "ggml_vulkan",
            "vk::Device",
            "Vulkan0",
            "Vulkan1",
            "VK_ERROR",
            "vkAllocate",
            "vmaAllocate",
            "Dxvk",
        ],
    ),
];

/// Whose accelerator a text is about: that decides what its memory is called, and which command looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Hardware {
    /// NVIDIA's, or the text does not say.
    #[default]
    Gpu,
    /// AMD's.
    Amd,
    /// A Mac's, which shares the host's memory.
    Apple,
    /// Google's TPU.
    Tpu,
    /// NVIDIA's small computers, whose GPU shares the host's memory.
    Jetson,
    /// Intel's.
    Intel,
    /// Intel's Gaudi.
    Gaudi,
    /// Amazon's Trainium and Inferentia.
    Neuron,
    /// Huawei's NPU.
    Ascend,
    /// Somebody's, used through Vulkan.
    Vulkan,
    /// Somebody's, used through Windows' DirectX.
    DirectX,
}

impl Hardware {
    /// The one that words name. CUDA's words name none: others' libraries keep them.
    pub(super) fn of(text: &str) -> Self {
        static WORDS: LazyLock<Vocabulary<Hardware>> =
            LazyLock::new(|| Vocabulary::new(HARDWARE.iter().copied(), false));
        WORDS.first(text).unwrap_or_default()
    }

    /// The one that a line anywhere in a text shows beyond doubt: by the makers' tools and the modules of frameworks.
    pub(super) fn shown(line: &str) -> Self {
        const SHOWN: &[(Hardware, &[&str])] = &[
            (Hardware::Gaudi, &["hl-smi", "habana_frameworks", "PT_HPU_"]),
            (
                Hardware::Neuron,
                &["neuron-top", "neuron-ls", "torch_neuronx", "TDRV:"],
            ),
            (
                Hardware::Amd,
                &[
                    "rocm-smi",
                    "amd-smi",
                    "rocminfo",
                    "VRAM Total Used Memory",
                    "AMD Radeon",
                ],
            ),
            (
                Hardware::Intel,
                &["xpu-smi", "device='xpu'", "intel_gpu", "torch.xpu."],
            ),
            (Hardware::Ascend, &["npu-smi"]),
            (Hardware::Jetson, &["tegrastats", "NvMapMem"]),
        ];
        static WORDS: LazyLock<Vocabulary<Hardware>> =
            LazyLock::new(|| Vocabulary::new(SHOWN.iter().copied(), false));
        WORDS.first(line).unwrap_or_default()
    }

    /// This one, or another where this one is not known.
    pub(super) fn or(self, other: Self) -> Self {
        if self == Self::Gpu { other } else { self }
    }
}
