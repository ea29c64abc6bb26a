//! Programs that have no messages of their own here: their names, which memory their words are about, and what they
//! are used for, which decides the next step.

use std::sync::LazyLock;

use super::program::{Memory, Program};
use super::words::Vocabulary;

/// A program that is known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Named {
    /// Its name in JSON.
    pub id: &'static str,
    /// Its name in a sentence.
    pub name: &'static str,
    /// What it is used for.
    pub uses: Uses,
    /// The memory that it means where its words do not say.
    pub(super) memory: Memory,
}

/// What a program is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Uses {
    /// Draws scenes.
    Renders,
    /// A game, or what games draw with.
    Plays,
    /// Answers with a language model.
    Chats,
    /// Makes images or videos.
    Paints,
    /// Folds proteins.
    Folds,
    /// Trains or runs models of other kinds.
    Models,
    /// Simulates molecules, fluids, fields.
    Simulates,
    /// Computes on images or recordings.
    Converts,
    /// Spreads tables over workers: Spark.
    Spark,
    /// Spreads tasks over workers: Dask.
    Dask,
    /// A notebook in a browser, with a session on a server.
    Notebook,
    /// A machine for Java.
    Java,
    /// A machine for JavaScript.
    Node,
    /// PHP.
    Php,
    /// Compiles or links.
    Builds,
    /// Puts jobs on the nodes of a cluster.
    Schedules,
    /// A driver.
    Drives,
    /// Keeps data.
    Stores,
    /// Computes on arrays and tables in memory.
    Computes,
    /// Ends processes before the host's memory is used up.
    Watches,
}

macro_rules! named {
    ($($id:literal $name:literal $uses:ident $memory:ident: $($word:literal),+;)+) => {
        &[$((
            Program::Named(&Named { id: $id, name: $name, uses: Uses::$uses, memory: Memory::$memory }),
            &[$($word),+],
        )),+]
    };
}

