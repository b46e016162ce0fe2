"""Nodes lose their disks, servers die, rounds are asked for twice: no layer is ever made up."""

import re
import shutil

import pytest
import torch
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from safetensors.torch import load

from fedlag.errors import InputError
from fedlag.flower import FedLAG, keep_personal
from fedlag.flower.instructions import to_tensors
from tests.flower.nodes import Nodes, joins_late
from tests.flower.test_strategy import CONFIG, app, changed, disk, initial, run, same, trained, with_mods

MODES = pytest.mark.parametrize("mode", ["dynamic", "frozen"])


class Down(Exception):
    pass


def dies(round, kind="train", after=0):
    """An `answer` with which the server dies when it has heard `after` nodes in this round (from 1)."""
    heard = []

    def answer(sent, reply):
        if sent.metadata.message_type == kind and sent.content["config"]["server-round"] == round:
            heard.append(reply)
            if len(heard) > after:
                raise Down
        return reply

    return answer


def born_with(message):
    return message.content["config"]["fedlag-birth"] != b""


@MODES
@pytest.mark.parametrize(
    ("round", "kind", "after"),
    [(1, "train", 1), (2, "train", 3), (3, "train", 2), (3, "evaluate", 1), (5, "train", 3)],
)
def test_a_server_that_died_goes_on_to_the_same_bits(tmp_path, mode, round, kind, after, whole):
    """Also when nodes have trained a round that the server never committed."""
    with pytest.raises(Down):
        run(tmp_path, 6, answer=dies(round, kind, after), mode=mode, state=tmp_path / "state")
    again = Nodes(app, tmp_path)
    result, strategy, _ = run(tmp_path, 6, nodes=again, mode=mode, state=tmp_path / "state")
    uninterrupted, personal, kept = whole[mode]
    assert same(result.arrays, uninterrupted)
    assert strategy.personal == personal
    first = round if kind == "train" else round + 1
    assert sorted(result.evaluate_metrics_clientapp) == list(range(first, 7))
    for node in again.ids:
        for name, value in disk(tmp_path, node).load(before=6).params.items():
            assert torch.equal(value, kept[node][name])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs: parameters, what is personal, what every node keeps."""
    runs = {}
    for mode in ("dynamic", "frozen"):
        folder = tmp_path_factory.mktemp(mode)
        result, strategy, nodes = run(folder, 6, mode=mode)
        runs[mode] = result.arrays, strategy.personal, {n: disk(folder, n).load(before=6).params for n in nodes.ids}
    return runs


def test_a_finished_run_has_nothing_to_do(tmp_path):
    first, _, _ = run(tmp_path, 3, state=tmp_path / "state")
    again, _, nodes = run(tmp_path, 3, state=tmp_path / "state")
    assert not nodes.sent
    assert same(first.arrays, again.arrays)


def test_a_state_of_another_rule_or_model_is_refused(tmp_path):
    run(tmp_path, 2, state=tmp_path / "state")
    with pytest.raises(InputError, match="is of experiment"):
        run(tmp_path, 2, k=2, state=tmp_path / "state")


def test_nothing_is_pickled(tmp_path):
    run(tmp_path, 2, state=tmp_path / "state")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}


def loses_its_disk(folder, node=20, round=3):
    """An `answer` with which a node's disk is gone after it was evaluated in this round."""

    def answer(sent, reply):
        to, config = sent.metadata.dst_node_id, sent.content["config"]
        if sent.metadata.message_type == "evaluate" and (to, config["server-round"]) == (node, round):
            shutil.rmtree(folder / f"disk-{node}")
        return reply

    return answer


@MODES
def test_a_node_that_lost_its_layers_says_so_and_trains_again_from_the_servers_copy(tmp_path, mode, caplog):
    """Not from initial weights, its own or anybody's."""
    starts = {}

    def looks(message, context, call_next):
        if context.node_id == 20 and message.metadata.message_type == "train":
            starts[message.content["config"]["server-round"]] = to_tensors(message.content["arrays"])
        return call_next(message, context)

    nodes = Nodes(with_mods(keep_personal, looks), tmp_path, answer=loses_its_disk(tmp_path))
    _, strategy, _ = run(tmp_path, 5, nodes=nodes, mode=mode)
    assert re.search("this node has lost its personal .*server's copy", caplog.text)
    assert strategy.dropped == {"partition 0 (node 20)": 1}
    assert sorted(starts) == [1, 2, 3, 5]
    own = [message for message in trained(nodes.sent) if message.metadata.dst_node_id == 20]
    assert [born_with(message) for message in own] == [False] * 4 + [True]
    copies = load(own[-1].content["config"]["fedlag-birth"])
    for name, copy in copies.items():
        assert torch.equal(starts[5][name], copy)
        if mode == "frozen":  # the server's copy has not moved since the freeze
            assert torch.equal(copy, to_tensors(strategy.arrays)[name])
            assert not torch.equal(copy, starts[3][name])


