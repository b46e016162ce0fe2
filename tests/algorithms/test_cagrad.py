"""CAGrad: the step near the mean that serves the worst served client best."""

import numpy as np
import pytest
import torch
from laws.federations import ALL, close, identical, mlp, run

from fedlag.aggregate import CAGrad, Mean, blocks
from fedlag.aggregate.cagrad import SMOOTHING, worst_mixture
from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg
from fedlag.errors import InputError
from fedlag.optim import SGD

from .updates import draw, permuted, row, updates

UNIFORM = Mean(weighting="uniform")
RAW = {"rescale": "none"}


def value(mixture, gram, reach):
    return mixture @ gram.mean(1) + reach * np.sqrt(max(mixture @ gram @ mixture, 0.0) + SMOOTHING)


def problem(kind, seed, clients):
    """Gram matrix of unit mean diagonal, and c |mean| for c = 1/2."""
    rows = draw(seed, clients, {"few": 3, "many": 200, "opposed": 20, "alike": 50}[kind]).numpy()
    if kind == "opposed":
        rows[clients // 2 :] = -rows[: clients - clients // 2]
    if kind == "alike":
        rows = rows + 20 * rows[0]
    gram = rows @ rows.T
    gram /= np.diag(gram).mean()
    return gram, 0.5 * np.sqrt(max(gram.mean(), 0.0))


kinds = pytest.mark.parametrize("kind", ["few", "many", "opposed", "alike"])


@kinds
@pytest.mark.parametrize("clients", [2, 3, 5, 12])
def test_the_mixture_is_scipy_s(kind, clients):
    optimize = pytest.importorskip("scipy.optimize")
    for seed in range(3):
        gram, reach = problem(kind, seed, clients)
        theirs = optimize.minimize(
            value,
            np.full(clients, 1 / clients),
            args=(gram, reach),
            method="SLSQP",
            bounds=[(0, 1)] * clients,
            constraints={"type": "eq", "fun": lambda mixture: mixture.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        assert value(worst_mixture(gram, reach), gram, reach) == pytest.approx(theirs.fun, abs=1e-7)


@kinds
@pytest.mark.parametrize("clients", [2, 3, 12, 60])
def test_no_other_mixture_is_lower(kind, clients):
    """The slopes tell: nobody with weight costs more than anybody else."""
    gram, reach = problem(kind, 1, clients)
    mixture = worst_mixture(gram, reach)
    assert mixture.min() >= 0
    assert mixture.sum() == pytest.approx(1)
    slopes = gram.mean(1) + reach * gram @ mixture / np.sqrt(mixture @ gram @ mixture + SMOOTHING)
    assert slopes[mixture > 0].max() - slopes.min() < 1e-8
    for other in np.random.default_rng(0).dirichlet(np.full(clients, 0.3), size=200):
        assert value(other, gram, reach) >= value(mixture, gram, reach) - 1e-12


def test_two_clients_worked_out_on_paper():
    made = row(CAGrad(**RAW)(updates((1, 0), (-0.5, 1))))
    assert torch.allclose(made, torch.tensor([0.4579, 0.6868]).double(), atol=1e-4)
    assert float(made @ torch.tensor([1.0, 0.0]).double()) == pytest.approx(0.4579, abs=1e-4)
    assert float(made @ torch.tensor([-0.5, 1.0]).double()) == pytest.approx(0.4579, abs=1e-4)
    gram = np.array([[1.0, -0.5], [-0.5, 1.25]])
    assert worst_mixture(gram, 0.5 * np.sqrt(gram.mean()))[0] == pytest.approx(0.6173, abs=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_it_goes_c_times_the_mean_away_from_the_mean_and_serves_the_worst_better(seed):
    rows = draw(seed, 6, 30)
    mean, made = rows.mean(0), row(CAGrad(c=0.4, **RAW)(updates(rows)))
    assert float((made - mean).norm()) == pytest.approx(0.4 * float(mean.norm()), rel=1e-5)
    assert (rows @ made).min() >= (rows @ mean).min()
    for direction in draw(100 + seed, 50, 30):
        other = mean + 0.4 * mean.norm() * direction / direction.norm()
        assert (rows @ other).min() <= (rows @ made).min() + 1e-6 * float(rows.norm() ** 2)


def test_without_freedom_it_is_the_mean():
    given = updates(draw(0, 5, 20), examples=[3, 1, 4, 1, 5])
    for weighting in ("uniform", "samples"):
        assert torch.allclose(row(CAGrad(c=0.0, weighting=weighting)(given)), row(Mean(weighting=weighting)(given)))


def test_opposite_updates_give_no_step():
    assert not row(CAGrad()(updates((1, 2), (-1, -2)))).any()
    assert not row(CAGrad()(updates((0, 0), (0, 0)))).any()


@pytest.mark.parametrize(("rescale", "times"), [("none", 1.5), ("square", 1.5 / 1.25), ("linear", 1.0)])
def test_identical_updates_are_lengthened_unless_rescaled_to_fedavg(rescale, times):
    given = updates((1.0, 2.0), (1.0, 2.0), (1.0, 2.0))
    assert torch.allclose(row(CAGrad(rescale=rescale)(given)), times * torch.tensor([1.0, 2.0]).double())


def test_clients_that_agree_train_as_in_fedavg_when_rescaled_linearly():
    training = Training(batch=10, optimizer=SGD(lr=0.1))
    setup = {"net": mlp, "source": identical(), "clients": 4, "training": training, "sampling": ALL}
    ours, plain = (run(FedAvg(aggregator=a), **setup) for a in (CAGrad(rescale="linear"), UNIFORM))
    assert close(ours.server.params, plain.server.params)


def test_the_unit_of_updates_does_not_matter():
    rows = draw(2, 5, 20)
    assert torch.allclose(row(CAGrad()(updates(1e-12 * rows))), 1e-12 * row(CAGrad()(updates(rows))))


def test_with_samples_updates_are_lengthened_by_their_weight_first():
    rows, examples = draw(3, 4, 5), [3, 1, 4, 8]
    weighted = rows * (4 * torch.tensor(examples)[:, None] / 16)
    made = CAGrad(weighting="samples")(updates(rows, examples=examples))
    assert torch.allclose(row(made), row(CAGrad()(updates(weighted))))


def test_layer_by_layer_each_is_solved_on_its_own():
    rows = draw(4, 5, 6)
    made = CAGrad(scope="layer")(updates(rows))
    for part, name in ((rows[:, :1], "body.weight"), (rows[:, 1:], "head.weight")):
        alone = updates(rows)._replace(update={name: part})
        assert torch.allclose(made[name], CAGrad()(alone)[name])


def test_the_order_of_clients_does_not_matter():
    given = updates(draw(5, 6, 30))
    assert torch.allclose(row(CAGrad()(given)), row(CAGrad()(permuted(given, [5, 2, 0, 1, 4, 3]))))


def test_a_single_client_goes_its_own_way():
    assert torch.allclose(row(CAGrad(rescale="linear")(updates([(3.0, 4.0)]))), torch.tensor([3.0, 4.0]).double())


def test_updates_go_through_in_blocks(monkeypatch):
    given = updates(draw(6, 6, 100))
    whole = row(CAGrad()(given))
    monkeypatch.setattr(blocks, "CHUNK", 7)
    assert torch.allclose(row(CAGrad()(given)), whole)


@pytest.mark.parametrize("settings", [{"c": 1.0}, {"c": -0.1}, {"rescale": "cubic"}, {"scope": "world"}])
def test_settings_that_make_no_sense_are_refused(settings):
    (name,) = settings
    with pytest.raises(InputError, match=name):
        CAGrad(**settings)