/// In any case of letters, the more special ones first.
const WORDS: &[(Program, &[&str])] = named! {
    "nvidia-driver" "NVIDIA's kernel driver" Drives Host: "nvrm: ", "nvidia-modeset: ";
    "blender" "Blender" Renders Unknown: "blender", "cycles_", "optix acceleration";
    "v-ray" "V-Ray" Renders Unknown: "v-ray", "vray", "light cache ]", "chaos";
    "octane" "OctaneRender" Renders Unknown: "octane";
    "redshift" "Redshift" Renders Unknown: "redshift";
    "unreal" "Unreal Engine" Plays Unknown: "unreal", "lowlevelfatalerror", "allocate a rendering resource";
    "dxvk" "DXVK" Plays Device: "dxvk";
    "direct3d" "Direct3D" Plays Device: "direct3d", "d3d9", "d3d11", "d3d12", "dxgi_", "ddraw", "dderr_";
    "unity" "Unity" Plays Unknown: "unityplayer", "unityengine", "unity editor";
    "rendersystem" "a game" Plays Device: "[rendersystem]", "vmaallocate";
    "opengl" "OpenGL" Plays Device: "gl_out_of_memory", "opengl";
    "webgl" "the browser" Plays Device: "webgl", "webgpu", "chrome_child";
    "lmdeploy" "LMDeploy" Chats Device: "lmdeploy", "turbomind";
    "lm-studio" "LM Studio" Chats Unknown: "lm studio", "lmstudio", "model loading guardrails";
    "koboldcpp" "KoboldCpp" Chats Unknown: "koboldcpp", "kobold";
    "text-generation-webui" "text-generation-webui" Chats Unknown: "text-generation-webui", "oobabooga";
    "exllama" "ExLlama" Chats Device: "exllama";
    "mlx" "MLX" Chats Device: "mlx_lm", "mlx-lm", "mlx.core", "mlx_whisper", "mlx_model", "[malloc_or_wait]", "[metal]", "metal allocator";
    "mlc" "MLC" Chats Device: "mlc_llm", "mlc-llm";
    "gpt4all" "GPT4All" Chats Unknown: "gpt4all";
    "localai" "LocalAI" Chats Unknown: "localai";
    "stable-diffusion.cpp" "stable-diffusion.cpp" Paints Unknown: "stable-diffusion.cpp", "sd.cpp";
    "invokeai" "InvokeAI" Paints Unknown: "invokeai";
    "fooocus" "Fooocus" Paints Unknown: "fooocus";
    "alphafold" "AlphaFold" Folds Unknown: "alphafold", "colabfold", "localcolabfold", "run_boltz", "boltz predict", "chai-lab", "chai_lab";
    "mxnet" "MXNet" Models Unknown: "mxnet", "pooled_storage_manager", "incubator-mxnet";
    "caffe" "Caffe" Models Unknown: "syncedmem", "caffe";
    "darknet" "Darknet" Models Unknown: "darknet", "cuda_make_array";
    "mindspore" "MindSpore" Models Unknown: "mindspore";
    "oneflow" "OneFlow" Models Unknown: "oneflow";
    "jittor" "Jittor" Models Unknown: "jittor";
    "cntk" "CNTK" Models Unknown: "cntk";
    "openvino" "OpenVINO" Models Unknown: "openvino";
    "ncnn" "ncnn" Models Unknown: "ncnn";
    "lightgbm" "LightGBM" Models Unknown: "lightgbm";
    "catboost" "CatBoost" Models Unknown: "catboost";
    "faiss" "Faiss" Models Unknown: "faiss";
    "deepstream" "DeepStream" Models Unknown: "deepstream", "nvbufsurf", "gst-nvinfer";
    "triton-server" "Triton Inference Server" Models Unknown: "tritonserver", "triton-inference-server", "cnmem_status", "tritonclient";
    "gromacs" "GROMACS" Simulates Unknown: "gromacs", "gmx ";
    "openmm" "OpenMM" Simulates Unknown: "openmm";
    "amber" "AMBER" Simulates Unknown: "pmemd.", "pmemd ", "pmemd:", "ambertools";
    "lammps" "LAMMPS" Simulates Unknown: "lammps";
    "namd" "NAMD" Simulates Unknown: "namd2", "namd3";
    "charm++" "Charm++" Simulates Unknown: "charm++", "cmiabort";
    "vasp" "VASP" Simulates Unknown: "vasp";
    "quantum-espresso" "Quantum ESPRESSO" Simulates Unknown: "quantum-espresso", "quantum espresso", "pw.x";
    "cp2k" "CP2K" Simulates Unknown: "cp2k";
    "qiskit" "Qiskit Aer" Simulates Host: "qiskit", "aersimulator", "to run circuit";
    "warp" "NVIDIA Warp" Simulates Unknown: "warp cuda error", "warp.cu", "omniverse/warp";
    "openacc" "an OpenACC program" Simulates Unknown: "accelerator fatal error", "present table dump";
    "cusolver" "cuSOLVER" Computes Device: "cusolver";
    "htcondor" "HTCondor" Schedules Host: "condor_", "slot1_", "htcondor", "request_memory";
    "fluidx3d" "FluidX3D" Simulates Unknown: "fluidx3d";
    "openfoam" "OpenFOAM" Simulates Unknown: "openfoam", "foam fatal";
    "ansys" "ANSYS" Simulates Unknown: "ansys", "fluent";
    "isaac" "Isaac Sim" Simulates Unknown: "isaacgym", "isaac sim", "isaacsim", "physx";
    "taichi" "Taichi" Simulates Unknown: "taichi";
    "cryosparc" "cryoSPARC" Converts Unknown: "cryosparc";
    "colmap" "COLMAP" Converts Unknown: "colmap feature_", "colmap mapper", "colmap patch_", "/colmap/", "patchmatch::", "siftgpu";
    "opencv" "OpenCV" Converts Unknown: "opencv";
    "ffmpeg" "FFmpeg" Converts Unknown: "ffmpeg", "h264_nvenc", "hevc_nvenc", "[h264", "nvdec", "cuvid";
    "hashcat" "hashcat" Computes Device: "hashcat";
    "whisper.cpp" "whisper.cpp" Converts Unknown: "whisper.cpp", "whisper_init", "whisper-cli";
    "whisper" "Whisper" Converts Unknown: "whisper";
    "guppy" "a basecaller" Converts Unknown: "guppy_basecaller", "dorado";
    "topaz" "Topaz" Converts Unknown: "topaz video", "topaz photo";
    "spark" "Spark" Spark Host: "spark", "pyspark", "yarn", "executorlost", "containers.monitor";
    "dask" "Dask" Dask Host: "distributed.nanny", "distributed.worker", "dask", "nanny -", "killedworker";
    "colab" "Colab" Notebook Host: "colab", "using all available ram";
    "kaggle" "Kaggle" Notebook Host: "kaggle";
    "jupyter" "Jupyter" Notebook Host: "jupyter", "ipykernel", "deadkernelerror", "kernel died", "kernelrestarter", "kernel appears to have died", "papermill";
    "elasticsearch" "Elasticsearch" Stores Host: "elasticsearch", "circuitbreak", "circuit_break", "opensearch";
    "earlyoom" "earlyoom" Watches Host: "earlyoom";
    "nohang" "nohang" Watches Host: "nohang";
    "oomd" "oomd" Watches Host: "oomd kill";
    "redis" "Redis" Stores Host: "redis", "maxmemory";
    "postgresql" "PostgreSQL" Stores Host: "postgres", "psql:", "pq: ";
    "mysql" "MySQL" Stores Host: "mysql", "mariadb", "innodb";
    "mongodb" "MongoDB" Stores Host: "mongod";
    "clickhouse" "ClickHouse" Stores Host: "clickhouse", "memory_limit_exceeded";
    "duckdb" "DuckDB" Stores Host: "duckdb";
    "java" "Java" Java Host: "java heap", "gc overhead", "java.lang", "metaspace", "hs_err_pid", "openjdk";
    "node" "Node.js" Node Host: "javascript heap", "mark-compact", "node::", "npm err";
    "php" "PHP" Php Host: "allowed memory size of", "php fatal";
    "compiler" "a compiler" Builds Host: "cc1plus", "collect2", "nvcc", "cicc", "rustc", "ninja: build", "g++:", "clang++", "virtual memory exhausted", "ld terminated", "gradle";
    "go" "Go" Computes Host: "runtime: out of memory", "goroutine ";
    "r" "R" Computes Host: "cannot allocate vector of";
    "julia" "Julia" Computes Unknown: "outofmemoryerror()", "cuda.jl", ".julia/", "julia>", "effective gpu memory usage";
    "matlab" "MATLAB" Computes Unknown: "matlab", "gpuarray", "parallel:gpu", "maximum array size preference";
    "polars" "Polars" Computes Host: "polars";
    "pandas" "pandas" Computes Host: "pandas";
};

