"""What a layer is."""

import pytest
import torch
from torch import nn

from fedlag.errors import InputError
from fedlag.layers import Anatomy, Layer, anatomy, group, normalisation, without
from fedlag.net import Model, Net


def of(body, head=None, extra=()):
    model = Model(Net(body, head or nn.Linear(4, 2)))
    return anatomy(model, (*model.init(), *extra))


def names(layers):
    return [layer.name for layer in layers]


class Block(nn.Module):
    """Two convolutions, and a shortcut with a normalisation of its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2))
        self.shortcut = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, affine=False))

    def forward(self, x):
        return (self.second(self.first(x)) + self.shortcut(x)).mean((2, 3))


def norm(prefix, affine=True):
    scale = (f"{prefix}.weight", f"{prefix}.bias") if affine else ()
    return (*scale, f"{prefix}.running_mean", f"{prefix}.running_var")


ATTACHED = (
    Layer("body.first.0", ("body.first.0.weight",), norm("body.first.1")),
    Layer("body.second.0", ("body.second.0.weight",), norm("body.second.1")),
    Layer(
        "body.shortcut.0",
        ("body.shortcut.0.weight", "body.shortcut.0.bias"),
        norm("body.shortcut.1", affine=False),
    ),
    Layer("head", ("head.weight", "head.bias")),
)


def test_a_layer_is_a_module_with_its_own_parameters_and_the_normalisation_after_it_in_order_of_registration():
    assert group(of(Block(), nn.Linear(2, 2))) == ATTACHED


@pytest.mark.parametrize("norm_policy", ["share", "local"])
def test_normalisation_may_be_left_out(norm_policy):
    block = of(Block(), nn.Linear(2, 2))
    assert group(block, norm=norm_policy) == tuple(layer._replace(attached=()) for layer in ATTACHED)


def test_normalisation_may_be_layers_of_its_own_if_it_has_parameters():
    layers = group(of(Block(), nn.Linear(2, 2)), norm="candidate")
    assert names(layers) == [
        *("body.first.0", "body.first.1", "body.second.0", "body.second.1", "body.shortcut.0", "head")
    ]
    scale = ("body.first.1.weight", "body.first.1.bias")
    assert layers[1] == Layer("body.first.1", scale, ("body.first.1.running_mean", "body.first.1.running_var"))


def test_every_name_of_a_normalisation_is_known():
    expected = {*norm("body.first.1"), *norm("body.second.1"), *norm("body.shortcut.1", affine=False)}
    assert normalisation(of(Block(), nn.Linear(2, 2))) == expected


def test_a_layer_may_be_a_single_tensor_and_the_normalisation_follows_the_first_of_its_module():
    layers = group(of(Block(), nn.Linear(2, 2)), unit="tensor")
    assert names(layers) == [
        *("body.first.0.weight", "body.second.0.weight"),
        *("body.shortcut.0.weight", "body.shortcut.0.bias", "head.weight", "head.bias"),
    ]
    assert all(layer.scored == (layer.name,) for layer in layers)
    assert layers[0].attached == norm("body.first.1")
    assert layers[2].attached == norm("body.shortcut.1", affine=False)
    assert layers[3].attached == ()


def test_own_groups_take_their_parameters_by_pattern_and_statistics_follow():
    layers = group(of(Block(), nn.Linear(2, 2)), unit={"block": "body.*", "classifier": "head.weight"})
    assert names(layers) == ["block", "classifier"]
    assert layers[1] == Layer("classifier", ("head.weight",))
    assert "body.shortcut.1.running_var" in layers[0].attached
    assert "body.first.1.weight" in layers[0].scored
    assert not set(layers[0].scored) & set(layers[0].attached)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a": "nothing.*"}, "'a' = 'nothing.*' matches no parameter"),
        ({"a": "body.*", "b": "*.weight"}, "is in two groups, 'a' and 'b'"),
        ({"a": "*running_mean"}, "matches no parameter"),
    ],
)
def test_groups_that_are_empty_or_overlap_are_refused(groups, message):
    with pytest.raises(InputError) as error:
        group(of(Block(), nn.Linear(2, 2)), unit=groups)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"), [({"unit": "neuron"}, "unit = 'neuron'"), ({"norm": "no"}, "norm = 'no'")]
)
def test_unknown_units_and_policies_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        group(of(Block(), nn.Linear(2, 2)), **settings)


def test_modules_without_trainable_parameters_are_no_layers():
    frozen = nn.Linear(4, 4).requires_grad_(False)
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Dropout(), frozen, nn.AvgPool1d(1))
    assert names(group(of(body))) == ["body.1", "head"]


@pytest.mark.parametrize(
    "layer",
    [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.RMSNorm(4)],
    ids=lambda layer: type(layer).__name__,
)
def test_every_kind_of_normalisation_is_attached(layer):
    (first, head) = group(of(nn.Sequential(nn.Linear(4, 4), layer)))
    assert set(first.attached) >= {"body.1.weight"}
    assert head == Layer("head", ("head.weight", "head.bias"))


def test_several_normalisations_follow_the_same_layer_and_one_before_all_layers_follows_none():
    body = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.LayerNorm(4))
    anatomy = of(body)
    (first, _) = group(anatomy)
    assert first.attached == ("body.2.weight", "body.2.bias", "body.4.weight", "body.4.bias")
    assert {"body.0.weight", "body.0.bias"} < normalisation(anatomy)


def test_a_module_s_own_statistics_and_direct_parameters_belong_to_it():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.register_buffer("level", torch.zeros(1))
            self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x) * self.scale

    layers = group(of(Scaled()))
    assert layers[0] == Layer("body", ("body.scale",), ("body.level",))
    assert names(layers) == ["body", "body.inner", "head"]


def test_a_shared_parameter_belongs_to_its_first_owner():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 4)
            self.two = nn.Linear(4, 4)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(self.one(x))

    first, second, _ = group(of(Twice()))
    assert first == Layer("body.one", ("body.one.weight", "body.one.bias"))
    assert second == Layer("body.two", ("body.two.bias",))


def test_layers_are_disjoint_and_cover_every_name():
    anatomy = of(Block(), nn.Linear(2, 2))
    for settings in ({}, {"unit": "tensor"}, {"norm": "candidate", "unit": "tensor"}):
        covered = [name for layer in group(anatomy, **settings) for name in layer.names]
        assert len(set(covered)) == len(covered)
        missing = set(anatomy.names) - set(covered)
        assert missing == (set() if "norm" not in settings else set(norm("body.shortcut.1", affine=False)))


def test_what_an_algorithm_adds_has_a_name_and_is_no_layer():
    anatomy = of(nn.Linear(4, 4), extra=("personal.weight",))
    assert "personal.weight" in anatomy.names
    assert names(group(anatomy)) == ["body", "head"]


def test_without_names_their_layers_are_gone_and_normalisation_follows_what_is_left():
    anatomy = of(Block(), nn.Linear(2, 2))
    rest = without(anatomy, {"body.second.0.weight", "head.bias"})
    first, shortcut, head = group(rest)
    assert first.attached == norm("body.first.1") + norm("body.second.1")
    assert head == Layer("head", ("head.weight",))
    assert shortcut.name == "body.shortcut.0"
    assert "head.bias" not in rest.names
    assert without(anatomy, anatomy.names) == Anatomy((), ())
