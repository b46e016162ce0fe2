"""GPFL: features guided by class embeddings for everybody, and read by one's own head."""

import copy
import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from laws.federations import (
    CLASSES,
    SEED,
    SIZES,
    Cohorts,
    Wrapped,
    close,
    conv,
    mlp,
    ragged,
    run,
    same,
    scores,
    with_lag,
    work,
)
from torch import nn
from torch.nn import functional

from fedlag import tree
from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg, gpfl
from fedlag.algorithms.gpfl import GPFL
from fedlag.errors import InputError
from fedlag.flow import Batch
from fedlag.net import Model, Net
from fedlag.optim import SGD
from fedlag.personal import Named
from fedlag.run import evaluate

SOURCE = ragged()
TRAINING = Training(epochs=2, batch=8, optimizer=SGD(lr=0.1))
TABLE = gpfl.CLASSES
nets = pytest.mark.parametrize("net", [mlp, conv])


def extended(classes=CLASSES, width=5, **settings):
    """A model whose features are its inputs, with what GPFL adds, as a client may see it."""
    model = Model(Net(nn.Flatten(), nn.Linear(width, classes)))
    algorithm = GPFL(**settings)
    params = model.init()
    return algorithm, model, {**params, **algorithm.extend(model, params, 0).trained}


def local(model, params, y):
    """A client that received these parameters and holds these labels."""
    examples = Batch(torch.zeros(len(y), 1), torch.tensor(y))
    return SimpleNamespace(net=model, start=params, client=SimpleNamespace(params={}), work=Holding(examples))


@dataclass
class Holding:
    held: Batch

    def examples(self, part):
        return self.held


# The losses


@pytest.fixture
def open_valve(monkeypatch):
    """The valve lets features through as they are."""
    monkeypatch.setattr(gpfl, "valve", lambda params, features, condition: features)


@pytest.mark.usefixtures("open_valve")
@pytest.mark.parametrize("classes", [2, 5, 10])
def test_features_along_the_right_embedding_and_across_all_others(classes):
    """The angle costs -log(e / (e + C - 1)): cosines 1 and 0, whatever the lengths; no scores cost log C."""
    algorithm, model, params = extended(classes, classes, magnitude=0.0)
    params |= {name: torch.zeros_like(value) for name, value in params.items() if name.startswith("head.")}
    params[TABLE] = 3.0 * torch.eye(classes)
    batch = Batch(7.0 * torch.eye(classes)[1:2], torch.tensor([1]))
    loss = algorithm.loss(local(model, params, [1]), params, batch) - math.log(classes)
    assert loss.item() == pytest.approx(-math.log(math.e / (math.e + classes - 1)), rel=1e-5)


@pytest.mark.usefixtures("open_valve")
def test_the_distance_is_the_root_of_all_squares_in_the_batch_and_to_the_embeddings_as_received():
    algorithm, model, received = extended(magnitude=1.0)
    moved = {**received, TABLE: received[TABLE] + 1.0}
    x, y = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 2, 1, 0])
    far = algorithm.loss(local(model, received, [0]), moved, Batch(x, y))
    near = GPFL(magnitude=0.0).loss(local(model, received, [0]), moved, Batch(x, y))
    assert (far - near).item() == pytest.approx(torch.linalg.norm(x - received[TABLE][y]).item(), rel=1e-4)


def test_features_that_died_and_a_distance_of_zero_have_finite_gradients():
    algorithm, model, params = extended(magnitude=1.0)
    params |= {"valve.shift.norm.bias": torch.full((5,), -1e3), TABLE: torch.zeros(3, 5)}
    variables = {name: value.clone().requires_grad_() for name, value in params.items()}
    loss = algorithm.loss(local(model, params, [0]), variables, Batch(torch.ones(4, 5), torch.tensor([0, 1, 2, 0])))
    grads = torch.autograd.grad(loss, list(variables.values()), materialize_grads=True)
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_only_embeddings_and_valve_decay(decay):
    algorithm, _, params = extended(decay=decay)
    params["body.weight"] = torch.ones(2)
    for name, grad in algorithm.correct(None, params, tree.zeros_like(params)).items():
        expected = 0.0 if name.startswith(("body.", "head.")) else decay
        assert torch.equal(grad, expected * params[name])


