"""FedLAG on Flower: what its server does is what the simulator does, whatever the nodes answer."""

import copy
import json
import re

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from torch import nn

from fedlag import layers
from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg
from fedlag.federation.sequential import Sequential
from fedlag.federation.work import ClientWork
from fedlag.flow import Batch
from fedlag.flower import FedLAG, keep_personal
from fedlag.flower.anatomy import read_off
from fedlag.flower.instructions import RECEIPT, TRAINED, UPDATE, to_tensors
from fedlag.flower.store import Store
from fedlag.lag import LAG
from fedlag.net import Model, Net
from fedlag.nets import NETS, build
from fedlag.optim import SGD
from fedlag.round import begin
from fedlag.run import Sampling, rounds
from tests.flower.nodes import Nodes

SEED, LR = 3, 0.1
EVERYONE, HALF = Sampling(), Sampling(fraction=0.5)


def network():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU())
    return Net(body, nn.Linear(5, 3))


def source(client, part):
    """Sites of odd number call the classes by other names."""
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(20 + 4 * client, 6, generator=generator)
    return Batch(x, (x[:, :3].argmax(1) + client % 2) % 3)


def train(message, context):
    """An ordinary PyTorch loop, over the batches the simulator draws."""
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"])
    round = message.content["config"]["server-round"] - 1
    work = ClientWork(source, SEED, round, context.node_config["partition-id"])
    net.train()
    for batch in work.stream("train").batches(8, 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(batch.x), batch.y).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(work.examples("train").y)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


