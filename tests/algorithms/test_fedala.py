"""FedALA: training starts from a learned mixture of what was received and what the client had."""

from dataclasses import dataclass, field

import pytest
import torch
from laws.federations import ALL, Cohorts, Scheduled, Wrapped, conv, mlp, noisy, ragged, run, same
from torch.nn import functional

from fedlag import tree
from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg
from fedlag.algorithms.fedala import WINDOW, FedALA
from fedlag.errors import InputError
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.personal import Named
from fedlag.run import evaluate

SOURCE = ragged()
HEAD = {"head.weight", "head.bias"}
each_net = pytest.mark.parametrize("net", [mlp, noisy])


@dataclass(frozen=True, kw_only=True)
class Watched(FedALA):
    """Notes down what it does."""

    starts: dict = field(default_factory=dict)  # (round, client) -> where training or evaluation starts
    losses: dict = field(default_factory=dict)  # (round, client) -> of every pass over the examples

    def prepare(self, local):
        notes = super().prepare(local)
        self.starts[local.message.round, local.work.client] = notes["start"]
        return notes

    def _pass(self, local, weights, batches):
        weights, loss = super()._pass(local, weights, batches)
        self.losses.setdefault((local.message.round, local.work.client), []).append(loss)
        return weights, loss


@dataclass(frozen=True, kw_only=True)
class Closed(FedALA):
    """Every weight is 0."""

    def remember_client(self, params):
        return {"weights": tree.zeros_like(params)}


@each_net
@pytest.mark.parametrize("layers", [1, 3])
def test_with_weights_that_stay_at_one_it_is_bitwise_fedavg(layers, net):
    ala, fedavg = (run(method, net=net) for method in (FedALA(weight_lr=0.0, layers=layers), FedAvg()))
    assert same([one.server for one in ala.rounds], [one.server for one in fedavg.rounds])
    assert same(*(evaluate(done.task, done.server, done.federation) for done in (ala, fedavg)))


def test_with_weights_that_stay_at_zero_in_every_layer_clients_train_alone():
    ala, local = (
        run(method, net=mlp, sampling=ALL) for method in (Closed(weight_lr=0.0, layers=3), FedAvg(personal=Named("*")))
    )
    for client, kept in local.federation.clients().items():
        assert same(ala.federation.clients()[client].params, kept.params)
    assert same(*(evaluate(done.task, done.server, done.federation) for done in (ala, local)))


@pytest.mark.parametrize("layers", [0, 1, 2, 9])
@pytest.mark.parametrize("net", [mlp, conv])
def test_weights_stay_between_zero_and_one_and_belong_to_the_last_layers(layers, net):
    done = run(FedALA(weight_lr=1000.0, layers=layers), net=net)
    names = Model(net()).parameter_names
    seen = set()
    for client in done.federation.clients().values():
        weights = client.memory["weights"]
        seen |= weights.keys()
        assert all(value.min() >= 0 and value.max() <= 1 for value in weights.values())
        assert not weights or any(value.min() < 1 for value in weights.values())
    assert seen == set(names[max(0, len(names) - 2 * layers) :])


def test_a_step_of_the_weights_is_the_papers():
    """One batch of all examples, one pass: W = clip(1 - lr * gradient * (received - old), 0, 1)."""
    training = Training(batch=100, optimizer=SGD(lr=0.1))
    algorithm = Watched(share=1.0, passes=1, weight_lr=20.0)
    done = run(algorithm, net=mlp, number=2, training=training, sampling=ALL)
    before = run(algorithm, net=mlp, number=1, training=training, sampling=ALL)
    model, received = Model(mlp()), done.rounds[1].message.shared
    for client, kept in before.federation.clients().items():
        old, (x, y) = kept.params, SOURCE(client, "train")
        leaves = {name: value.clone().requires_grad_() for name, value in received.items()}
        functional.cross_entropy(model(leaves, x), y).backward()
        weights = done.federation.clients()[client].memory["weights"]
        start = algorithm.starts[1, client]
        assert weights.keys() == HEAD
        for name in HEAD:
            gap = received[name] - old[name]
            expected = (1 - 20.0 * leaves[name].grad * gap).clamp(0, 1)
            assert torch.allclose(weights[name], expected, rtol=0, atol=1e-5)
            assert torch.allclose(start[name], old[name] + gap * expected, rtol=0, atol=1e-5)
        assert same(tree.select(start, start.keys() - HEAD), tree.select(received, received.keys() - HEAD))