/// Others whose own words are read elsewhere, and which words that nobody reads may name.
const OTHERS: &[(Program, &[&str])] = &[
    (Program::Rmm, &["rmm::", "librmm", "cudf", "cuml"]),
    (
        Program::Ray,
        &["ray.exceptions.outofmemory", "raylet", "rayoutofmemory"],
    ),
];

/// The program that words name, if it is one of these.
pub(super) fn of(text: &str) -> Option<Program> {
    /// Longer lines are data.
    const MOST: usize = 4 << 10;
    static FINDER: LazyLock<Vocabulary<Program>> =
        LazyLock::new(|| Vocabulary::new(OTHERS.iter().chain(WORDS).copied(), true));
    let text = &text[..text.floor_char_boundary(MOST)];
    // The folder in which a shell waits is no program: `root@host:~/deepstream-demo# python3 run.py`.
    let prompt = ["# ", "$ "].iter().filter_map(|end| text.split_once(end));
    let text = prompt
        .filter(|(head, _)| head.contains('@') && head.contains(':') && !head.contains(' '))
        .map(|(_, command)| command)
        .next()
        .unwrap_or(text);
    // A name begins a word: `_memdescAlloc` is no `pmemd`.
    let begins = |at: usize| {
        let before = text[..at].chars().next_back();
        !text[at..].starts_with(char::is_alphabetic) || !before.is_some_and(char::is_alphabetic)
    };
    FINDER.first_where(text, begins)
}
