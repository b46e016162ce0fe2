"""What methods add to a model starts from numbers that depend on its name and the seed alone."""

import pytest
import torch
from laws.federations import same
from torch import nn

from fedlag.errors import InputError
from fedlag.initial import head_weight, linear, normal
from fedlag.net import Model, Net

LIKE = torch.zeros(400, 50)


def test_the_same_name_and_seed_give_the_same_numbers_and_others_give_others():
    assert torch.equal(normal("a", LIKE, 0), normal("a", LIKE, 0))
    assert same(linear("a", 5, 3, LIKE, 0), linear("a", 5, 3, LIKE, 0))
    for other in (normal("b", LIKE, 0), normal("a", LIKE, 1)):
        correlation = torch.corrcoef(torch.stack([normal("a", LIKE, 0).flatten(), other.flatten()]))[0, 1]
        assert abs(correlation) < 0.05


def test_drawing_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    normal("a", LIKE, 0)
    linear("a", 5, 3, LIKE, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_normal_draw_has_mean_zero_and_variance_one():
    drawn = normal("a", LIKE, 0)
    assert drawn.shape == LIKE.shape
    assert abs(drawn.mean()) < 0.03
    assert abs(drawn.var() - 1) < 0.03


def test_a_linear_layer_starts_as_pytorch_s_own():
    drawn = linear("layer", 400, 300, LIKE, 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.Linear(400, 300)
    for name, value in layer.named_parameters():
        ours = drawn[f"layer.{name}"]
        assert ours.shape == value.shape
        assert ours.abs().max() <= 1 / 20
        assert ours.std() == pytest.approx(value.std().item(), rel=0.1)


def test_precision_is_that_of_the_model():
    assert normal("a", LIKE.double(), 0).dtype == torch.float64
    assert {value.dtype for value in linear("a", 5, 3, LIKE.double(), 0).values()} == {torch.float64}


def test_the_head_tells_classes_and_features():
    model = Model(Net(nn.Flatten(), nn.Linear(7, 3)))
    assert head_weight(model.init()).shape == (3, 7)


@pytest.mark.parametrize(
    ("head", "named"),
    [(nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3)), "head.0.weight"), (nn.Identity(), "no parameters")],
)
def test_a_head_of_several_layers_is_refused_by_name(head, named):
    params = Model(Net(nn.Sequential(nn.Flatten(), nn.Linear(7, 7)), head)).init()
    with pytest.raises(InputError, match=named):
        head_weight(params)
