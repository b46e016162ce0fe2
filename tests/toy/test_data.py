import pytest
import torch

from fedlag.toy.data import DOMAINS, GAP_X, GAP_Y, NOISE, POINTS, everybody, iid, non_iid

SEEDS = (0, 1, 2)


def rows(users):
    """All points as a set of (x, y, class)."""
    points, label = everybody(users)
    return {(*point, number) for point, number in zip(points.tolist(), label.tolist(), strict=True)}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_user_has_200_points_half_of_either_class(seed):
    for user in non_iid(seed):
        assert user.x.shape == (POINTS, 2)
        assert torch.bincount(user.y).tolist() == [POINTS // 2, POINTS // 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_point_obeys_the_vertical_line_of_its_domain(seed):
    for domain, (points, label) in zip(DOMAINS, non_iid(seed), strict=True):
        along = domain.side * (points[:, 0] - domain.centre)
        assert torch.equal(along > 0, label == 1)
        assert ((along.abs() >= GAP_X) & (along.abs() <= domain.half_width)).all()
        assert (points[:, 1].abs() <= domain.height).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_only_noisy_points_may_be_on_the_wrong_side_of_the_horizontal_line(seed):
    noisy = round(NOISE * POINTS / 2)
    for points, label in non_iid(seed):
        for number, side in ((0, -1), (1, +1)):
            heights = side * points[label == number, 1]
            assert (heights >= GAP_Y).sum() >= POINTS // 2 - noisy
            assert 0 < (heights < 0).sum() <= noisy


def test_iid_users_are_dealt_the_same_points():
    apart, dealt = non_iid(0), iid(0)
    assert rows(apart) == rows(dealt)
    assert len(rows(dealt)) == 4 * POINTS
    assert [len(user.y) for user in dealt] == [POINTS] * 4
    for user in dealt:  # a fair deal gives everyone points of every domain
        assert torch.histc(user.x[:, 0], bins=4, min=-8, max=8).min() > POINTS // 8


@pytest.mark.parametrize("make", [non_iid, iid])
def test_points_depend_on_the_seed_alone(make):
    assert all(torch.equal(one.x, same.x) for one, same in zip(make(3), make(3), strict=True))
    assert not torch.equal(make(3)[0].x, make(4)[0].x)