# The conditions


def conditions(labels, **settings):
    """The scores' features of one example under the mean of all classes, and under that of the client's own."""
    algorithm, model, params = extended(**settings)
    x = torch.ones(1, 5)
    everybody = gpfl.valve(params, x, params[TABLE].mean(0))
    return model.classify(params, everybody), algorithm.predict(local(model, params, labels), params, x)


def test_with_uniform_labels_both_routes_coincide():
    general, own = conditions([0, 1, 2, 2, 1, 0])
    assert torch.allclose(general, own, atol=1e-6)
    general, own = conditions([0, 0, 1])
    assert not torch.allclose(general, own, atol=1e-3)


def test_the_valve_is_what_its_modules_compute():
    _, _, params = extended()
    z, condition = torch.randn(4, 5), torch.randn(5)
    scale, shift = (by_modules(params, name) for name in gpfl.CONVERSIONS)
    assert torch.allclose(gpfl.valve(params, z, condition), ((1 + scale(condition)) * z + shift(condition)).relu())


def by_modules(params, name):
    linear, norm = nn.Linear(5, 5), nn.LayerNorm(5)
    linear.load_state_dict({"weight": params[f"{name}.weight"], "bias": params[f"{name}.bias"]})
    norm.load_state_dict({"weight": params[f"{name}.norm.weight"], "bias": params[f"{name}.norm.bias"]})
    return nn.Sequential(linear, nn.ReLU(), norm)


# Rounds


class Guided(nn.Module):
    """The whole network as a PyTorch user would write it."""

    def __init__(self, net, params):
        super().__init__()
        self.net = net
        self.table = nn.Parameter(params[TABLE].clone())
        self.scale, self.shift = (by_modules(params, name) for name in gpfl.CONVERSIONS)

    def through(self, z, condition):
        return torch.relu((1 + self.scale(condition)) * z + self.shift(condition))


@nets
@pytest.mark.parametrize("stale", [False, True])
def test_rounds_written_out_by_hand(net, stale):
    cohorts = [[0, 1, 2], [1, 4], [0, 1]]
    algorithm = GPFL(magnitude=0.3, decay=0.1, stale_condition=stale)
    done = run(algorithm, net=net, training=TRAINING, sampling=Cohorts(cohorts), number=3)
    glob = Guided(net(), done.rounds[0].message.shared)
    heads, old = {}, {}

    def condition(client, model):
        table = old.get(client, torch.zeros(CLASSES, 5)) if stale else model.table.detach().clone()
        shares = torch.bincount(SOURCE(client, "train").y, minlength=CLASSES) / SIZES[client]
        return table.mean(0), shares @ table

    for round, cohort in enumerate(cohorts):
        trained, total = [], sum(SIZES[client] for client in cohort)
        for client in cohort:
            mine = copy.deepcopy(glob)
            mine.net.head = copy.deepcopy(heads.get(client, net().head))
            received, (general, own) = mine.table.detach().clone(), condition(client, mine)
            decaying = [mine.table, *mine.scale.parameters(), *mine.shift.parameters()]
            groups = [{"params": mine.net.parameters()}, {"params": decaying, "weight_decay": 0.1}]
            optimizer = torch.optim.SGD(groups, 0.1)
            for x, y in work(SOURCE, round, client).stream("train").batches(8, 2):
                mine.net.train(len(y) > 1)
                z = mine.net.body(x)
                guided = mine.through(z, general)
                cosines = functional.cosine_similarity(guided.unsqueeze(1), mine.table.unsqueeze(0), dim=2)
                loss = functional.cross_entropy(mine.net.head(mine.through(z, own)), y)
                loss = loss + functional.cross_entropy(cosines, y) + 0.3 * torch.linalg.norm(guided - received[y])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            heads[client], old[client] = mine.net.head, mine.table.detach()
            trained.append((mine.state_dict(), SIZES[client] / total))
        names = [name for name, value in trained[0][0].items() if value.is_floating_point() and ".head." not in name]
        glob.load_state_dict({name: sum(share * one[name] for one, share in trained) for name in names}, strict=False)
        expected = {ours(name): value for name, value in glob.state_dict().items() if name in names}
        assert close({name: done.rounds[round].server.params[name] for name in expected}, expected, 2e-5)

    glob.eval()
    found = evaluate(done.task, done.server, done.federation)
    for client, kept in done.federation.clients().items():
        assert torch.allclose(kept.params["head.weight"], heads[client].weight, atol=2e-5)
    for client in range(5):
        x, y = SOURCE(client, "test")
        _, own = condition(client, glob)
        expected = heads.get(client, net().head)(glob.through(glob.net.body(x), own))
        assert found[client]["test"].loss == pytest.approx(functional.cross_entropy(expected, y).item(), abs=1e-4)


