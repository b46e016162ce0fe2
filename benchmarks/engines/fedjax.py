"""FedJAX on JAX's processor backend, which uses every core.

Its last release asks for `jax.tree_map`, which newer versions of JAX call `jax.tree.map`; the name is put back here.
Evaluation is the global model on every client's test images.
"""

from __future__ import annotations

import haiku
import jax
import numpy as np

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree.map  # before fedjax is imported

import fedjax
from fedjax.algorithms import fed_avg

from benchmarks import workloads
from benchmarks.protocol import Clock, Outcome, Unavailable
from benchmarks.workloads import Workload


def run(workload: Workload, clock: Clock) -> Outcome:
    model, data = build(workload), workloads.data(workload)
    batches = fedjax.ShuffleRepeatBatchHParams(workload.batch, num_epochs=1)
    clients = [(str(i).encode(), dataset(own.x, own.y)) for i, own in enumerate(data)]
    tests = [(str(i).encode(), dataset(own.test_x, own.test_y)) for i, own in enumerate(data)]
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model), fedjax.optimizers.sgd(workload.lr), fedjax.optimizers.sgd(1.0), batches
    )
    evaluator = fedjax.ModelEvaluator(model)
    key = jax.random.PRNGKey(workloads.SEED)
    state = algorithm.init(model.init(key))

    def scores() -> list[dict]:
        parts = [(name, own.padded_batch(batch_size=workload.test)) for name, own in tests]
        return [dict(score) for _, score in evaluator.evaluate_global_params(state.params, parts)]

    clock.ready()
    for _ in range(clock.rounds):
        key, *keys = jax.random.split(key, len(clients) + 1)
        state, _ = algorithm.apply(state, [(*client, own) for client, own in zip(clients, keys, strict=True)])
        jax.block_until_ready(state.params)
        if workload.evaluate:
            jax.block_until_ready(scores())
        clock.lap()
    loss = float(np.mean([score["loss"] for score in scores()]))
    steps = sum(1 for _, own in clients for _ in own.shuffle_repeat_batch(batches))
    return Outcome(loss, steps)


def build(workload: Workload) -> fedjax.Model:
    hidden = workload.hidden or {"mlp": (100,), "cnn": (512,)}.get(workload.model)
    if workload.model not in ("mlp", "cnn") or hidden is None:
        raise Unavailable("FedJAX's models keep no state, which BatchNorm needs")

    def forward(batch):
        x = batch["x"]
        if workload.model == "cnn":
            for channels in (32, 64):
                x = jax.nn.relu(haiku.Conv2D(channels, 5, padding="VALID")(x))
                x = haiku.max_pool(x, 2, 2, "VALID")
        x = haiku.Flatten()(x)
        return haiku.nets.MLP((*hidden, workload.classes))(x)

    channels, height, width = workload.shape
    sample = {"x": np.zeros((1, height, width, channels), np.float32), "y": np.zeros(1, np.int64)}
    return fedjax.create_model_from_haiku(
        haiku.transform(forward),
        sample,
        lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
        {"loss": fedjax.metrics.CrossEntropyLoss(), "accuracy": fedjax.metrics.Accuracy()},
    )


def dataset(x: np.ndarray, y: np.ndarray) -> fedjax.ClientDataset:
    """Images as JAX lays them out, channels last."""
    return fedjax.ClientDataset({"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "y": y})
