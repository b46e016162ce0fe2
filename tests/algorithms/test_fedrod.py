"""FedRoD: a generic head for balanced classes, and a second one for what is the client's own."""

import copy
import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from laws.federations import ALL, CLASSES, SIZES, Cohorts, close, conv, mlp, ragged, run, same, work
from torch import nn
from torch.nn import functional

from fedlag.algorithm import Extension, Training
from fedlag.algorithms import FedAvg
from fedlag.algorithms.fedrod import COUNTS, PREDICTORS, FedRoD
from fedlag.errors import InputError
from fedlag.flow import Batch
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.run import evaluate
from fedlag.tree import select, under

SOURCE = ragged()
TRAINING = Training(epochs=2, batch=8, optimizer=SGD(lr=0.1))
nets = pytest.mark.parametrize("net", [mlp, conv])
each_predictor = pytest.mark.parametrize("predictor", PREDICTORS)


def counts(client):
    return torch.bincount(SOURCE(client, "train").y, minlength=CLASSES).float()


def generic(params):
    """The body and the generic head."""
    return select(params, under(params, "body.* head.*"))


# The balanced loss


def balanced_loss(counted, y):
    """Of zero scores; the second head, which is zero too, adds log 2."""
    net = mlp()
    net.head = nn.Linear(5, 2)
    model = Model(net)
    params = {name: torch.zeros_like(value) for name, value in model.init().items()}
    params |= {"own.head.weight": torch.zeros(2, 5), "own.head.bias": torch.zeros(2), COUNTS: torch.tensor(counted)}
    batch = Batch(torch.zeros(1, 1, 4, 4), torch.tensor([y]))
    return FedRoD().loss(SimpleNamespace(net=model), params, batch).item() - math.log(2)


def test_zero_scores_and_counts_of_three_and_one():
    assert balanced_loss([3.0, 1.0], 0) == pytest.approx(0.2877, abs=1e-4)
    assert balanced_loss([3.0, 1.0], 1) == pytest.approx(1.3863, abs=1e-4)


def test_a_class_without_examples_takes_no_part():
    assert balanced_loss([3.0, 0.0], 0) == pytest.approx(0.0, abs=1e-6)
    assert math.isfinite(balanced_loss([3.0, 0.0], 1))


@each_predictor
def test_with_balanced_classes_the_generic_model_is_fedavg_s(predictor):
    def source(client, part):
        x, _ = SOURCE(client, part)
        return Batch(x[:6], torch.arange(len(x[:6])) % CLASSES) if client in (0, 1, 3, 4) else SOURCE(0, part)

    cohort = Cohorts([[0, 1, 3, 4]])
    balanced = {client: source(client, "train").y.bincount().tolist() for client in cohort.given[0]}
    assert all(count == [2, 2, 2] for count in balanced.values())
    rod = run(FedRoD(predictor=predictor), net=mlp, source=source, sampling=cohort)
    avg = run(FedAvg(), net=mlp, source=source, sampling=cohort)
    assert close(generic(rod.server.params), avg.server.params)


# The second head


@dataclass(frozen=True, kw_only=True)
class Elsewhere(FedRoD):
    """The second head starts from other values."""

    def extend(self, net, params, seed):
        trained, carried = super().extend(net, params, seed)
        return Extension({name: value + 1.0 for name, value in trained.items()}, carried)


@nets
@each_predictor
def test_the_second_head_moves_neither_body_nor_generic_head(net, predictor):
    one, other = run(FedRoD(predictor=predictor), net=net), run(Elsewhere(predictor=predictor), net=net)
    assert same(generic(one.server.params), generic(other.server.params))


def test_both_predictors_train_the_same_generic_model():
    linear, hyper = (run(FedRoD(predictor=predictor), net=mlp) for predictor in PREDICTORS)
    assert same(generic(linear.server.params), generic(hyper.server.params))


