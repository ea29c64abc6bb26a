# Public scripts and PyTorch's memory tests on a real GPU, to compare with the virtual one:
# OUT=directory CHECKOUTS=… PYTORCH=… PACKAGES=… bash bench/gpu/real_scripts.sh (PACKAGES holds oomph).
set -u
oomph=$(dirname "$(command -v python3)")/oomph
python3 bench/scripts/run.py --gpu real --checkouts "$CHECKOUTS" --packages "$PACKAGES" --oomph "$oomph" \
    --module --timeout 60 --results "$OUT/scripts.jsonl" \
    mnist imagenet mnist_rnn word_lstm vae dcgan super_resolution siamese gat nanogpt_eager wgan_gp \
    cyclegan pyg_gcn lightning_transformer timm_train
timeout 200 python3 bench/pytorch_tests/run.py --real --source "$PYTORCH" --packages "$PACKAGES" \
    --oomph "$oomph" --timeout 90 --results "$OUT/tests.json" | cut -c1-300
