# `oomph run` on a real GPU and on the virtual one beside it, and allocator histories of some jobs:
# OUT=directory bash bench/gpu/real_run.sh (PYTHONPATH must hold the oomph package).
set -u
python3 -m oomph run --steps 3 --out $OUT/real --json $OUT/real.json examples/train_gpt.py 2>&1 | tail -40
python3 -m oomph run --steps 3 --out $OUT/realr --json $OUT/real_resnet.json examples/train_resnet.py 2>&1 | tail -30
python3 -m oomph run --gpu h200 --steps 3 --out $OUT/virt --json $OUT/virtual.json examples/train_gpt.py 2>&1 | tail -30
python3 -m oomph run --gpu h200 --steps 3 --out $OUT/virtr --json $OUT/virtual_resnet.json examples/train_resnet.py 2>&1 | tail -30
cd bench/accuracy/jobs
snap=$(mktemp -d)
python3 vision.py resnet50_b32_fp16 --snapshot $snap/resnet50_b32_fp16.pickle >/dev/null
python3 plain_modules.py encoder_fp16_b32 --snapshot $snap/encoder_fp16_b32.pickle >/dev/null
python3 boxes.py tv_retinanet_b2 --snapshot $snap/tv_retinanet_b2.pickle
tar cJf $OUT/snap.tar.xz -C $snap .
rm -rf $OUT/real/* $OUT/virt/* $OUT/realr/* $OUT/virtr/*
