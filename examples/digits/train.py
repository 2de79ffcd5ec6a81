"""Train the small digits network of the demo in plain numpy and write it as ONNX.

    python examples/digits/train.py            # about a minute; writes digits.onnx beside this file

The data are scikit-learn's digits (1,797 images of 8 x 8, 16 grey levels; UCI, CC BY 4.0). The
split is fixed: the last 360 images are for testing, and neither training nor calibration sees them.
The network has what the demo wants to show on an FPGA: convolutions, a residual Add, MaxPool, a
Flatten before the Gemm; and a Softmax that stays on the CPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

Array = npt.NDArray[np.float32]
TEST = 360


def data() -> tuple[Array, npt.NDArray[np.int64], Array, npt.NDArray[np.int64]]:
    """Training images [n, 1, 8, 8] float32 0..1 and labels, then the test ones."""
    digits = load_digits()
    x = (digits.images[:, None] / 16.0).astype(np.float32)
    y = digits.target.astype(np.int64)
    return x[:-TEST], y[:-TEST], x[-TEST:], y[-TEST:]


def columns(x: Array) -> Array:
    """im2col for a 3 x 3 kernel with one pixel of padding: [n, c, h, w] -> [n * h * w, c * 9]."""
    n, c, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.ascontiguousarray(windows.transpose(0, 2, 3, 1, 4, 5)).reshape(n * h * w, c * 9)


def uncolumns(cols: Array, shape: tuple[int, ...]) -> Array:
    """Adjoint of :func:`columns`: sums the window gradients back onto the image."""
    n, c, h, w = shape
    windows = cols.reshape(n, h, w, c, 3, 3)
    padded = np.zeros((n, c, h + 2, w + 2), np.float32)
    for ky in range(3):
        for kx in range(3):
            padded[:, :, ky : ky + h, kx : kx + w] += windows[..., ky, kx].transpose(0, 3, 1, 2)
    return padded[:, :, 1:-1, 1:-1]


def conv(x: Array, w: Array, b: Array) -> tuple[Array, Array]:
    n, _, h, wd = x.shape
    cols = columns(x)
    y = cols @ w.reshape(len(w), -1).T + b
    return y.reshape(n, h, wd, len(w)).transpose(0, 3, 1, 2), cols


def conv_gradient(
    dy: Array, cols: Array, w: Array, shape: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    flat = dy.transpose(0, 2, 3, 1).reshape(-1, len(w))
    dx = uncolumns(flat @ w.reshape(len(w), -1), shape)
    return dx, (flat.T @ cols).reshape(w.shape), flat.sum(0)


def forward_backward(
    p: dict[str, Array], x: Array, labels: npt.NDArray[np.int64]
) -> tuple[float, dict[str, Array]]:
    """Mean cross-entropy of a batch and its gradient by every parameter."""
    n = len(x)
    a1, c1 = conv(x, p["w1"], p["b1"])
    r1 = np.maximum(a1, 0)
    a2, c2 = conv(r1, p["w2"], p["b2"])
    r2 = np.maximum(a2 + r1, 0)
    tiles = r2.reshape(n, 16, 4, 2, 4, 2)
    pooled = tiles.max((3, 5))
    a3, c3 = conv(pooled, p["w3"], p["b3"])
    r3 = np.maximum(a3, 0)
    flat = r3.reshape(n, -1)
    logits = flat @ p["w4"].T + p["b4"]
    logits -= logits.max(1, keepdims=True)
    prob = np.exp(logits)
    prob /= prob.sum(1, keepdims=True)
    loss = float(-np.log(prob[np.arange(n), labels] + 1e-12).mean())

    d = prob
    d[np.arange(n), labels] -= 1
    d /= n
    g = {"w4": d.T @ flat, "b4": d.sum(0)}
    d3 = (d @ p["w4"]).reshape(r3.shape) * (r3 > 0)
    dp, g["w3"], g["b3"] = conv_gradient(d3, c3, p["w3"], pooled.shape)
    won = tiles == pooled[:, :, :, None, :, None]
    share = won / won.sum((3, 5), keepdims=True)
    d2 = (share * dp[:, :, :, None, :, None]).reshape(r2.shape).astype(np.float32) * (r2 > 0)
    d1, g["w2"], g["b2"] = conv_gradient(d2, c2, p["w2"], r1.shape)
    d1 = (d1 + d2) * (r1 > 0)
    _, g["w1"], g["b1"] = conv_gradient(d1, c1, p["w1"], x.shape)
    return loss, g


def train(seed: int = 1, epochs: int = 20, batch: int = 32) -> dict[str, Array]:
    """Adam with random one-pixel shifts of the images; the same seed gives the same network."""
    rng = np.random.default_rng(seed)
    shapes = {"w1": (16, 1, 3, 3), "w2": (16, 16, 3, 3), "w3": (32, 16, 3, 3), "w4": (10, 512)}
    p: dict[str, Array] = {}
    for name, shape in shapes.items():
        scale = np.sqrt(2.0 / np.prod(shape[1:]))
        p[name] = rng.normal(0, scale, shape).astype(np.float32)
        p["b" + name[1]] = np.zeros(shape[0], np.float32)
    x, y, _, _ = data()
    m = {k: np.zeros_like(v) for k, v in p.items()}
    v = {k: np.zeros_like(w) for k, w in p.items()}
    step = 0
    for epoch in range(epochs):
        order = rng.permutation(len(x))
        losses = []
        rate = 2e-3 * (1 - epoch / epochs)
        for k in range(0, len(x), batch):
            part = order[k : k + batch]
            shift = rng.integers(-1, 2, 2)
            images = np.roll(x[part], tuple(shift), (2, 3)) if rng.random() < 0.3 else x[part]
            loss, g = forward_backward(p, images, y[part])
            losses.append(loss)
            step += 1
            for name, gradient in g.items():
                m[name] += 0.1 * (gradient - m[name])
                v[name] += 0.001 * (gradient**2 - v[name])
                unbiased = np.sqrt(v[name] / (1 - 0.999**step)) + 1e-8
                p[name] -= (rate * m[name] / (1 - 0.9**step) / unbiased).astype(np.float32)
        print(f"epoch {epoch + 1:2}: mean loss {np.mean(losses):.4f}")
    return p


def to_onnx(p: dict[str, Array]) -> onnx.ModelProto:
    """The trained parameters as an opset-17 model: image [n, 1, 8, 8] -> probabilities [n, 10]."""
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["a1"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["a1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["a2"], "conv2", pads=[1] * 4),
        helper.make_node("Add", ["a2", "r1"], ["s2"], "residual"),
        helper.make_node("Relu", ["s2"], ["r2"], "relu2"),
        helper.make_node("MaxPool", ["r2"], ["p2"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p2", "w3", "b3"], ["a3"], "conv3", pads=[1] * 4),
        helper.make_node("Relu", ["a3"], ["r3"], "relu3"),
        helper.make_node("Flatten", ["r3"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "w4", "b4"], ["logits"], "dense", transB=1),
        helper.make_node("Softmax", ["logits"], ["probability"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(value, name) for name, value in sorted(p.items())],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="trivet examples"
    )
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("digits.onnx"))
    out: Path = parser.parse_args().out
    model = to_onnx(train())
    onnx.save(model, out)
    import onnxruntime as ort

    _, _, x, y = data()
    answer = ort.InferenceSession(out, providers=["CPUExecutionProvider"]).run(None, {"image": x})
    right = (np.asarray(answer[0]).argmax(1) == y).mean()
    print(f"{out.name}: {right:.3f} of {len(y)} test images right, {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
