"""FedAF: clients send condensed images, and the server trains on them."""

from types import SimpleNamespace

import pytest
import torch
from laws.federations import ALL, CLASSES, SIZES, Cohorts, Wrapped, close, conv, mlp, noisy, ragged, run, same
from torch.nn import functional

from fedlag import tree
from fedlag.algorithms.fedaf import FedAF
from fedlag.condensation import disagreement, resampled, sliced_gaps
from fedlag.errors import InputError
from fedlag.flow import Batch
from fedlag.lag import LAG
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.personal import Named
from fedlag.round import begin

SOURCE = ragged()
QUICK = {"images": 2, "image_steps": 3, "epochs": 2}


def heard(**settings):
    done = run(FedAF(**{**QUICK, **settings}), number=4, sampling=ALL, wrap=Wrapped)
    return done, done.federation.heard


def scores_of(params, x, net=noisy):
    model = Model(net())
    model.eval()
    with torch.no_grad():
        return model.features(params, x), model(params, x)


# Its formulas


def test_the_sliced_distance_of_points_is_known_exactly():
    """The mean, over random directions, of the squared distance of projections."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 4, 10, generator=generator, dtype=torch.float64)
    directions = functional.normalize(torch.randn(200_000, 10, generator=generator, dtype=torch.float64), dim=1)
    sampled = ((a - b) @ directions.T).square().mean(1)
    assert torch.allclose(sliced_gaps(a, b), sampled, rtol=0.02)
    assert torch.equal(sliced_gaps(a, b), sliced_gaps(b, a))
    assert not sliced_gaps(a, a).any()
    assert (sliced_gaps(a, b) > 0).all()


def test_soft_labels_that_agree_cost_nothing_and_others_the_mean_of_both_divergences():
    generator = torch.Generator().manual_seed(1)
    a, b = functional.softmax(torch.randn(2, 4, 4, generator=generator, dtype=torch.float64), dim=-1)
    assert disagreement(a, a) == 0
    there, back = (functional.kl_div(p.log(), q.log(), reduction="sum", log_target=True) for p, q in ((b, a), (a, b)))
    assert float(disagreement(a, b)) == pytest.approx(float(there + back) / 2, rel=1e-5)
    certain = torch.eye(4, dtype=torch.float64)
    assert torch.isfinite(disagreement(certain, certain.flip(0)))


@pytest.mark.parametrize("net", [mlp, conv])
def test_keeping_everything_a_network_is_not_resampled(net):
    model = Model(net())
    params = {name: value + 1 for name, value in model.init().items()}
    assert same(resampled(model, params, 1.0, seed=0), params)


@pytest.mark.parametrize("net", [mlp, conv])
def test_a_resampled_network_is_so_far_on_the_way_to_a_fresh_one(net):
    model = Model(net())
    params = {name: value + 1 for name, value in model.init().items()}
    fresh, mixed, other = (resampled(model, params, kept, seed) for kept, seed in ((0.0, 3), (0.75, 3), (0.0, 4)))
    statistics = {name: params[name] for name in model.statistic_names}
    for name in model.parameter_names:
        assert torch.allclose(mixed[name], 0.75 * params[name] + 0.25 * fresh[name], atol=1e-6)
    assert same(tree.select(mixed, statistics), statistics)
    assert not torch.equal(fresh["head.weight"], other["head.weight"])
    bound = 5**-0.5  # PyTorch's, of a layer with five inputs
    assert fresh["head.weight"].abs().max() <= bound
    assert fresh["head.weight"].std() == pytest.approx(bound / 3**0.5, rel=0.4)
    assert not any(value.requires_grad for value in mixed.values())


def condensing(algorithm, images, real, goal, net=mlp):
    """The images of classes 0 and 1 after condensation towards features `real`, with the third class absent."""
    model = Model(net())
    local = SimpleNamespace(net=model, message=SimpleNamespace(extra=goal))
    return algorithm._condense(local, model.init(), images, real, torch.tensor([True, True, False])), model


def some_images(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(CLASSES, count, 1, 4, 4, generator=generator)
    images[2] = 0
    return images


def mean_features(images, net=mlp):
    model = Model(net())
    return torch.stack([scores_of(model.init(), one, net)[0].mean(0) for one in images])


def test_images_that_are_the_real_ones_stay():
    images = some_images(6)
    made, _ = condensing(FedAF(image_steps=20), images, mean_features(images), {})
    assert torch.allclose(made, images, atol=1e-5)


def test_condensed_images_look_to_the_network_as_the_real_ones_do():
    real, images = mean_features(some_images(6)), some_images(2, seed=1)
    made, _ = condensing(FedAF(image_steps=200), images, real, {})
    before, after = ((mean_features(one) - real)[:2].square().sum() for one in (images, made))
    assert after < 1e-2 * before
    assert not made[2].any(), "of a class it does not have a client has no images"


def test_and_score_as_their_class_does_with_everybody():
    real, images = mean_features(some_images(6)), some_images(2, seed=1)
    goal = {"means": torch.eye(3), "counts": torch.tensor([4.0, 0.0, 2.0])}

    def gap(collaboration):
        made, model = condensing(FedAF(image_steps=100, collaboration=collaboration), images, real, goal)
        means = torch.stack([model(model.init(), one).mean(0) for one in made])
        return (means - goal["means"]).square().sum(1).tolist()

    (first, second, _), (first_free, second_free, _) = gap(5.0), gap(0.0)
    assert first < 0.5 * first_free
    assert second == pytest.approx(second_free, rel=1e-3), "nobody told of this class"


# Its rounds


def test_nothing_is_averaged_and_no_update_leaves_a_client():
    done, said = heard()
    for message, letters, replies in said:
        assert not message.personal
        assert message.shared.keys() == done.server.params.keys()
        assert not any(letter.extra or letter.birth for letter in letters.values())
        assert not any(reply.update or reply.trained for reply in replies.values())
    assert not any(kept.params for kept in done.federation.clients().values())


def test_in_even_rounds_clients_tell_mean_scores_and_in_odd_ones_they_hear_the_mean_of_those():
    done, said = heard(kept=1.0)
    for even, odd in ((0, 1), (2, 3)):
        (message, _, replies), (following, _, _) = said[even], said[odd]
        assert message.extra == {}
        assert same(message.shared, following.shared), "the server waits"
        told = {c: [] for c in range(CLASSES)}
        for client, reply in replies.items():
            x, y = SOURCE(client, "train")
            scores = scores_of(message.shared, x)[1]
            for c in range(CLASSES):
                assert reply.extra["counts"][c] == (y == c).sum()
                if (y == c).any():
                    told[c].append(scores[y == c].mean(0))
                    assert torch.allclose(reply.extra["means"][c], told[c][-1], atol=1e-5)
        for c, means in told.items():
            assert following.extra["counts"][c] == len(means)
            assert torch.allclose(following.extra["means"][c], torch.stack(means).mean(0), atol=1e-5)
    assert len(done.rounds) == 4


def test_in_odd_rounds_clients_send_images_of_their_classes_and_soft_labels():
    _, said = heard()
    message, _, replies = said[1]
    for client, reply in replies.items():
        x, y = SOURCE(client, "train")
        probabilities = functional.softmax(scores_of(message.shared, x)[1] / 2.0, dim=1)
        assert reply.extra["images"].shape == (CLASSES, 2, 1, 4, 4)
        for c in range(CLASSES):
            has = bool((y == c).any())
            assert bool(reply.extra["images"][c].any()) == has
            expected = probabilities[y == c].mean(0) if has else torch.zeros(CLASSES)
            assert torch.allclose(reply.extra["means"][c], expected, atol=1e-5)


def test_both_exchanges_look_through_the_same_network_and_the_next_ones_through_another():
    done = run(FedAF(**QUICK), number=1, sampling=ALL)
    seeds = []
    for number in (1, 2, 3, 4):
        done = run(FedAF(**QUICK), number=number, sampling=ALL)
        seeds.append([kept.memory["seed"] for kept in done.federation.clients().values()])
    assert seeds[0] == seeds[1]
    assert seeds[2] == seeds[3]
    assert len({*seeds[0], *seeds[2]}) == 2 * len(SIZES)


def test_who_was_not_in_the_first_exchange_draws_a_network_of_its_own():
    done = run(FedAF(**QUICK), number=2, sampling=Cohorts([[0, 1], [1, 2]]))
    seeds = {client: kept.memory["seed"] for client, kept in done.federation.clients().items()}
    assert len(set(seeds.values())) == 3
    assert done.server.memory["condensed"].keys() == {1, 2}


def test_clients_go_on_with_the_images_they_have():
    """Without condensation they stay, as means of real ones."""
    _, said = heard(image_steps=0, blended=1)
    for client, reply in said[3][2].items():
        assert torch.equal(reply.extra["images"], said[1][2][client].extra["images"])
        x, y = SOURCE(client, "train")
        for c in y.unique().tolist():
            for image in reply.extra["images"][c]:
                assert any(torch.equal(image, one) for one in x[y == c])


@pytest.mark.parametrize("recall", [True, False])
def test_the_server_trains_on_the_last_images_of_every_client_it_met_or_of_this_round(recall):
    cohorts = Cohorts([[0, 1, 2], [0, 1, 2], [3], [3, 0]])
    done = run(FedAF(**QUICK, recall=recall), number=4, sampling=cohorts, wrap=Wrapped)
    condensed = done.server.memory["condensed"]
    assert list(condensed) == ([0, 1, 2, 3] if recall else [0, 3])
    for client, told in condensed.items():
        last = 3 if client in (0, 3) else 1
        assert same(told, done.federation.heard[last][2][client].extra)


def test_the_server_trains_by_cross_entropy_and_towards_the_soft_labels():
    """One full-batch step, worked out by hand."""
    settings = {**QUICK, "epochs": 1, "matching": 0.3, "server": SGD(lr=0.5)}
    done = run(FedAF(**settings), net=mlp, number=2, sampling=ALL, wrap=Wrapped)
    message, _, replies = done.federation.heard[1]
    images, labels, told = [], [], {c: [] for c in range(CLASSES)}
    for client in sorted(replies):
        for c in range(CLASSES):
            if replies[client].extra["counts"][c]:
                images.append(replies[client].extra["images"][c])
                labels += [c] * len(images[-1])
                told[c].append(replies[client].extra["means"][c])
    x, y = torch.cat(images), torch.tensor(labels)
    module = mlp()
    module.load_state_dict(message.shared)
    scores = module(x)
    soft = functional.softmax(scores / 2.0, dim=1)
    loss = functional.cross_entropy(scores, y)
    for c in range(CLASSES):
        a, b = torch.stack(told[c]).mean(0), soft[y == c].mean(0)
        loss = loss + 0.3 * ((a - b) * (a.log() - b.log())).sum() / 2
    loss.backward()
    expected = {name: (value - 0.5 * value.grad).detach() for name, value in module.named_parameters()}
    assert close(done.server.params, expected, 1e-5)


@pytest.mark.parametrize("net", [mlp, conv])
def test_it_learns_what_no_client_knows_alone(net):
    """Everybody has one class; the model knows all three."""
    centres = 2 * torch.randn(CLASSES, 1, 4, 4, generator=torch.Generator().manual_seed(0))

    def source(client, part):
        generator = torch.Generator().manual_seed(10 * client + len(part))
        y = (
            torch.full((12,), client % CLASSES)
            if part == "train"
            else torch.randint(CLASSES, (60,), generator=generator)
        )
        return Batch(centres[y] + 0.5 * torch.randn(len(y), 1, 4, 4, generator=generator), y)

    done = run(FedAF(images=3, image_steps=20, epochs=30), net=net, source=source, number=4, sampling=ALL)
    x, y = source(0, "test")
    assert (scores_of(done.server.params, x, net)[1].argmax(1) == y).float().mean() > 0.95


@pytest.mark.parametrize("rule", [LAG(), Named("head.*")])
def test_nothing_can_be_left_out_of_an_average_that_is_not_taken(rule):
    with pytest.raises(InputError, match="FedAF averages no parameters"):
        begin(FedAF(personal=rule), Model(mlp()), None, 3, 0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("images", 0), ("blended", 0), ("batch", 0), ("image_steps", -1), ("epochs", 1.5), ("seed", -1)),
        *(("image_lr", 0), ("temperature", 0), ("collaboration", -1), ("matching", -0.1)),
        *(("kept", 1.1), ("kept", -0.1)),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, value):
    with pytest.raises(InputError, match=f"^{setting} = "):
        FedAF(**{setting: value})
