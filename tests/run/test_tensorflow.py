"""Scripts that use TensorFlow and Keras, and not torch. They need it: `requirements.txt` does not install it."""

import importlib.util

import pytest

GIB = 1 << 30

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason='TensorFlow is not installed: pip install "tensorflow[and-cuda]"',
)

FIT = """
import keras, numpy as np, tensorflow as tf
GROWTH
model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(4096, activation="relu"), keras.layers.Dense(10)])
model.compile("adam", "mse")
model.fit(np.zeros((512, 1024), "float32"), np.zeros((512, 10), "float32"), batch_size=256, verbose=0)
print("memory", tf.config.experimental.get_memory_info("GPU:0"))
"""
GROWTH = "for gpu in tf.config.list_physical_devices('GPU'): tf.config.experimental.set_memory_growth(gpu, True)"


@pytest.mark.parametrize("growth", ["", GROWTH], ids=["in advance", "growing"])
def test_keras_trains_on_the_virtual_gpu(oomph, growth):
    run = oomph(FIT.replace("GROWTH", growth))
    assert run.status == 0, run.err
    peak, framework = run.json["peak"], run.json["framework"]
    assert (framework["name"], framework["preallocates"]) == ("tensorflow", not growth)
    assert f"'peak': {peak['allocated_bytes']}" in run.out
    # Weights, gradients and Adam's two moments.
    assert peak["allocated_bytes"] > 4 * 4 * (1024 * 4096 + 4096 * 10)
    usable = run.json["gpu"]["memory_bytes"]
    if growth:
        assert peak["reserved_bytes"] < 2 * GIB
    else:
        # All that is free but 1.5 GiB.
        assert usable - 3 * GIB < peak["reserved_bytes"] < usable - 1.5 * GIB
    assert any("no GPU has measured TensorFlow" in one["what"] for one in run.json["assumptions"])


def test_tensorflow_on_the_cpu_is_no_run(oomph):
    run = oomph(FIT.replace("GROWTH", "tf.config.set_visible_devices([], 'GPU')"))
    assert run.status == 2 and "fell back to the CPU" in run.err
