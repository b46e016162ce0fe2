"""Law 9: where a method has a known limit, it reaches it."""

import copy

import pytest
import torch
from torch.nn import functional

from fedlag.algorithm import Phase, Training
from fedlag.algorithms import REGISTRY, Centralised, FedAvg
from fedlag.optim import SGD
from fedlag.personal import First, Last
from fedlag.run import evaluate
from laws.federations import ALL, SIZES, SOME, close, conv, mlp, ragged, run, same, work

SOURCE = ragged()
SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
TRAINING = Training(epochs=2, batch=8, optimizer=SGD(**SETTINGS))
nets = pytest.mark.parametrize("net", [mlp, conv])


def by_hand(net, round, client):
    """What a PyTorch user would write: train a copy of the module; gives its weights and statistics."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), **SETTINGS)
    for x, y in work(SOURCE, round, client).stream("train").batches(8, 2):
        net.train(len(y) > 1)  # one example has no variance, so it is normalised as in evaluation
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return {name: value for name, value in net.state_dict().items() if value.is_floating_point()}


@nets
def test_one_client_is_plain_sgd(net):
    done = run(FedAvg(), net=net, clients=1, training=TRAINING)
    module = net()
    for round in range(len(done.rounds)):
        module.load_state_dict(by_hand(module, round, 0), strict=False)
    expected = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
    assert close(done.server.params, expected)


@nets
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("sampling", [ALL, SOME], ids=["all", "some"])
def test_fedavg_is_the_weighted_mean_of_locally_trained_copies_statistics_included(net, weighting, sampling):
    aggregator = FedAvg().aggregator.__class__(weighting=weighting)
    done = run(FedAvg(aggregator=aggregator), net=net, training=TRAINING, sampling=sampling)
    module = net()
    for round, one in enumerate(done.rounds):
        trained = {client: by_hand(module, round, client) for client in one.letters}
        weights = {client: SIZES[client] if weighting == "samples" else 1 for client in trained}
        total = sum(weights.values())
        mean = {
            name: sum(value[name] * (weights[client] / total) for client, value in trained.items())
            for name in done.server.params
        }
        module.load_state_dict(mean, strict=False)
        assert close(one.server.params, mean, 2e-6)


@nets
def test_local_is_everybody_training_alone_from_the_same_start(net):
    done = run(REGISTRY["local"](), net=net, training=TRAINING)
    for client, kept in done.federation.clients().items():
        module = net()
        for round, one in enumerate(done.rounds):
            if client in one.letters:
                module.load_state_dict(by_hand(module, round, client), strict=False)
        expected = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
        assert close(kept.params, expected)


def test_one_full_batch_step_each_is_a_centralised_step_on_pooled_data():
    training = Training(batch=100, optimizer=SGD(lr=0.1))
    done = run(FedAvg(), net=mlp, training=training, sampling=ALL, number=1)
    net = mlp()
    x, y = (torch.cat(parts) for parts in zip(*(SOURCE(client, "train") for client in range(5)), strict=True))
    functional.cross_entropy(net(x), y).backward()
    expected = {name: (value - 0.1 * value.grad).detach() for name, value in net.named_parameters()}
    assert close(done.server.params, expected)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (FedAvg(personal=Last(0)), FedAvg()),
        (FedAvg(personal=Last(1)), REGISTRY["fedper"]()),
        (FedAvg(personal=First(2)), REGISTRY["lg-fedavg"]()),
        (FedAvg(personal=First(3)), REGISTRY["local"]()),
        (Centralised(), FedAvg()),
    ],
    ids=["fedper without layers", "fedper", "lg-fedavg", "local", "centralised"],
)
@nets
def test_two_ways_to_say_the_same_method(one, other, net):
    a, b = run(one, net=net), run(other, net=net)
    assert same(a.server.params, b.server.params)
    assert same(evaluate(a.task, a.server, a.federation), evaluate(b.task, b.server, b.federation))


def test_fine_tuning_trains_like_a_client_and_is_thrown_away():
    """fedavg-ft evaluates what one more epoch makes of the global model, and is FedAvg otherwise."""
    tuned, bare = run(FedAvg(tune=(Phase(1),)), net=mlp, number=2), run(FedAvg(), net=mlp, number=2)
    assert same(tuned.server, bare.server)

    scores = evaluate(tuned.task, tuned.server, tuned.federation)
    net = mlp()
    for client in range(5):
        params = {name: value.clone() for name, value in tuned.server.params.items()}
        net.load_state_dict(params)
        for x, y in work(SOURCE, 2, client).stream("tune").batches(8, 1):
            net.zero_grad()
            functional.cross_entropy(net(x), y).backward()
            with torch.no_grad():
                for value in net.parameters():
                    value -= 0.1 * value.grad
        x, y = SOURCE(client, "test")
        assert scores[client]["test"].loss == pytest.approx(functional.cross_entropy(net(x), y).item(), rel=1e-5)
        assert scores[client]["test"].examples == 7
    assert evaluate(tuned.task, tuned.server, tuned.federation, "global") == evaluate(
        bare.task, bare.server, bare.federation, "global"
    )
    assert same(evaluate(tuned.task, tuned.server, tuned.federation), scores)
