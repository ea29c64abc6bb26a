//! Programs that train and infer on others' frameworks, by their files, commands and settings anywhere in a text: each has its own
//! names for what makes a job smaller.

use std::sync::LazyLock;

use super::words::Vocabulary;

/// A program on PyTorch, or one on CuPy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Framework {
    /// LLaMA-Factory.
    LlamaFactory,
    /// Axolotl.
    Axolotl,
    /// kohya's sd-scripts.
    Kohya,
    /// The scripts of diffusers that train.
    DiffusersScripts,
    /// torchtune.
    Torchtune,
    /// Megatron-LM.
    Megatron,
    /// fairseq.
    Fairseq,
    /// nnU-Net.
    NnUnet,
    /// MMDetection and others of OpenMMLab.
    OpenMmLab,
    /// Detectron2.
    Detectron2,
    /// The repositories of YOLO with scripts of their own, up to the seventh.
    Yolo,
    /// The package of Ultralytics.
    Ultralytics,
    /// Gaussian splatting.
    GaussianSplatting,
    /// Nerfstudio.
    Nerfstudio,
    /// fastai.
    Fastai,
    /// Chainer.
    Chainer,
    /// PyTorch Lightning.
    Lightning,
    /// transformers' Trainer and TRL's.
    Trainer,
    /// WhisperX.
    WhisperX,
    /// Real-ESRGAN, GFPGAN and what they rest on.
    RealEsrgan,
    /// Segment Anything.
    SegmentAnything,
    /// Pipelines of diffusers.
    Diffusers,
}

impl Framework {
    /// Whether it only infers.
    pub fn infers(self) -> bool {
        matches!(
            self,
            Self::WhisperX | Self::RealEsrgan | Self::SegmentAnything | Self::Diffusers
        )
    }
}

/// In any case of letters, the more special ones first.
const WORDS: &[(Framework, &[&str])] = &[
    (
        Framework::LlamaFactory,
        &["llamafactory", "llama-factory", "llama_factory"],
    ),
    (Framework::Axolotl, &["axolotl"]),
    (
        Framework::Kohya,
        &["sd-scripts", "kohya", "train_network.py", "sdxl_train"],
    ),
    (
        Framework::DiffusersScripts,
        &[
            "train_text_to_image",
            "train_dreambooth",
            "train_controlnet",
            "textual_inversion.py",
        ],
    ),
    (Framework::Torchtune, &["torchtune"]),
    (Framework::Megatron, &["megatron"]),
    (Framework::Fairseq, &["fairseq"]),
    (Framework::NnUnet, &["nnunet"]),
    (
        Framework::OpenMmLab,
        &["mmdet", "mmseg", "mmengine", "mmcv/runner"],
    ),
    (Framework::Detectron2, &["detectron2"]),
    (
        Framework::Yolo,
        &["/yolov3/", "/yolov5/", "/yolov7/", "yolov5/", "yolov7/"],
    ),
    (
        Framework::Ultralytics,
        &["ultralytics", "yolo train", "yolo detect"],
    ),
    (
        Framework::GaussianSplatting,
        &[
            "gaussian_splat",
            "gaussian-splat",
            "diff_gaussian_rast",
            "gaussian_model",
        ],
    ),
    (Framework::Nerfstudio, &["nerfstudio", "ns-train"]),
    (Framework::Fastai, &["fastai"]),
    (Framework::Chainer, &["chainer"]),
    (
        Framework::Lightning,
        &[
            "pytorch_lightning",
            "pytorch-lightning",
            "lightning/pytorch",
            "lightning.pytorch",
        ],
    ),
    (
        Framework::Trainer,
        &[
            "transformers/trainer",
            "transformers\\trainer",
            "trainingarguments",
            "per_device_train_batch_size",
            "sfttrainer",
            "sftconfig",
            "dpotrainer",
            "trl/trainer",
        ],
    ),
    (Framework::WhisperX, &["whisperx"]),
    (
        Framework::RealEsrgan,
        &[
            "realesrgan",
            "real-esrgan",
            "real_esrgan",
            "basicsr",
            "gfpgan",
        ],
    ),
    (
        Framework::SegmentAnything,
        &[
            "segment_anything",
            "segment-anything",
            "sam2/",
            "samautomaticmask",
        ],
    ),
    (
        Framework::Diffusers,
        &[
            "diffusers/",
            "diffusers\\",
            "diffusionpipeline",
            "fluxpipeline",
        ],
    ),
];

impl Framework {
    /// The one that a line names, or the more special one that a line before it named.
    pub(super) fn read(line: &str, found: &mut Option<Self>) {
        static FINDER: LazyLock<Vocabulary<usize>> = LazyLock::new(|| {
            let table = WORDS.iter().enumerate();
            Vocabulary::new(table.map(|(place, (_, words))| (place, *words)), true)
        });
        let Some(place) = FINDER.first(line) else {
            return;
        };
        let before = found.and_then(|known| WORDS.iter().position(|(named, _)| *named == known));
        if before.is_none_or(|before| place < before) {
            *found = WORDS.get(place).map(|(named, _)| *named);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Framework;

    #[test]
    fn the_more_special_of_two_counts() {
        let shown = |text: &str| {
            let mut found = None;
            for line in text.lines() {
                Framework::read(line, &mut found);
            }
            found
        };
        assert_eq!(
            shown(
                "transformers/trainer.py\nsrc/llamafactory/train/tuner.py\ntransformers/trainer.py"
            ),
            Some(Framework::LlamaFactory)
        );
        assert_eq!(shown("self.trainer.fit(model)"), None);
    }
}
