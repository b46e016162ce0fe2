import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from fedlag.errors import InputError
from fedlag.net import Model, Net, join, split

torch.set_num_threads(1)


class Nested(nn.Module):
    """A module as users write them: the classifier's last layer computes the scores."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.classifier = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x):
        return self.classifier(self.scale * self.stem(x).mean(dim=(2, 3)))


def images(*leading):
    return torch.randn(*leading, 1, 5, 5, generator=torch.Generator().manual_seed(0))


def normalised(norm):
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(25, 4), norm, nn.ReLU()), nn.Linear(4, 3))


def moved(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def stack(params, clients):
    return {name: value.expand(clients, *value.shape).clone() for name, value in params.items()}


# split and join


@pytest.mark.parametrize(
    ("module", "head"),
    [
        (Nested(), "classifier.2"),
        (Nested(), "classifier"),
        (nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(25, 4), nn.ReLU()), nn.Linear(4, 3)), "2"),
        (nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(25, 4), nn.ReLU(), nn.Linear(4, 3))), "1.2"),
    ],
)
def test_split_computes_what_the_module_computes_and_join_gives_its_names_back(module, head):
    module.eval()
    x = images(7)
    net = split(module, head)
    assert torch.equal(net(x), module(x))

    model = Model(net)
    assert all(name.startswith(("body.", "head.")) for name in model.init())
    joined = join(model.init(), head)
    own = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
    assert joined.keys() == own.keys()
    assert not moved(own, joined)


def test_joined_weights_load_into_the_module_they_came_from():
    module = Nested().eval()
    model = Model(split(module, "classifier.2"))
    model.eval()
    params = {name: value + 0.1 for name, value in model.init().items()}
    module.load_state_dict(join(params, "classifier.2"), strict=False)
    assert torch.equal(module(images(7)), model(params, images(7)))


def test_join_leaves_out_what_an_algorithm_added():
    assert join({"head.bias": torch.ones(1), "second.bias": torch.ones(1)}, "fc").keys() == {"fc.bias"}


def test_split_leaves_the_module_as_it_was():
    module = Nested()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    net = split(module, "classifier.2")
    with torch.no_grad():
        net.head.weight.zero_()
        net.body.scale.zero_()
    assert isinstance(module.classifier[2], nn.Linear)
    assert module.state_dict().keys() == before.keys()
    assert not moved(before, module.state_dict())


def test_an_unknown_head_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"classifier\.3.*Did you mean 'classifier\.2'"):
        split(Nested(), "classifier.3")


# The functions


def test_features_classify_and_call_agree_with_the_module():
    net = split(Nested(), "classifier.2").eval()
    model = Model(net)
    model.eval()
    params, x = model.init(), images(7)
    assert torch.equal(model.features(params, x), net.body(x))
    assert torch.equal(model.classify(params, net.body(x)), net(x))
    assert torch.equal(model(params, x), net(x))


def test_the_values_passed_decide_and_other_names_are_ignored():
    model = Model(normalised(nn.Identity()))
    params = {name: torch.zeros_like(value) for name, value in model.init().items()}
    params["head.bias"] = torch.tensor([1.0, 2.0, 3.0])
    scores = model({**params, "second.weight": torch.ones(2)}, images(2))
    assert torch.equal(scores, params["head.bias"].expand(2, 3))


def test_a_missing_value_is_never_replaced_by_the_templates():
    model = Model(normalised(nn.BatchNorm1d(4)))
    params = model.init()
    del params["body.2.running_mean"]
    with pytest.raises(KeyError, match=r"body\.2\.running_mean"):
        model(params, images(2))


def test_init_gives_copies():
    net = normalised(nn.BatchNorm1d(4))
    model = Model(net)
    for value in model.init().values():
        value.fill_(7.0)
    assert not moved(model.init(), net.state_dict())


# Names


def test_names_are_parameters_then_statistics_and_never_counters():
    model = Model(normalised(nn.BatchNorm1d(4)))
    assert model.statistic_names == ("body.2.running_mean", "body.2.running_var")
    assert tuple(model.init()) == model.parameter_names + model.statistic_names
    assert all(value.is_floating_point() for value in model.init().values())


def test_frozen_parameters_are_statistics():
    net = normalised(nn.Identity())
    net.body[1].weight.requires_grad_(False)
    model = Model(net)
    assert model.statistic_names == ("body.1.weight",)
    assert "body.1.weight" not in model.parameter_names


def test_buffers_that_are_no_state_are_left_out():
    net = normalised(nn.Identity())
    net.body[2].register_buffer("mask", torch.full((4,), -torch.inf), persistent=False)
    net.body[2].register_buffer("kept", torch.ones(4))
    assert Model(net).statistic_names == ("body.2.kept",)


# Training mode


def test_training_moves_the_statistics_passed_and_nothing_of_the_network_given():
    net = normalised(nn.BatchNorm1d(4)).eval()
    given = {name: value.clone() for name, value in net.state_dict().items()}
    model = Model(net)
    before, params = model.init(), model.init()
    model.train(params)
    model(params, images(6))
    assert moved(before, params) == {"body.2.running_mean", "body.2.running_var"}
    assert not moved(before, model.init())
    assert not moved(given, net.state_dict())
    assert not any(module.training for module in net.modules())


def test_statistics_move_as_the_module_would_have_moved_its_own():
    net = normalised(nn.BatchNorm1d(4))
    model = Model(net)
    params = model.init()
    model.train(params)
    model(params, images(6))
    net(images(6))
    assert not moved(params, net.state_dict())


def test_frozen_modules_use_their_statistics_and_do_not_move_them():
    model = Model(normalised(nn.BatchNorm1d(4)))
    params = model.init()
    model.train(["head.weight", "head.bias"])
    scores = model(params, images(6))
    assert not moved(model.init(), params)
    model.eval()
    assert torch.equal(scores, model(params, images(6)))


def test_a_norm_whose_parameters_need_no_gradient_stays_frozen():
    norm = nn.BatchNorm1d(4)
    norm.requires_grad_(False)
    model = Model(normalised(norm))
    params = model.init()
    model.train(params)
    model(params, images(6))
    assert not moved(model.init(), params)


@pytest.mark.parametrize("affine", [True, False])
def test_statistics_that_are_not_named_do_not_move_and_those_that_are_do(affine):
    model = Model(normalised(nn.BatchNorm1d(4, affine=affine)))
    params = model.init()
    model.train(model.parameter_names)
    model(params, images(6))
    assert not moved(model.init(), params)
    model.train(model.statistic_names)
    model(params, images(6))
    assert moved(model.init(), params) == set(model.statistic_names)


def test_dropout_drops_while_anything_trains_and_not_in_evaluation():
    model = Model(normalised(nn.Dropout(0.99)))
    model.train(["head.weight"])
    assert model.net.body[2].training
    model.eval()
    assert not model.net.body[2].training


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.GroupNorm(2, 4)])
def test_gradients_by_transform_and_for_many_clients_at_once_are_those_of_autograd(norm):
    model = Model(normalised(norm).double())
    model.train(model.init())
    x = images(3, 6).double()

    def gradient(params, x):
        trained = {name: params[name] for name in model.parameter_names}
        return grad(lambda moving: model({**params, **moving}, x).square().mean())(trained)

    stacked = stack(model.init(), clients=3)
    together = vmap(gradient)(stacked, x)
    for client in range(3):
        alone = model.init()
        leaves = [alone[name].requires_grad_() for name in model.parameter_names]
        expected = torch.autograd.grad(model(alone, x[client]).square().mean(), leaves)
        for name, value in zip(model.parameter_names, expected, strict=True):
            torch.testing.assert_close(together[name][client], value)
        for name in model.statistic_names:
            torch.testing.assert_close(stacked[name][client], alone[name])


# Refusals


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4, momentum=None), nn.BatchNorm2d(4, momentum=None)])
def test_a_norm_that_averages_by_counting_is_refused(norm):
    with pytest.raises(InputError, match=r"'body\.2'.*momentum=None"):
        Model(normalised(norm))


def test_parameters_shared_between_body_and_head_are_refused():
    net = Net(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
    net.head.weight = net.body[0].weight
    with pytest.raises(InputError, match=r"share body\.0\.weight"):
        Model(net)


def test_another_model_shares_values_and_nothing_else():
    model = Model(Net(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3)), nn.Linear(3, 2)))
    twin, params, x = model.another(), model.init(), torch.randn(5, 1, 2, 2)
    assert twin.net.head.weight is model.net.head.weight
    model.eval()
    twin.train(model.parameter_names)
    assert not model.net.head.training
    assert twin.net.head.training
    twin.eval()
    changed = {name: value + 1 for name, value in params.items()}
    before = model(params, x)
    twin(changed, x)
    assert torch.equal(model(params, x), before)
    assert torch.equal(twin(changed, x), model(changed, x))
