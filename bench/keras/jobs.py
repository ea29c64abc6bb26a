"""Five Keras jobs, written before TensorFlow had run on the virtual GPU: `python jobs.py NAME`.

Each prints what TensorFlow says of its own memory at the end.
"""

import os
import sys

import keras
import numpy as np
import tensorflow as tf


def mlp_fit():
    """`model.fit` on arrays."""
    model = keras.Sequential(
        [
            keras.Input((784,)),
            *[keras.layers.Dense(4096, activation="relu") for _ in range(4)],
            keras.layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(
        np.zeros((4096, 784), "float32"),
        np.zeros(4096, "int64"),
        batch_size=512,
        epochs=1,
        verbose=0,
    )


def convnet_function():
    """A loop of one's own around a `tf.function`."""
    model = keras.Sequential([keras.Input((64, 64, 3))])
    for width in (64, 128, 256):
        model.add(keras.layers.Conv2D(width, 3, padding="same", activation="relu"))
        model.add(keras.layers.MaxPooling2D())
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(100))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = losses(labels, model(images, training=True))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        )
        return loss

    for _ in range(3):
        step(tf.zeros((128, 64, 64, 3)), tf.zeros((128,), tf.int64))


def attention_mixed_precision():
    """Mixed precision, attention and embeddings."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    tokens = keras.Input((256,), dtype="int32")
    x = keras.layers.Embedding(20000, 512)(tokens)
    for _ in range(4):
        x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(8, 64)(x, x))
        x = keras.layers.LayerNormalization()(
            x + keras.layers.Dense(512)(keras.layers.Dense(2048, activation="gelu")(x))
        )
    out = keras.layers.Dense(20000, dtype="float32")(x)
    model = keras.Model(tokens, out)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(
        np.zeros((64, 256), "int32"),
        np.zeros((64, 256), "int64"),
        batch_size=16,
        epochs=1,
        verbose=0,
    )


def growing_dataset():
    """Memory growth, and a `tf.data` pipeline."""
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    model = keras.Sequential(
        [keras.Input((1024,)), keras.layers.Dense(8192, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("rmsprop", "mse")
    data = tf.data.Dataset.from_tensor_slices(
        (np.zeros((2048, 1024), "float32"), np.zeros((2048, 1), "float32"))
    )
    model.fit(data.batch(256), epochs=1, verbose=0)


def largest_batch_by_memory_info():
    """A script that doubles its batch as long as `get_memory_info` says that there is room."""
    model = keras.Sequential(
        [
            keras.Input((4096,)),
            keras.layers.Dense(4096, activation="relu"),
            keras.layers.Dense(4096),
        ]
    )
    batch, room = 1024, 4 << 30
    while True:
        tf.config.experimental.reset_memory_stats("GPU:0")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.zeros((batch, 4096))))
        tape.gradient(loss, model.trainable_variables)
        if tf.config.experimental.get_memory_info("GPU:0")["peak"] > room or batch >= 1 << 18:
            break
        batch *= 2
    print("batch", batch)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    globals()[sys.argv[1]]()
    print("memory", tf.config.experimental.get_memory_info("GPU:0"))