@MODES
def test_a_newcomer_starts_from_the_servers_copy(tmp_path, mode):
    nodes = joins_late(app, tmp_path)
    _, strategy, _ = run(tmp_path, 5, nodes=nodes, mode=mode)
    assert not strategy.dropped
    own = [message for message in nodes.sent if message.metadata.dst_node_id == 40]
    assert born_with(own[0])
    if mode == "frozen":
        assert not any(map(born_with, trained(own)[1:]))
    others = [message for message in nodes.sent if message.metadata.dst_node_id == 10]
    assert not any(map(born_with, others))


def test_with_too_few_answers_a_round_changes_nothing(tmp_path, caplog):
    alone = {"fraction_evaluate": 0.0, "min_replies": 4}
    missing = changed(lambda sent, reply: None, after=1)
    result, _, _ = run(tmp_path / "one", 3, answer=missing, **alone)
    once, _, _ = run(tmp_path / "two", 1, **alone)
    assert same(result.arrays, once.arrays)
    assert "Round 2 changes nothing" in caplog.text
    assert sorted(result.train_metrics_clientapp) == [1]


def test_a_second_run_knows_nothing_of_the_first(tmp_path):
    first, _, _ = run(tmp_path, 4)
    second, _, _ = run(tmp_path, 4)
    assert same(first.arrays, second.arrays)
    assert len(list(tmp_path.glob("disk-10/*"))) == 2


@MODES
def test_drawn_nodes_keep_their_layers_while_they_wait(tmp_path, mode):
    _, strategy, nodes = run(tmp_path, 12, fraction_train=0.5, mode=mode, warmup=3)
    assert not strategy.dropped
    assert len(trained(nodes.sent)) == 24


def test_evaluations_that_cannot_be_averaged_are_left_out(tmp_path, caplog):
    def odd(sent, reply):
        if sent.metadata.message_type == "evaluate" and sent.metadata.dst_node_id == 20:
            reply.content["metrics"]["num-examples"] = 0
        return reply

    result, _, _ = run(tmp_path, 2, answer=odd)
    assert "1 evaluations have other metrics" in caplog.text
    assert all(0 <= metrics["accuracy"] <= 1 for metrics in result.evaluate_metrics_clientapp.values())


# At the door


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"warm_up": 3}, "Did you mean 'warmup'"),
        ({"k": -1}, "k = -1"),
        ({"mode": "sometimes"}, "mode = 'sometimes'"),
        ({"min_replies": 0}, "min_replies = 0"),
        ({"outlier": 1}, "outlier = 1"),
    ],
)
def test_arguments_are_refused_with_a_sentence(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        FedLAG(**arguments)


def test_it_takes_the_arguments_of_fedavg_in_their_order():
    assert vars(FedLAG(0.5, 0.25, 3, k=2)).items() >= vars(FlowerFedAvg(0.5, 0.25, 3)).items()


def test_a_warm_up_that_outlasts_the_run_is_said(tmp_path, caplog):
    FedLAG().start(Nodes(app, tmp_path), initial(), 1, train_config=ConfigRecord(CONFIG))
    assert "No layer becomes personal" in caplog.text


def test_a_node_whose_answer_got_lost_goes_on_from_its_own_layers(tmp_path):
    """It is sent the server's copy, in case it has lost its own, and has no need of it."""
    starts = {}

    def looks(message, context, call_next):
        if context.node_id == 20 and message.metadata.message_type == "train":
            starts[message.content["config"]["server-round"]] = to_tensors(message.content["arrays"])
        return call_next(message, context)

    def loses(sent, reply):
        config = sent.content["config"]
        return None if sent.metadata.dst_node_id == 20 and config["server-round"] == 4 else reply

    nodes = Nodes(with_mods(keep_personal, looks), tmp_path, answer=loses)
    _, strategy, _ = run(tmp_path, 5, nodes=nodes, mode="frozen", fraction_evaluate=0.0)
    own = [message for message in nodes.sent if message.metadata.dst_node_id == 20]
    assert [born_with(message) for message in own] == [False] * 4 + [True]
    held = disk(tmp_path, 20).load(before=4).params
    for name in strategy.personal:
        assert torch.equal(starts[5][name], held[name])
        assert not torch.equal(starts[5][name], to_tensors(strategy.arrays)[name])