@nets
def test_rounds_written_out_by_hand(net):
    """With two optimisers, one after the other on every batch."""
    cohorts = [[0, 1, 2], [1, 4], [0, 2]]
    done = run(FedRoD(), net=net, training=TRAINING, sampling=Cohorts(cohorts), number=3)
    glob, heads = net(), {}
    for round, cohort in enumerate(cohorts):
        trained, total = [], sum(SIZES[client] for client in cohort)
        for client in cohort:
            mine, second = copy.deepcopy(glob), copy.deepcopy(heads.get(client, net().head))
            shift = counts(client).clamp(min=1e-8).log()
            for x, y in work(SOURCE, round, client).stream("train").batches(8, 2):
                mine.train(len(y) > 1)
                z = mine.body(x)
                scores = mine.head(z)
                descend(functional.cross_entropy(scores + shift, y), mine)
                descend(functional.cross_entropy(scores.detach() + second(z.detach()), y), second)
            heads[client] = second
            trained.append((mine.state_dict(), SIZES[client] / total))
        names = [name for name in trained[0][0] if name in done.server.params]
        glob.load_state_dict({name: sum(share * one[name] for one, share in trained) for name in names}, strict=False)
        expected = {name: value for name, value in glob.state_dict().items() if name in names}
        assert close(generic(done.rounds[round].server.params), expected, 1e-5)

    clients = done.federation.clients()
    assert all(
        torch.allclose(clients[client].params["own.head.weight"], h.weight, atol=1e-5) for client, h in heads.items()
    )
    glob.eval()
    scores = {stage: evaluate(done.task, done.server, done.federation, stage) for stage in ("personal", "global")}
    for client in range(5):
        x, y = SOURCE(client, "test")
        z = glob.body(x)
        both = glob.head(z) + heads.get(client, net().head)(z)
        assert scores["personal"][client]["test"].loss == loss_of(both, y)
        assert scores["global"][client]["test"].loss == loss_of(glob.head(z), y)


def descend(loss, module):
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def loss_of(scores, y):
    return pytest.approx(functional.cross_entropy(scores, y).item(), abs=1e-4)


def test_classes_are_counted_over_all_examples_and_stay_home():
    done = run(FedRoD(), net=mlp, sampling=ALL, number=1)
    for client, kept in done.federation.clients().items():
        assert torch.equal(kept.params[COUNTS], counts(client))
    assert (done.server.params[COUNTS] == 0).all()
    assert not any(name.startswith("own.") for name in done.rounds[0].message.shared)


# The network that makes heads


def test_made_heads_start_as_the_generic_one():
    algorithm, model = FedRoD(predictor="hyper"), Model(mlp())
    params = model.init()
    trained, carried = algorithm.extend(model, params, 0)
    everything = {**params, **trained, **carried, COUNTS: torch.tensor([1.0, 5.0, 0.0])}
    x = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(algorithm.predict(SimpleNamespace(net=model), everything, x), 2 * model(params, x), atol=1e-6)


def test_made_heads_are_a_network_of_the_class_shares():
    """Shares to hidden units with ReLU to weights, as one would write it; and everybody trains that network."""
    done = run(FedRoD(predictor="hyper", hidden=7), net=mlp, sampling=ALL, number=3)
    params = done.server.params
    hyper = nn.Sequential(nn.Linear(CLASSES, 7), nn.ReLU(), nn.Linear(7, CLASSES * 5 + CLASSES))
    slope = torch.cat([params[f"hyper.slope.head.{part}"].flatten(1) for part in ("weight", "bias")], dim=1)
    start = torch.cat([params[f"hyper.start.head.{part}"].flatten() for part in ("weight", "bias")])
    state = {"0.weight": params["hyper.hidden.weight"], "0.bias": params["hyper.hidden.bias"]}
    hyper.load_state_dict({**state, "2.weight": slope.T, "2.bias": start})
    assert slope.abs().sum() > 0
    net = mlp()
    net.load_state_dict(generic(params))
    scores = evaluate(done.task, done.server, done.federation)
    for client in range(5):
        made = hyper(counts(client) / counts(client).sum())
        x, y = SOURCE(client, "test")
        z = net.body(x)
        both = net.head(z) + functional.linear(z, made[: CLASSES * 5].reshape(CLASSES, 5), made[CLASSES * 5 :])
        assert scores[client]["test"].loss == loss_of(both, y)


def test_a_newcomer_has_a_made_head_at_once_and_a_trained_one_only_after_training():
    """Client 4 has never taken part; its scores change with its labels only where heads are made of them."""

    def relabelled(client, part):
        x, y = SOURCE(client, part)
        return Batch(x, (y + 1) % CLASSES if client == 4 and part == "train" else y)

    for predictor, differs in (("hyper", True), ("linear", False)):
        scores = [
            evaluate(done.task, done.server, done.federation)[4]["test"].loss
            for source in (SOURCE, relabelled)
            for done in [run(FedRoD(predictor=predictor), net=mlp, source=source, sampling=Cohorts([[0, 1, 2, 3]]))]
        ]
        assert (scores[0] != scores[1]) == differs


def test_the_network_that_makes_heads_is_averaged():
    done = run(FedRoD(predictor="hyper"), net=mlp)
    assert {name for name in done.rounds[0].message.shared if name.startswith("hyper.")} == {
        "hyper.hidden.weight",
        "hyper.hidden.bias",
        "hyper.start.head.weight",
        "hyper.start.head.bias",
        "hyper.slope.head.weight",
        "hyper.slope.head.bias",
    }


@pytest.mark.parametrize(("setting", "value"), [("predictor", "quadratic"), ("hidden", 0)])
def test_settings_are_checked(setting, value):
    with pytest.raises(InputError, match=setting):
        FedRoD(**{setting: value})