def test_a_first_time_goes_on_until_the_loss_settles_and_later_ones_pass_once():
    algorithm = Watched()
    run(algorithm, net=mlp, number=4, sampling=ALL)
    assert not any((0, client) in algorithm.losses for client in range(5))
    for client in range(5):
        first = algorithm.losses[1, client]
        assert WINDOW < len(first) <= 50
        assert torch.tensor(first[-WINDOW:]).std(correction=0) < 0.1
        assert len(algorithm.losses[2, client]) == len(algorithm.losses[3, client]) == 1
    assert algorithm.losses[1, 0][-1] < algorithm.losses[1, 0][0]


def test_a_first_time_that_never_settles_ends(monkeypatch):
    monkeypatch.setattr("fedlag.algorithms.fedala.SETTLED", -1.0)
    algorithm = Watched(passes=23)
    run(algorithm, net=mlp, sampling=ALL, number=2)
    assert all(len(losses) == 23 for losses in algorithm.losses.values())


def test_weights_are_learned_on_a_share_of_the_examples(monkeypatch):
    drawn = []
    batches = FedALA._batches

    def noted(self, local):
        drawn.append((len(local.work.examples("train").y), batches(self, local)))
        return drawn[-1][1]

    monkeypatch.setattr(FedALA, "_batches", noted)
    run(FedALA(share=0.5), net=mlp, number=3)
    assert drawn
    for count, parts in drawn:
        assert sum(len(part.y) for part in parts) == max(1, count // 2)
        assert all(len(part.y) <= 8 for part in parts)


@pytest.mark.parametrize("names", [(), Model(noisy()).parameter_names + Model(noisy()).statistic_names])
def test_weights_are_learned_in_evaluation_mode_whatever_the_model_did_before(names):
    class Before(Wrapped):
        def train(self, message, letters, scored):
            self.federation.task.model.train(names)
            return super().train(message, letters, scored)

    settings = {"net": noisy, "number": 2, "sampling": Cohorts([[0, 1], [0]])}
    assert same(run(FedALA(), wrap=Before, **settings).server, run(FedALA(), **settings).server)


def test_a_newcomer_starts_from_what_it_received():
    algorithm = Watched()
    done = run(algorithm, net=conv, number=3, sampling=Cohorts([[0, 2], [0], [1]]))
    assert same(algorithm.starts[2, 1], done.rounds[2].message.shared)
    assert not same(algorithm.starts[1, 0], done.rounds[1].message.shared)


def test_evaluation_starts_where_training_would_start_next_and_keeps_nothing():
    algorithm = Watched()
    early, late = (run(algorithm, net=conv, number=number, sampling=ALL) for number in (2, 3))
    trained_from = {client: algorithm.starts[2, client] for client in range(5)}
    before = early.federation.clients()
    scores = evaluate(early.task, early.server, early.federation)
    assert same(early.federation.clients(), before)
    model = Model(conv())
    model.eval()
    for client, start in trained_from.items():
        assert same(algorithm.starts[2, client], start)
        x, y = SOURCE(client, "test")
        loss = functional.cross_entropy(model(start, x), y).item()
        assert scores[client]["test"].loss == pytest.approx(loss, rel=1e-5)
    assert same(late.rounds[1].server, early.server)


def test_a_personal_layer_is_not_mixed_and_learns_its_weights_anew_when_it_is_shared_again():
    settings = {"layers": 2, "personal": Scheduled(("", "", "head.*", ""))}
    algorithm = Watched(**settings)
    done = run(algorithm, net=mlp, number=4, sampling=ALL)
    before, away = (run(FedALA(**settings), net=mlp, number=number, sampling=ALL) for number in (2, 3))
    for client, kept in away.federation.clients().items():
        former = before.federation.clients()[client]
        assert former.memory["weights"].keys() > HEAD
        assert HEAD.isdisjoint(kept.memory["weights"])
        assert same(tree.select(algorithm.starts[2, client], HEAD), tree.select(former.params, HEAD))
        assert len(algorithm.losses[2, client]) == 1
        assert len(algorithm.losses[3, client]) > WINDOW
        assert done.federation.clients()[client].memory["weights"].keys() > HEAD


@pytest.mark.parametrize("bad", [{"layers": -1}, {"share": 0.0}, {"share": 1.1}, {"weight_lr": -1.0}, {"passes": 0}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        FedALA(**bad)