def ours(name):
    """net.body.1.weight is body.1.weight, scale.0.bias is valve.scale.bias, scale.2.bias is valve.scale.norm.bias."""
    if name.startswith("net."):
        return name.removeprefix("net.")
    part, *rest = name.split(".")
    return TABLE if part == "table" else f"valve.{part}.{'norm.' if rest[0] == '2' else ''}{rest[1]}"


@nets
def test_with_an_open_valve_and_no_guidance_it_is_fedper_on_positive_features(net, monkeypatch):
    """All cosines zero, so that no angle has a gradient."""

    def rectified():
        made = net()
        return Net(nn.Sequential(*made.body, nn.ReLU()), made.head)

    monkeypatch.setattr(gpfl, "valve", lambda params, features, condition: features.relu())
    without_angles = {"cross_entropy": functional.cross_entropy, "normalize": torch.zeros_like}
    monkeypatch.setattr(gpfl, "functional", SimpleNamespace(**without_angles))
    guided = run(GPFL(magnitude=0.0), net=net, training=TRAINING)
    per = run(FedAvg(personal=Named("head.*")), net=rectified, training=TRAINING)
    body = {name: value for name, value in per.server.params.items() if name.startswith("body.")}
    assert same(tree.select(guided.server.params, body), body)
    assert same(scores(guided), scores(per))


def test_heads_stay_home_and_all_else_is_averaged():
    done = run(GPFL(), net=mlp, wrap=Wrapped)
    parts = ("weight", "bias", "norm.weight", "norm.bias")
    added = {TABLE, *(f"{name}.{part}" for name in gpfl.CONVERSIONS for part in parts)}
    for message, _, answers in done.federation.heard:
        for reply in answers.values():
            assert reply.update.keys() == added | {name for name in message.shared if name.startswith("body.")}
            assert all(reply.update[name].abs().sum() > 0 for name in added)


def test_lag_chooses_among_the_body_s_layers_only():
    done = run(with_lag(GPFL(), k=9, xi=0.0), net=mlp)
    assert {name for one in done.rounds for name in one.step.conflicts} == {"body.1", "body.3"}


def test_embeddings_and_valve_depend_on_the_seed_alone():
    algorithm, model = GPFL(), Model(mlp())
    one, other = (algorithm.extend(model, model.init(), seed).trained for seed in (SEED, SEED))
    assert same(one, other)
    assert not same(one, algorithm.extend(model, model.init(), SEED + 1).trained)


@pytest.mark.parametrize("setting", ["magnitude", "decay"])
def test_settings_are_checked(setting):
    with pytest.raises(InputError, match=setting):
        GPFL(**{setting: -1.0})