def evaluate(message, context):
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    net.eval()
    x, y = source(context.node_config["partition-id"], "test")
    metrics = MetricRecord({"accuracy": float((net(x).argmax(1) == y).float().mean()), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def with_mods(*training, always=()):
    """The app with mods around training, and `always` around evaluation too."""
    app = ClientApp()
    app.train(mods=[*always, *training])(train)
    app.evaluate(mods=[*always] or [mod for mod in training if mod is keep_personal])(evaluate)
    return app


app = with_mods(keep_personal)


def initial():
    return ArrayRecord(network().state_dict())


CONFIG = {"lr": LR}


def run(folder, num_rounds=5, count=4, answer=lambda sent, reply: reply, nodes=None, **arguments):
    """A run, its strategy and the nodes that took part."""
    nodes = nodes or Nodes(app, folder, count, answer)
    strategy = FedLAG(**{"k": 1, "warmup": 2, "min_train_nodes": 1, "min_available_nodes": 1} | arguments)
    result = strategy.start(nodes, initial(), num_rounds, train_config=ConfigRecord(CONFIG))
    return result, strategy, nodes


def trained(nodes, kind="train"):
    """Messages of training with the replies to them."""
    return [message for message in nodes if message.metadata.message_type == kind]


def same(one, other):
    one, other = to_tensors(one), to_tensors(other)
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def disk(folder, node):
    """What the node keeps of its only run."""
    (own,) = (folder / f"disk-{node}").glob("*/site-*")
    return Store(own)


def simulated(lag, num_rounds, count=4, sampling=EVERYONE):
    model = Model(network())
    task, server = begin(FedAvg(personal=lag), model, Training(batch=8, optimizer=SGD(lr=LR)), count, SEED)
    federation = Sequential(task, source, SEED)
    going = rounds(task, server, federation, sampling, SEED)
    for _ in range(num_rounds):
        server = next(going).server
    return server, federation.clients()


@pytest.mark.parametrize("mode", ["dynamic", "frozen"])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_parameters_are_those_of_the_simulator_bit_for_bit(tmp_path, mode, k):
    result, strategy, nodes = run(tmp_path, 6, k=k, mode=mode)
    server, clients = simulated(LAG(k=k, warmup=2, mode=mode), 6)
    ours = to_tensors(result.arrays)
    assert bool(strategy.personal) == (k > 0)
    assert strategy.personal == LAG(k=k, warmup=2, mode=mode).personal(server.rule)
    for name, value in server.params.items():
        assert torch.equal(ours[name], value), name
    for node in nodes.ids:
        kept = disk(tmp_path, node).load(before=6).params
        for name in strategy.personal:
            assert torch.equal(kept[name], clients[nodes.partition(node)].params[name])


class Drawn(Nodes):
    """Only those nodes are there whom the simulator draws."""

    def get_node_ids(self):
        self.ids = [10 * (number + 1) for number in range(6)]
        drawn = HALF.cohort(len(self.ids), SEED, len(self.sent) // 3)
        return [node for node in self.ids if self.partition(node) in drawn]


@pytest.mark.parametrize("mode", ["dynamic", "frozen"])
def test_also_when_half_the_nodes_are_away_and_layers_come_and_go(tmp_path, mode):
    nodes = Drawn(app, tmp_path, count=6)
    result, strategy, _ = run(tmp_path, 14, nodes=nodes, mode=mode, fraction_evaluate=0.0, min_train_nodes=3)
    server, _ = simulated(LAG(k=1, warmup=2, mode=mode), 14, 6, HALF)
    assert not strategy.dropped
    if mode == "dynamic":
        assert server.since.keys() > strategy.personal  # some that had been personal no longer are
    for name, value in server.params.items():
        assert torch.equal(to_tensors(result.arrays)[name], value), name


def test_of_counters_the_largest_is_taken(tmp_path):
    result, _, _ = run(tmp_path, 3)
    most = max(-(-len(source(client, "train").y) // 8) for client in range(4))
    assert to_tensors(result.arrays)["body.1.num_batches_tracked"] == 3 * most


def test_without_layers_to_keep_it_is_flowers_fedavg(tmp_path):
    ours, _, _ = run(tmp_path / "ours", k=0)
    theirs = FlowerFedAvg(min_train_nodes=1).start(
        Nodes(app, tmp_path / "theirs"), initial(), 5, train_config=ConfigRecord(CONFIG)
    )
    ours, theirs = to_tensors(ours.arrays), to_tensors(theirs.arrays)
    for name, value in ours.items():
        if value.is_floating_point():  # of the counters, Flower averages what should be counted
            assert torch.allclose(value, theirs[name].to(value.dtype), rtol=1e-4, atol=1e-6), name


def test_the_anatomy_is_read_off_names_and_shapes_as_from_the_network():
    for name in NETS:
        for norm in ("batch", "group", "none"):
            model = Model(build(name, (3, 32, 32), 10, norm=norm))
            state = {n: v for n, v in model.net.state_dict().items() if v.is_floating_point()}
            exact = layers.anatomy(model, state)
            assert read_off(state) == exact


def payload(message, name="arrays"):
    return set(message.content[name])


def test_only_what_is_shared_travels(tmp_path):
    _, strategy, nodes = run(tmp_path, 5, mode="frozen")
    everything = set(initial())
    personal = strategy.personal
    assert personal
    for kind, freeze in (("train", 2), ("evaluate", 1)):
        for number, message in enumerate(trained(nodes.sent, kind)):
            frozen = number // 4 >= freeze
            assert payload(message) == (everything - personal if frozen else everything)
            assert message.content["config"]["fedlag-birth"] == b""
    for number, reply in enumerate(trained(nodes.received)):
        assert set(reply.content) == {"arrays", "metrics", RECEIPT}
        assert payload(reply) == (everything - personal if number // 4 >= 2 else everything)


def test_dynamic_layers_are_reported_but_never_sent_down(tmp_path):
    _, strategy, nodes = run(tmp_path, 5)
    sent, received = trained(nodes.sent)[-4:], trained(nodes.received)[-4:]
    assert strategy.personal
    for message, reply in zip(sent, received, strict=True):
        told = json.loads(message.content["config"]["fedlag"])
        assert told["personal"]
        assert payload(message).isdisjoint(told["personal"])
        assert payload(reply, UPDATE) == payload(reply, TRAINED) == set(told["watched"])
        assert payload(reply) == payload(message)


def test_the_app_sees_whole_models_and_nothing_of_ours(tmp_path):
    seen = []

    def looks(message, context, call_next):
        seen.append((list(message.content["arrays"]), set(message.content["config"]), set(message.content)))
        return call_next(message, context)

    run(tmp_path, nodes=Nodes(with_mods(always=[keep_personal, looks]), tmp_path))
    assert len(seen) == 5 * 8
    for arrays, config, records in seen:
        assert arrays == list(initial())
        assert config in ({"lr", "server-round"}, {"server-round"})
        assert records == {"arrays", "config"}


def test_with_another_strategy_the_mod_changes_nothing(tmp_path):
    nodes = Nodes(app, tmp_path)
    FlowerFedAvg().start(nodes, initial(), 2, train_config=ConfigRecord(CONFIG))
    assert all(set(reply.content) == {"arrays", "metrics"} for reply in trained(nodes.received))
    assert not list(tmp_path.iterdir())


# Answers that cannot be used


def changed(change, node=20, after=0):
    """An `answer` in which one node's reply is changed in every round of training from `after` on."""
    state = {"round": 0}

    def answer(sent, reply):
        if sent.metadata.message_type != "train" or sent.metadata.dst_node_id != node:
            return reply
        state["round"] += 1
        return change(sent, reply) if state["round"] > after else reply

    return answer


def rewritten(**change):
    def of(sent, reply):
        content = {**reply.content}
        for key, value in change.items():
            content[key] = value(content[key])
        reply.content = RecordDict({key: value for key, value in content.items() if value is not None})
        return reply

    return of


def weights(change):
    """Every weight changed."""
    return lambda record: ArrayRecord({name: Array(change(array.numpy())) for name, array in record.items()})


def plus(number):
    return lambda value: value + np.array(number, value.dtype) if value.dtype.kind == "f" else value


def renamed(record):
    return ArrayRecord({f"{name}!": array for name, array in record.items()})


def lacking(record):
    return ArrayRecord(dict(list(record.items())[1:]))


FAULTS = {
    "NaN": (rewritten(arrays=weights(plus(np.nan))), "not finite"),
    "infinite": (rewritten(arrays=weights(plus(np.inf))), "not finite"),
    "huge": (rewritten(arrays=weights(plus(1e15))), "times as far"),
    "another shape": (rewritten(arrays=weights(lambda value: value[None])), r"\(1, .*, not torch"),
    "shape that would broadcast": (
        rewritten(arrays=weights(lambda value: value[..., :1] if value.ndim else value)),
        "not torch",
    ),
    "another dtype": (rewritten(arrays=weights(lambda value: value.astype("float64"))), "float64"),
    "no numbers": (rewritten(arrays=weights(lambda value: value.astype("S3"))), "."),
    "other names": (rewritten(arrays=renamed), "other weights"),
    "a name too few": (rewritten(arrays=lacking), "other weights"),
    "no arrays": (rewritten(arrays=lambda record: None), "0 ArrayRecords"),
    "no metrics": (rewritten(metrics=lambda record: None), "0 MetricRecords"),
    "no weight": (rewritten(metrics=lambda record: MetricRecord({"loss": 1.0})), "num-examples is None"),
    "weight zero": (rewritten(metrics=lambda record: MetricRecord({"num-examples": 0})), "claims 0"),
    "negative weight": (rewritten(metrics=lambda record: MetricRecord({"num-examples": -5})), "claims -5"),
    "weight NaN": (
        rewritten(metrics=lambda record: MetricRecord({"num-examples": float("nan")})),
        "is nan, not",
    ),
    "half an example": (rewritten(metrics=lambda record: MetricRecord({"num-examples": 2.5})), "is 2.5, not a whole"),
    "a list of weights": (rewritten(metrics=lambda record: MetricRecord({"num-examples": [3]})), "not a whole"),
    "other metrics": (
        rewritten(metrics=lambda record: MetricRecord({**record, "mood": 0.5})),
        "another form than what most",
    ),
    "an old round": (rewritten(**{RECEIPT: lambda record: ConfigRecord({**record, "round": -1})}), "of round -1"),
    "no mod": (rewritten(**{RECEIPT: lambda record: None}), "keep_personal"),
    "another's partition": (
        rewritten(**{RECEIPT: lambda record: ConfigRecord({**record, "partition": 1})}),
        "node 10 answered for partition 1 already",
    ),
    "an error": (lambda sent, reply: Message(Error(2, "out of memory"), reply_to=sent), "out of memory"),
    "nothing": (lambda sent, reply: None, "did not answer"),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """A run in which one node never answers."""
    nothing = changed(lambda sent, reply: None)
    return run(tmp_path_factory.mktemp("without"), 3, answer=nothing, fraction_evaluate=0.0)[0].arrays


@pytest.mark.parametrize("fault", FAULTS)
def test_the_round_goes_on_without_an_answer_that_cannot_be_used_and_names_it(tmp_path, caplog, without, fault):
    change, reason = FAULTS[fault]
    result, strategy, _ = run(tmp_path, 3, answer=changed(change), fraction_evaluate=0.0)
    assert same(result.arrays, without)
    ((who, times),) = strategy.dropped.items()
    assert "node 20" in who
    assert times == 3
    assert re.search(rf"node 20\)? is not used: .*{reason}", caplog.text)


def test_a_second_answer_changes_nothing_and_is_counted(tmp_path):
    def twice(sent, reply):
        return [reply, rewritten(arrays=weights(plus(np.nan)))(sent, copy.copy(reply))]

    once, _, _ = run(tmp_path / "once", 3)
    result, strategy, _ = run(tmp_path / "twice", 3, answer=changed(twice))
    assert same(result.arrays, once.arrays)
    assert list(strategy.dropped.values()) == [3]
