"""Per-FedAvg: an initialisation that is good after one step."""

from dataclasses import dataclass, field

import pytest
import torch
from laws.federations import close, conv, mlp, ragged, run, same, work
from torch import nn
from torch.autograd.functional import hvp, jacobian
from torch.func import functional_call
from torch.nn import functional

from fedlag.algorithm import Steps, Training
from fedlag.algorithms import FedAvg, find
from fedlag.algorithms.perfedavg import VARIANTS, PerFedAvg
from fedlag.errors import InputError
from fedlag.net import Net
from fedlag.optim import SGD
from fedlag.run import evaluate

SOURCE = ragged()
BETA = 0.1
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def line():
    """Parameters to put into a quadratic: a head (3, 16) of double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Net(nn.Flatten(), nn.Linear(16, 3, bias=False)).double()


@dataclass(frozen=True, kw_only=True)
class Quadratic(PerFedAvg):
    """f(w) = w'Aw/2 - b'w, whatever the examples."""

    matrix: torch.Tensor = field(compare=False)
    vector: torch.Tensor = field(compare=False)

    def loss(self, local, params, batch):
        w = params["head.weight"].flatten()
        return w @ self.matrix @ w / 2 - self.vector @ w


def quadratic(scale=1.0, **settings):
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(48, 48, generator=generator, dtype=torch.float64)
    vector = torch.randn(48, generator=generator, dtype=torch.float64)
    return Quadratic(matrix=scale * (root @ root.T) / 48, vector=vector, **settings)


def one_step(algorithm):
    """The parameters before and after one meta-step."""
    done = run(algorithm, net=line, clients=1, number=1, training=Training(batch=100, optimizer=SGD(lr=BETA)))
    before = done.rounds[0].message.shared["head.weight"]
    return before.flatten(), done.server.params["head.weight"].flatten()


@pytest.mark.parametrize("delta", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("variant", ["hessian-free", "exact"])
def test_on_a_quadratic_the_meta_gradient_is_exact_for_any_delta(variant, delta):
    algorithm = quadratic(alpha=0.2, variant=variant, delta=delta)
    w, after = one_step(algorithm)
    a, b, unit = algorithm.matrix, algorithm.vector, torch.eye(48, dtype=torch.float64)
    adapted = w - 0.2 * (a @ w - b)
    assert torch.allclose(after, w - BETA * (unit - 0.2 * a) @ (a @ adapted - b), rtol=0, atol=1e-11)


def test_on_a_quadratic_the_first_order_step_leaves_the_curvature_out():
    algorithm = quadratic(alpha=0.2)
    w, after = one_step(algorithm)
    adapted = w - 0.2 * (algorithm.matrix @ w - algorithm.vector)
    assert torch.allclose(after, w - BETA * (algorithm.matrix @ adapted - algorithm.vector), rtol=0, atol=1e-12)


def test_first_order_and_hessian_free_coincide_without_curvature():
    first, free = (one_step(quadratic(scale=0.0, alpha=0.2, variant=variant)) for variant in VARIANTS[:2])
    assert torch.equal(first[1], free[1])
    assert not torch.equal(*first)


@each_variant
@pytest.mark.parametrize("net", [mlp, conv])
def test_with_alpha_zero_it_is_bitwise_fedavg_with_learning_rate_beta(net, variant):
    meta, plain = run(PerFedAvg(alpha=0.0, variant=variant), net=net), run(FedAvg(), net=net)
    assert same([one.server for one in meta.rounds], [one.server for one in plain.rounds])
    assert same(*(evaluate(done.task, done.server, done.federation) for done in (meta, plain)))


@each_variant
def test_a_step_is_the_papers_with_three_batches_of_their_own(variant):
    """Against PyTorch's own derivatives of the module, double back-propagation for the curvature."""
    module, single = mlp().double(), ragged()

    def source(client, part):
        return single(client, part)._replace(x=single(client, part).x.double())

    def loss(batch):
        return lambda *w: functional.cross_entropy(
            functional_call(module, dict(zip(names, w, strict=True)), (batch.x,)), batch.y
        )

    def moved(w, direction, by):
        return tuple(value + by * d for value, d in zip(w, direction, strict=True))

    training = Training(steps=2, batch=8, optimizer=SGD(lr=BETA))
    algorithm = PerFedAvg(alpha=0.3, variant=variant, delta=1e-4)
    done = run(algorithm, net=lambda: module, source=source, clients=1, number=1, training=training)
    names, w = zip(*done.rounds[0].message.shared.items(), strict=True)
    at_hand = work(source, 0, 0)
    for number, batch in enumerate(at_hand.stream("train").batches(8, Steps(2))):
        inner, curved = (at_hand.draw(purpose, number, len(batch.y)) for purpose in ("adapt", "curvature"))
        assert not torch.equal(inner.x, curved.x)
        g = jacobian(loss(batch), moved(w, jacobian(loss(inner), w), -0.3))
        product = torch.zeros(len(w)) if variant == "first-order" else hvp(loss(curved), w, g)[1]
        w = moved(w, moved(g, product, -0.3), -BETA)
    tolerance = 1e-6 if variant == "hessian-free" else 1e-12
    assert close(done.server.params, dict(zip(names, w, strict=True)), tolerance)


@each_variant
def test_batch_statistics_see_each_batch_of_the_step_once_and_nothing_else(variant):
    tiny = run(PerFedAvg(alpha=1e-9, variant=variant), net=conv, number=2)
    assert close(tiny.server.params, run(FedAvg(), net=conv, number=2).server.params, 1e-6)


def test_clients_are_tested_after_one_step_on_a_training_batch_which_is_thrown_away():
    done = run(PerFedAvg(alpha=0.5), net=mlp, number=2)
    before = done.server
    scores = evaluate(done.task, done.server, done.federation)
    module = mlp()
    for client in range(5):
        module.load_state_dict(done.server.params)
        batch = next(work(SOURCE, 2, client).stream("tune").batches(8, 1))
        module.zero_grad()
        functional.cross_entropy(module(batch.x), batch.y).backward()
        with torch.no_grad():
            for value in module.parameters():
                value -= 0.5 * value.grad
        x, y = SOURCE(client, "test")
        assert scores[client]["test"].loss == pytest.approx(functional.cross_entropy(module(x), y).item(), rel=1e-5)
    assert same(before, done.server)
    assert same(scores, evaluate(done.task, done.server, done.federation))


def test_tune_asks_for_whole_passes_instead_of_one_step():
    passes = find("perfedavg")(alpha=0.5, tune=find("fedavg-ft")().tune)
    ours, theirs = run(passes, net=mlp, number=0), run(find("fedavg-ft")(), net=mlp, number=0)
    assert same(*(evaluate(done.task, done.server, done.federation) for done in (ours, theirs)))


@pytest.mark.parametrize("bad", [{"alpha": -0.1}, {"variant": "second-order"}, {"delta": 0.0}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        PerFedAvg(**bad)
