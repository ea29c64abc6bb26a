//! How a job of PyTorch's needs less in the words of the program that runs it.

use oomph_trace::text::Framework;

use crate::messages::ways::Change::{
    self, Attention, Batch, Bits, Halves, Inputs, OptimizerBits, Other, Recomputing, Trained,
};

/// The ways to predict with Ultralytics' package.
pub(super) const PREDICT: &[(Change, &str)] = &[
    (
        Other,
        "results one at a time where many pictures or a film are predicted (stream=True)",
    ),
    (Inputs, "smaller images (imgsz=480)"),
    (Halves, "16 bits (half=True)"),
    (Other, "a smaller model (n or s in place of l or x)"),
];

/// The ways of a program, the first of them first.
pub(super) const fn ways_of(framework: Framework) -> &'static [(Change, &'static str)] {
    match framework {
        Framework::Trainer => &[
            (
                Batch,
                "a smaller batch (per_device_train_batch_size=1, gradient_accumulation_steps raised in turn)",
            ),
            (
                Recomputing,
                "activation checkpointing (gradient_checkpointing=True)",
            ),
            (Halves, "16 bits (bf16=True)"),
            (
                Inputs,
                "shorter sequences (max_length of the tokenizer, or of SFTConfig)",
            ),
            (
                OptimizerBits,
                "the optimizer's state in 8 bits (optim=\"adamw_bnb_8bit\")",
            ),
            (Trained, "fewer parameters that are trained (LoRA)"),
        ],
        Framework::LlamaFactory => &[
            (
                Batch,
                "a smaller batch (per_device_train_batch_size: 1, gradient_accumulation_steps raised in turn)",
            ),
            (Inputs, "shorter sequences (cutoff_len: 1024)"),
            (
                Trained,
                "fewer parameters that are trained (finetuning_type: lora)",
            ),
            (Bits, "base weights in 4 bits (quantization_bit: 4)"),
            (
                Other,
                "DeepSpeed's ZeRO-3 (deepspeed: a file of examples/deepspeed)",
            ),
        ],
        Framework::Axolotl => &[
            (
                Batch,
                "a smaller batch (micro_batch_size: 1, gradient_accumulation_steps raised in turn)",
            ),
            (
                Recomputing,
                "activation checkpointing (gradient_checkpointing: true)",
            ),
            (Inputs, "shorter sequences (sequence_len: 2048)"),
            (
                Bits,
                "base weights in 4 bits (adapter: qlora, load_in_4bit: true)",
            ),
            (
                OptimizerBits,
                "the optimizer's state in 8 bits (optimizer: adamw_bnb_8bit)",
            ),
        ],
        Framework::Kohya => &[
            (Batch, "a smaller batch (--train_batch_size 1)"),
            (
                Recomputing,
                "activation checkpointing (--gradient_checkpointing)",
            ),
            (
                Other,
                "pictures encoded beforehand (--cache_latents), so that no VAE is on the GPU while it trains; of SDXL prompts as well \
                 (--cache_text_encoder_outputs --network_train_unet_only)",
            ),
            (
                OptimizerBits,
                "the optimizer's state in 8 bits (--optimizer_type AdamW8bit)",
            ),
            (Inputs, "smaller pictures (--resolution 512)"),
        ],
        Framework::DiffusersScripts => &[
            (
                Batch,
                "a smaller batch (--train_batch_size=1, --gradient_accumulation_steps raised in turn)",
            ),
            (
                Recomputing,
                "activation checkpointing (--gradient_checkpointing)",
            ),
            (
                OptimizerBits,
                "the optimizer's state in 8 bits (--use_8bit_adam)",
            ),
            (Halves, "16 bits (--mixed_precision=fp16)"),
            (Inputs, "smaller pictures (--resolution=512)"),
            (
                Attention,
                "attention in blocks (--enable_xformers_memory_efficient_attention)",
            ),
        ],
        Framework::Torchtune => &[
            (
                Batch,
                "a smaller batch (batch_size=1, gradient_accumulation_steps raised in turn)",
            ),
            (
                Recomputing,
                "activation checkpointing (enable_activation_checkpointing=True), and its results on the CPU \
                 (enable_activation_offloading=True)",
            ),
            (Inputs, "shorter sequences (tokenizer.max_seq_len=2048)"),
            (
                OptimizerBits,
                "the optimizer's state in 8 bits (optimizer._component_=bitsandbytes.optim.PagedAdamW8bit)",
            ),
        ],
        Framework::Megatron => &[
            (Batch, "a smaller batch (--micro-batch-size 1)"),
            (
                Recomputing,
                "activations computed again (--recompute-granularity full --recompute-method uniform --recompute-num-layers 1)",
            ),
            (
                Other,
                "the model over more GPUs (--tensor-model-parallel-size, --pipeline-model-parallel-size)",
            ),
            (
                Other,
                "the optimizer's state sharded (--use-distributed-optimizer)",
            ),
        ],
        Framework::Fairseq => &[
            (
                Batch,
                "a smaller batch (--max-tokens 2048, --update-freq raised in turn)",
            ),
            (Halves, "16 bits (--fp16, --memory-efficient-fp16)"),
            (
                Recomputing,
                "activation checkpointing (--checkpoint-activations)",
            ),
            (
                Inputs,
                "shorter samples (--max-source-positions, --max-target-positions)",
            ),
        ],
        Framework::NnUnet => &[
            (
                Other,
                "a plan for less memory (nnUNetv2_plan_experiment -gpu_memory_target 6 -overwrite_plans_name NAME, then train with -p NAME)",
            ),
            (Inputs, "a smaller patch_size in its plans file"),
            (Batch, "a smaller batch_size there (two at the least)"),
        ],
        Framework::OpenMmLab => &[
            (
                Batch,
                "a smaller batch (train_dataloader.batch_size; samples_per_gpu before version 3)",
            ),
            (Inputs, "smaller images (scale of Resize)"),
            (Halves, "16 bits (--amp)"),
            (
                Recomputing,
                "activation checkpointing (with_cp=True of the backbone)",
            ),
            (
                Other,
                "boxes assigned on the CPU where images have very many (gpu_assign_thr of the assigner)",
            ),
        ],
        Framework::Detectron2 => &[
            (
                Batch,
                "a smaller batch (SOLVER.IMS_PER_BATCH 2, SOLVER.BASE_LR lowered in turn)",
            ),
            (
                Inputs,
                "smaller images (INPUT.MIN_SIZE_TRAIN, INPUT.MAX_SIZE_TRAIN)",
            ),
            (Halves, "16 bits (SOLVER.AMP.ENABLED True)"),
            (
                Other,
                "fewer proposals (MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE 128)",
            ),
        ],
        Framework::Yolo => &[
            (Batch, "a smaller batch (--batch-size, half as many as now)"),
            (
                Inputs,
                "smaller images (--img-size 416), and no --multi-scale, which makes some batches larger than others",
            ),
            (Other, "a smaller model (--cfg, --weights)"),
        ],
        Framework::Ultralytics => &[
            (
                Batch,
                "a smaller batch (batch=8; batch=-1 chooses one by the memory)",
            ),
            (Inputs, "smaller images (imgsz=480), and no multi_scale"),
            (Other, "a smaller model (n or s in place of l or x)"),
        ],
        Framework::GaussianSplatting => &[
            (
                Other,
                "fewer points: a higher --densify_grad_threshold (the default is 0.0002), an earlier --densify_until_iter",
            ),
            (Other, "the images in the host's memory (--data_device cpu)"),
            (Inputs, "smaller images (--resolution 4)"),
            (Other, "no peaks of tests in between (--test_iterations -1)"),
        ],
        Framework::Nerfstudio => &[
            (
                Batch,
                "fewer rays at once (--pipeline.datamanager.train-num-rays-per-batch 2048)",
            ),
            (
                Other,
                "of splatfacto: the images on the CPU (--pipeline.datamanager.cache-images cpu)",
            ),
            (
                Inputs,
                "smaller images (nerfstudio-data --downscale-factor 4)",
            ),
        ],
        Framework::Fastai => &[
            (
                Batch,
                "a smaller batch (bs of the DataLoaders, with the callback GradientAccumulation)",
            ),
            (Halves, "16 bits (learn.to_fp16())"),
            (Inputs, "smaller images (Resize, size=…)"),
            (Other, "a smaller model"),
        ],
        Framework::Lightning => &[
            (
                Batch,
                "a smaller batch_size of the DataLoader (accumulate_grad_batches of the Trainer raised in turn)",
            ),
            (
                Halves,
                "16 bits (Trainer(precision=\"bf16-mixed\"); precision=16 before 2.0)",
            ),
            (Inputs, "a smaller image or shorter sequence"),
            (
                Other,
                "the model sharded over the GPUs (strategy=\"fsdp\" or \"deepspeed_stage_3\")",
            ),
        ],
        Framework::WhisperX => &[
            (Batch, "a smaller batch (--batch_size 4)"),
            (Other, "a smaller model (--model medium or small)"),
            (Bits, "weights in 8 bits (--compute_type int8)"),
        ],
        Framework::RealEsrgan => &[
            (Other, "tiles (--tile 400, in the scripts -t 400)"),
            (Halves, "16 bits (without --fp32)"),
            (Inputs, "a smaller picture, or a smaller factor (-s 2)"),
        ],
        Framework::SegmentAnything => &[
            (
                Other,
                "fewer points at once (SamAutomaticMaskGenerator(model, points_per_batch=16))",
            ),
            (Inputs, "a smaller picture"),
            (Other, "a smaller model (vit_b)"),
        ],
        Framework::Diffusers => &[
            (
                Other,
                "pipe.enable_model_cpu_offload() in place of .to(\"cuda\"): one part of the pipeline on the GPU at a time \
                 (enable_sequential_cpu_offload(): one layer, slower)",
            ),
            (Halves, "weights in 16 bits (torch_dtype=torch.float16)"),
            (
                Inputs,
                "a smaller picture, fewer pictures or frames at once",
            ),
            (Bits, "weights in 8 or 4 bits (quantization_config)"),
        ],
        _ => &[],
    }
}
