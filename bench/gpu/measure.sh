set -u
cd bench/gpu
nvidia-smi --query-gpu=name,memory.total,memory.used,driver_version --format=csv
python3 calibrate.py $OUT/calibrate.json; echo calibrated $SECONDS
python3 cudnn_plans.py real $OUT/plans_real.jsonl; echo real $SECONDS
python3 cudnn_plans.py h200_cudnn.json $OUT/plans_json.jsonl; echo json $SECONDS
cd ../accuracy
python3 cases_extra.py list | xargs -P 6 -I{} sh -c "python3 cases_extra.py {} >> $OUT/extra.jsonl 2>>$OUT/extra.err"; echo extra $SECONDS
mkdir -p $OUT/snap
for n in resnet18_b64 vgg16_b64 unet_b8_256 mobilenet_v3_b128 infer_resnet152_b256_half; do python3 cases.py $n --snapshot $OUT/snap/$n.pickle >/dev/null; xz -T8 -1 $OUT/snap/$n.pickle; done
for n in unet_b8_256_bench vgg16_b64_bench tv_retinanet_b2; do python3 -c "
import sys,json,cases,cases_more
cases.SPECS.update(cases_more.SPECS); print(json.dumps(cases.run('$n',snapshot='$OUT/snap/$n.pickle')))"; xz -T8 -1 $OUT/snap/$n.pickle; done
for n in speech_ctc_b32 gru_bi_b96 diffusion_unet_b16_fp16 densenet121_b32; do python3 cases_extra.py $n $OUT/snap/$n.pickle > /dev/null; xz -T8 -1 $OUT/snap/$n.pickle; done
echo all $SECONDS; ls -la $OUT $OUT/snap; tail -3 $OUT/extra.err
