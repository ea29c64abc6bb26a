set -u
cd bench/gpu
nvidia-smi --query-gpu=name,memory.total,memory.used,driver_version --format=csv
python3 calibrate.py $OUT/calibrate.json; echo calibrated $SECONDS
python3 cudnn_plans.py real $OUT/plans_real.jsonl; echo real $SECONDS
python3 cudnn_plans.py results/h200_cudnn.json $OUT/plans_json.jsonl; echo json $SECONDS
cd ../accuracy/jobs
for f in vision language boxes recurrent speech plain_modules; do
  python3 $f.py list | xargs -P 6 -I{} sh -c "python3 $f.py {} >> $OUT/jobs.jsonl 2>>$OUT/jobs.err"
done
echo jobs $SECONDS
mkdir -p $OUT/snap
snapshot() { f=$1; shift; for n in "$@"; do python3 $f.py $n --snapshot $OUT/snap/$n.pickle >/dev/null; xz -T8 -1 $OUT/snap/$n.pickle; done; }
snapshot vision resnet18_b64 vgg16_b64 unet_b8_256 mobilenet_v3_b128 infer_resnet152_b256_half unet_b8_256_bench vgg16_b64_bench diffusion_unet_b16_fp16 densenet121_b32
snapshot boxes tv_retinanet_b2
snapshot speech speech_ctc_b32
snapshot recurrent gru_bi_b96
echo all $SECONDS; ls -la $OUT $OUT/snap; tail -3 $OUT/jobs.err
