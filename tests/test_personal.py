"""The fixed rules, and rules together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import ALL, conv, mlp, replies, run, same

from fedlag.algorithms import FedAvg
from fedlag.errors import InputError
from fedlag.lag import LAG
from fedlag.layers import anatomy, group
from fedlag.net import Model
from fedlag.personal import First, Last, Middle, Named, Nothing, RandomLayers, WarmStart

law = settings(deadline=None)  # a busy machine is no counterexample

MLP, CONV = (anatomy(model, model.init()) for model in (Model(mlp()), Model(conv())))
LAYERS = [set(layer.names) for layer in group(CONV)]  # body.0 with its BatchNorm, body.5, head


def personal(rule, anatomy=CONV):
    return rule.personal(rule.init(anatomy))


def after(rule, rounds, anatomy=CONV, moved=None):
    """What is personal from each round on, when everybody reports everything."""
    state, decided = rule.init(anatomy), []
    for round in range(rounds):
        decided.append(rule.personal(state))
        updates = moved or {name: torch.randn(3, 2) for name in anatomy.names}
        state, _ = rule.update(state, replies(updates), round)
    return [*decided, rule.personal(state)]


def test_nothing_is_personal_by_default():
    assert after(Nothing(), 3) == [set()] * 4


def test_named_is_what_matches():
    assert personal(Named("head.*")) == {"head.weight", "head.bias"}
    assert personal(Named("*.bias *running_mean")) == {
        *("body.0.bias", "body.1.bias", "body.5.bias", "head.bias", "body.1.running_mean")
    }
    assert personal(Named("*")) == set(CONV.names)


def test_a_pattern_that_matches_nothing_is_refused_with_the_names_there_are():
    with pytest.raises(InputError, match=r"'haed.\*' matches no parameter of this model; there are body.0.weight, "):
        personal(Named("haed.*"))


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [
        *((First(0), []), (First(1), [0]), (First(2), [0, 1]), (First(9), [0, 1, 2])),
        *((Last(0), []), (Last(1), [2]), (Last(2), [1, 2]), (Last(9), [0, 1, 2])),
        *((Middle(0), []), (Middle(1), [1]), (Middle(2), [0, 1]), (Middle(3), [0, 1, 2]), (Middle(9), [0, 1, 2])),
    ],
)
def test_first_last_and_middle_take_whole_layers_with_what_is_attached(rule, chosen):
    assert personal(rule) == set().union(*(LAYERS[place] for place in chosen))
    assert rule.held(CONV) == rule.reach(CONV) == personal(rule)


@pytest.mark.parametrize("make", [First, Last, Middle, lambda k: RandomLayers(k=k), lambda k: LAG(k=k)])
@pytest.mark.parametrize("k", [-1, 1.0, True, "two", None])
def test_k_is_a_whole_number(make, k):
    with pytest.raises(InputError, match=r"k = .* whole number from 0 upwards"):
        make(k)


@pytest.mark.parametrize("rule", [Named("head.*"), First(1), Last(2), Middle(1)])
def test_fixed_rules_hold_in_every_round_and_watch_nothing(rule):
    assert after(rule, 3) == [personal(rule)] * 4
    assert rule.watched(rule.init(CONV)) == set()


def test_a_warm_start_makes_everything_personal_from_round_warmup_on():
    assert after(WarmStart(warmup=2), 4) == [set(), set(), *[set(CONV.names)] * 3]
    assert after(WarmStart(warmup=0), 1) == [set(CONV.names)] * 2
    rule = WarmStart(warmup=1)
    assert rule.reach(CONV) == set(CONV.names)
    assert rule.watched(rule.init(CONV)) == rule.held(CONV) == set()


def test_a_warm_start_is_fedavg_and_then_training_alone():
    done = run(FedAvg(personal=WarmStart(warmup=2)), sampling=ALL, number=4)
    fedavg = run(FedAvg(), sampling=ALL, number=2)
    assert same(done.rounds[0].server.params, fedavg.rounds[0].server.params)
    assert same(done.rounds[1].server.params, fedavg.server.params)
    assert [bool(one.message.shared) for one in done.rounds] == [True, True, False, False]
    assert same(done.server.params, fedavg.server.params), "the server's copy stays where the warm start ended"
    for client, kept in done.federation.clients().items():
        assert not same(kept.params, done.federation.clients()[(client + 1) % 5].params)


def test_random_layers_are_k_whole_layers_drawn_anew_from_the_warm_up_on():
    decided = after(RandomLayers(k=2, warmup=3), 23)
    assert decided[:4] == [set()] * 4
    pairs = [LAYERS[a] | LAYERS[b] for a, b in ((0, 1), (0, 2), (1, 2))]
    assert all(one in pairs for one in decided[4:])
    assert all(pair in decided for pair in pairs)


def test_random_layers_do_not_depend_on_what_moved_but_on_seed_and_round():
    first, second = (after(RandomLayers(k=1, warmup=0), 12) for _ in range(2))
    assert first == second
    assert after(RandomLayers(k=1, warmup=0, seed=1), 12) != first
    assert after(RandomLayers(k=0, warmup=0), 3) == [set()] * 4
    assert after(RandomLayers(k=9, warmup=0), 1) == [set(), set(CONV.names)]


def test_random_layers_are_watched_as_lag_s_are():
    rule = RandomLayers(k=1, warmup=0)
    state, _ = rule.update(rule.init(CONV), replies({name: torch.ones(2, 1) for name in CONV.names}), 0)
    assert rule.watched(state) == rule.personal(state) != set()
    assert rule.reach(CONV) == set(CONV.names)


# Together

patterns = st.sets(st.sampled_from(["head.*", "*.bias", "body.0.*", "body.5.weight", "*running*"]), min_size=1)
fixed = st.one_of(
    patterns.map(lambda some: Named(" ".join(sorted(some)))),
    st.builds(First, st.integers(0, 3)),
    st.builds(Last, st.integers(0, 3)),
    st.builds(Middle, st.integers(0, 3)),
    st.just(Nothing()),
)


@law
@given(one=fixed, other=fixed, third=fixed)
def test_a_union_of_fixed_rules_is_the_union_whatever_the_order(one, other, third):
    expected = personal(one) | personal(other) | personal(third)
    assert personal(one | other | third) == personal(third | (other | one)) == expected
    assert (one | other | third).held(CONV) == expected


@law
@given(one=fixed, other=fixed, k=st.integers(0, 3), seed=st.integers(0, 9))
def test_a_union_commutes_in_what_it_decides(one, other, k, seed):
    updates = {name: torch.randn(4, 2, generator=torch.Generator().manual_seed(seed)) for name in CONV.names}
    free = {name: value for name, value in updates.items() if name not in personal(one | other)}
    for rule in (LAG(k=k, warmup=0), RandomLayers(k=k, warmup=0), LAG(k=k, warmup=1, mode="frozen")):
        unions = [one | other | rule, rule | one | other, other | (rule | one), one | (other | rule)]
        decided = [after(union, 2, moved=free) for union in unions]
        assert decided[0] == decided[1] == decided[2] == decided[3]


@pytest.mark.parametrize(
    "union",
    [
        Named("head.*") | LAG(k=1, warmup=0),
        LAG(k=1, warmup=0) | Named("head.*"),
        Named("head.*") | RandomLayers(k=1, warmup=0),
        RandomLayers(k=1, warmup=0) | Named("head.*"),
    ],
    ids=repr,
)
def test_what_one_rule_holds_the_other_does_not_count_among_its_k(union):
    conflict = {name: torch.tensor([[1.0], [-1.0]]) for name in CONV.names if not name.startswith("head")}
    for decided in after(union, 8, moved=conflict)[1:]:
        assert decided in (LAYERS[0] | LAYERS[2], LAYERS[1] | LAYERS[2])


@pytest.mark.parametrize("rule", [LAG(k=1, warmup=0), RandomLayers(k=1, warmup=0)], ids=repr)
@pytest.mark.parametrize(
    "union",
    [
        lambda rule: Named("head.*") | rule | First(1),
        lambda rule: First(1) | (rule | Named("head.*")),
        lambda rule: (Named("head.*") | First(1)) | rule,
        lambda rule: rule | (Named("head.*") | First(1)),
    ],
)
def test_a_union_of_unions_hides_what_any_part_holds(union, rule):
    conflict = {name: torch.tensor([[1.0], [-1.0]]) for name in LAYERS[1]}
    assert after(union(rule), 2, moved=conflict)[1:] == [set(CONV.names)] * 2


def test_lag_that_holds_the_normalisation_still_does_not_see_what_another_holds():
    conflict = {name: torch.tensor([[1.0], [-1.0]]) for name in ("body.0.weight", "body.0.bias")}
    conflict |= {name: torch.ones(2, 1) for name in ("body.5.weight", "body.5.bias")}
    (_, decided) = after(Named("head.*") | LAG(k=2, warmup=0, norm="local"), 1, moved=conflict)
    assert decided == LAYERS[0] | LAYERS[2]


def test_a_union_watches_what_its_parts_watch():
    rule = Named("head.*") | LAG(k=1, warmup=0)
    conflict = {name: torch.tensor([[1.0], [-1.0]]) for name in LAYERS[0] | LAYERS[1]}
    state, seen = rule.update(rule.init(CONV), replies(conflict), 0)
    assert rule.watched(state) == LAYERS[0]
    assert rule.personal(state) == LAYERS[0] | LAYERS[2]
    assert seen.keys() == {"body.0", "body.5"}
    assert rule.held(CONV) == LAYERS[2]
    assert rule.reach(CONV) == set(CONV.names)


@pytest.mark.parametrize(
    "rule",
    [
        WarmStart(warmup=1) | LAG(k=1, warmup=0),
        LAG(k=1, warmup=0) | WarmStart(warmup=1),
        LAG(k=1, warmup=1, mode="frozen") | LAG(k=2, warmup=0),
        LAG(k=1, warmup=1, mode="frozen") | LAG(k=1, warmup=2, mode="frozen"),
        LAG(k=1, warmup=1, mode="frozen") | RandomLayers(k=1, warmup=0) | Named("head.*"),
    ],
    ids=repr,
)
def test_rules_that_keep_layers_to_the_clients_get_on_with_rules_that_measure(rule):
    done = run(FedAvg(personal=rule), sampling=ALL)
    assert all(one.step.personal for one in done.rounds)
