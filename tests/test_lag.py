"""LAG chooses the layers with most conflicts. (How conflicts are counted: test_divergence.)"""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import ALL, Wrapped, conv, mlp, replies, run, same

from fedlag import tree
from fedlag.algorithms import FedAvg
from fedlag.errors import InputError
from fedlag.lag import LAG
from fedlag.layers import Anatomy, Module, anatomy
from fedlag.net import Model

law = settings(deadline=None)  # a busy machine is no counterexample

LETTERS = ("a", "b", "c", "d")
ANATOMY = Anatomy(
    tuple(Module((f"{letter}.weight", f"{letter}.bias"), (), False) for letter in LETTERS),
    tuple(f"{letter}.{kind}" for letter in LETTERS for kind in ("weight", "bias")),
)


def with_conflicts(count):
    """Updates of four clients with so many conflicting pairs: 0, 3, 4 (signs) or 1 of 6."""
    signs = {0: [1, 1, 1, 1], 3: [1, 1, 1, -1], 4: [1, 1, -1, -1]}
    if count == 1:  # the two ends of a fan are more than a right angle apart
        return torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.5, 1.0], [-0.2, 1.0]])
    return torch.tensor(signs[count])[:, None] * torch.tensor([[3.0, 1.0]])


def moved(**counts):
    """Updates in which the layers have so many conflicts; those not named have none."""
    return {
        name: with_conflicts(counts.get(letter, 0))
        for letter in LETTERS
        for name in (f"{letter}.weight", f"{letter}.bias")
    }


def decide(rule, *updates):
    """The layers personal after each round of updates."""
    state, decided = rule.init(ANATOMY), []
    for round, update in enumerate(updates):
        state, _ = rule.update(state, replies(update), round)
        decided.append("".join(sorted({name[0] for name in rule.personal(state)})))
    return decided


def lag(**settings):
    return LAG(**{"k": 1, "warmup": 0, **settings})


def test_the_updates_of_this_file_have_the_conflicts_they_say():
    for count in (0, 1, 3, 4):
        _, seen = lag().update(lag().init(ANATOMY), replies(moved(a=count)), 0)
        assert (seen["a"].count, seen["b"].count) == (count, 0)
        assert seen["a"].pairs == 6


def test_the_k_layers_with_most_conflicts_are_personal():
    update = moved(a=1, b=4, c=3)
    assert [decide(lag(k=k), update) for k in range(5)] == [[""], ["b"], ["bc"], ["abc"], ["abc"]]


def test_a_layer_without_conflicts_is_never_personal_whatever_k_is():
    assert decide(lag(k=4), moved()) == [""]
    assert decide(lag(k=4), moved(d=1)) == ["d"]


def test_ties_go_to_the_lower_mean_cosine_and_then_to_the_earlier_layer():
    wide, narrow = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([[1.0, 0.0], [-0.1, 1.0]])
    both = dict.fromkeys(moved(), narrow)
    assert decide(lag(), both) == ["a"]
    assert decide(lag(k=2), both) == ["ab"]
    assert decide(lag(), both | {"c.weight": wide, "c.bias": wide}) == ["c"]
    assert decide(lag(k=2), both | {"c.weight": wide, "c.bias": wide}) == ["ac"]


@law
@given(data=st.data())
def test_the_choice_is_that_of_the_paper_pair_by_pair(data):
    k, clients = data.draw(st.integers(0, 4)), data.draw(st.integers(2, 5))
    xi, ratio = data.draw(st.sampled_from([0.0, -0.3, -0.7])), data.draw(st.sampled_from([0.0, 0.25, 0.5]))
    values = st.lists(st.integers(-2, 2), min_size=2 * clients, max_size=2 * clients)
    update = {name: torch.tensor(data.draw(values)).float().reshape(clients, 2) for name in ANATOMY.names}

    scores = {}
    for place, letter in enumerate(LETTERS):
        vectors = torch.cat([update[f"{letter}.weight"], update[f"{letter}.bias"]], dim=1).double()
        cosines = [
            float(a @ b / (a.norm() * b.norm())) if a.norm() * b.norm() > 0 else 0.0
            for a, b in combinations(vectors, 2)
        ]
        count = sum(cosine < xi for cosine in cosines)
        if any(abs(cosine - xi) < 1e-9 for cosine in cosines) and xi:
            return  # on the border rounding decides
        if count > ratio * len(cosines):
            scores[letter] = (-count, round(sum(cosines), 9), place)
    expected = "".join(sorted(sorted(scores, key=scores.get)[:k]))
    ties = {score[:2] for score in scores.values()}
    if len(ties) == len(scores):  # equal sums of cosines may differ in the last bit
        assert decide(lag(k=k, xi=xi, min_ratio=ratio), update) == [expected]


def test_the_order_of_clients_and_the_length_of_their_steps_change_nothing():
    update = moved(a=3, b=1, c=4)
    permuted = tree.map(lambda value: value[[2, 0, 3, 1]], update)
    scaled = tree.map(lambda value: value * torch.tensor([[7.0], [1.0], [0.1], [3.0]]), update)
    flipped = tree.scale(update, -1.0)
    assert decide(lag(k=2), update) == decide(lag(k=2), permuted) == decide(lag(k=2), scaled) == ["ac"]
    assert decide(lag(k=2), flipped) == ["ac"]


def test_in_the_warm_up_nothing_is_personal():
    update = moved(a=4)
    assert decide(lag(warmup=2), update, update, update) == ["", "", "a"]
    assert decide(lag(warmup=0), update) == ["a"]


def test_conflicts_are_measured_in_the_warm_up_too():
    rule = lag(warmup=5)
    _, seen = rule.update(rule.init(ANATOMY), replies(moved(a=3)), 0)
    assert {name: conflict.count for name, conflict in seen.items()} == {"a": 3, "b": 0, "c": 0, "d": 0}


def test_dynamic_forgets_what_was_before():
    assert decide(lag(), moved(a=4), moved(b=1), moved(), moved(c=3, a=1)) == ["a", "b", "", "c"]


def test_fewer_than_two_replies_leave_everything_as_it_was():
    alone = {name: value[:1] for name, value in moved().items()}
    assert decide(lag(), moved(a=4), alone, moved(b=4)) == ["a", "a", "b"]
    rule = lag()
    state = rule.init(ANATOMY)
    assert rule.update(state, replies(alone), 0) == (state, {})


def test_a_share_of_all_pairs_may_be_required():
    update = moved(a=1, b=3, c=4)  # of 6 pairs
    assert decide(lag(k=4, min_ratio=0.0), update) == ["abc"]
    assert decide(lag(k=4, min_ratio=1 / 6), update) == ["bc"], "more than the share, not as much"
    assert decide(lag(k=4, min_ratio=0.5), update) == ["c"]
    assert decide(lag(k=4, min_ratio=0.7), update) == [""]


@pytest.mark.parametrize(("hold", "stays"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_a_layer_that_entered_stays_for_hold_rounds_at_least(hold, stays):
    decided = decide(lag(hold=hold), moved(a=4), *[moved(b=4)] * 5)
    assert decided == ["a"] * stays + ["b"] * (6 - stays)


def test_held_layers_count_among_the_k_and_count_anew_when_they_enter_again():
    decided = decide(lag(k=2, hold=2), moved(a=4, b=3), moved(c=4, d=4), moved(c=4, d=4), moved(a=1), moved(b=1))
    assert decided == ["ab", "ab", "cd", "cd", "b"]
    decided = decide(lag(k=1, hold=2), *(moved(**{letter: 4}) for letter in "aabbba"))
    assert decided == ["a", "a", "b", "b", "b", "a"]


# Frozen


def frozen(**settings):
    return lag(**{"mode": "frozen", "warmup": 3, **settings})


def test_frozen_adds_conflicts_up_over_the_warm_up_and_chooses_for_good():
    rounds = [moved(a=4), moved(b=3, c=1), moved(b=3, c=4), moved(d=4), moved(d=4)]
    assert decide(frozen(), *rounds) == ["", "", "b", "b", "b"]
    assert decide(frozen(k=2), *rounds) == ["", "", "bc", "bc", "bc"]
    assert decide(frozen(k=4), *rounds) == ["", "", "abc", "abc", "abc"]


def test_frozen_never_takes_a_layer_without_conflicts():
    assert decide(frozen(k=4), *[moved()] * 3, moved(a=4)) == [""] * 4


def test_frozen_ties_go_to_the_lower_sum_of_cosines():
    wide, narrow = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([[1.0, 0.0], [-0.1, 1.0]])
    both = dict.fromkeys(ANATOMY.names, narrow)
    assert decide(frozen(warmup=2), both, both | {"d.weight": wide, "d.bias": wide}) == ["", "d"]
    assert decide(frozen(warmup=2), both | {"d.weight": wide, "d.bias": wide}, both) == ["", "d"]
    assert decide(frozen(warmup=2), both, both) == ["", "a"]


def test_frozen_requires_a_share_of_the_pairs_of_all_rounds():
    rounds = [moved(a=4, b=4), moved(a=1, b=3)]  # 5 and 7 of 12
    assert decide(frozen(k=2, warmup=2, min_ratio=0.5), *rounds) == ["", "b"]


def test_frozen_watches_nothing_and_measures_nothing_after_the_warm_up():
    rule = frozen(warmup=1)
    state, seen = rule.update(rule.init(ANATOMY), replies(moved(a=4)), 0)
    assert seen.keys() == set(LETTERS)
    assert rule.personal(state) == {"a.weight", "a.bias"}
    assert rule.watched(state) == set()
    shared = {name: value for name, value in moved(b=4).items() if name[0] != "a"}
    after, seen = rule.update(state, replies(shared), 1)
    assert seen == {}
    assert rule.personal(after) == {"a.weight", "a.bias"}


def test_dynamic_watches_what_is_personal():
    rule = lag()
    state, _ = rule.update(rule.init(ANATOMY), replies(moved(a=4)), 0)
    assert rule.watched(state) == rule.personal(state) == {"a.weight", "a.bias"}


def test_frozen_chooses_even_when_the_last_round_of_its_warm_up_says_nothing():
    alone = {name: value[:1] for name, value in moved().items()}
    assert decide(frozen(warmup=2), moved(a=4), alone, alone) == ["", "a", "a"]
    rule = frozen(warmup=2)
    state, _ = rule.update(rule.init(ANATOMY), replies(moved(a=4)), 0)
    state, _ = rule.update(state, replies(moved(b=4)), 2)  # nobody answered in round 1
    assert rule.personal(state) == {"a.weight", "a.bias"}


def test_frozen_does_in_the_warm_up_what_the_bare_method_does():
    done = run(FedAvg(personal=LAG(k=2, warmup=3, mode="frozen")), sampling=ALL, number=3, wrap=Wrapped)
    bare = run(FedAvg(), sampling=ALL, number=3)
    assert same(done.server.params, bare.server.params)
    totals = {name: sum(one.step.conflicts[name].count for one in done.rounds) for name in ("body.0", "body.5", "head")}
    (least,) = (name for name in totals if totals[name] == min(totals.values()))
    assert {name.rpartition(".")[0] for name in done.rounds[-1].step.personal} - {"body.1"} == totals.keys() - {least}


# Layers


def test_what_is_attached_follows_and_does_not_decide():
    model = Model(conv())
    rule = lag()
    state = rule.init(anatomy(model, model.init()))
    same_way = {name: torch.ones(4, 3) for name in model.init()}
    attached = [name for name in same_way if name.startswith("body.1.")]
    torn = {name: with_conflicts(4) for name in attached}
    assert rule.personal(rule.update(state, replies(same_way | torn), 0)[0]) == set()
    torn = {"body.0.weight": with_conflicts(4), "body.0.bias": with_conflicts(4)}
    assert rule.personal(rule.update(state, replies(same_way | torn), 0)[0]) == {*torn, *attached}
    assert len(attached) == 4


@pytest.mark.parametrize(
    ("settings", "candidates"),
    [
        ({}, {"body.0", "body.5", "head"}),
        ({"norm": "candidate"}, {"body.0", "body.1", "body.5", "head"}),
        ({"unit": {"all of it": "body.*"}}, {"all of it"}),
        (
            {"unit": "tensor", "norm": "share"},
            {f"{m}.{t}" for m in ("body.0", "body.5", "head") for t in ("weight", "bias")},
        ),
    ],
)
def test_the_candidates_are_the_layers_of_the_unit_and_the_policy(settings, candidates):
    model = Model(conv())
    rule = lag(**settings)
    state = rule.init(anatomy(model, model.init()))
    _, seen = rule.update(state, replies({name: torch.randn(3, 4) for name in model.init()}), 0)
    assert seen.keys() == candidates


def test_local_normalisation_is_personal_in_every_round_and_no_candidate():
    names = {*(f"body.1.{kind}" for kind in ("weight", "bias", "running_mean", "running_var"))}
    done = run(FedAvg(personal=LAG(k=1, warmup=2, norm="local")), sampling=ALL, number=4, wrap=Wrapped)
    for one, (message, _, _) in zip(done.rounds, done.federation.heard, strict=True):
        assert names <= message.personal
        assert names.isdisjoint(message.watched)
        assert one.step.conflicts.keys() == {"body.0", "body.5", "head"}
    assert len(done.rounds[-1].step.personal) > len(names)


def test_shared_normalisation_is_never_personal():
    done = run(FedAvg(personal=LAG(k=3, warmup=0, norm="share")), sampling=ALL, number=2)
    assert "body.0.weight" in done.rounds[-1].step.personal
    assert not [name for name in done.rounds[-1].step.personal if name.startswith("body.1.")]


def test_a_weight_may_stay_while_its_bias_is_shared():
    done = run(FedAvg(personal=LAG(k=1, warmup=0, unit="tensor")), net=mlp, sampling=ALL, number=2)
    assert all(len(one.step.personal) == 1 for one in done.rounds)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": -1}, "k = -1 is not allowed; it must be a whole number from 0"),
        ({"k": 2.5}, "k = 2.5"),
        ({"k": True}, "k = True"),
        ({"xi": 0.1}, "xi = 0.1 is not allowed; it must be above -1 and at most 0"),
        ({"xi": -1.0}, "xi = -1.0"),
        ({"xi": float("nan")}, "xi = nan"),
        ({"xi": "0"}, "xi = '0'"),
        ({"warmup": -1}, "warmup = -1"),
        ({"warmup": 1.5}, "warmup = 1.5"),
        ({"mode": "static"}, "mode = 'static' is not allowed; it must be one of 'dynamic', 'frozen'"),
        ({"unit": "layer"}, "unit = 'layer' is not allowed; it must be one of 'module', 'tensor'"),
        ({"norm": "keep"}, "norm = 'keep'"),
        ({"min_ratio": 1.0}, "min_ratio = 1.0 is not allowed; it must be a number from 0 to below 1"),
        ({"min_ratio": -0.1}, "min_ratio = -0.1"),
        ({"hold": -1}, "hold = -1"),
        ({"mode": "frozen", "warmup": 0}, "warmup must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings, message):
    with pytest.raises(InputError) as error:
        LAG(**settings)
    assert message in str(error.value)


def test_the_defaults_are_those_of_the_specification():
    rule = LAG()
    assert (rule.k, rule.xi, rule.warmup, rule.mode) == (5, 0.0, 30, "dynamic")
    assert (rule.unit, rule.norm, rule.min_ratio, rule.hold) == ("module", "attach", 0.0, 0)


def test_with_nothing_to_choose_from_it_says_so_and_changes_nothing(caplog):
    rule = lag()
    state = rule.init(Anatomy((), ("a.weight",)))
    assert "finds no layer to choose from" in caplog.text
    state, seen = rule.update(state, replies({"b.weight": with_conflicts(4)}), 0)
    assert (rule.personal(state), seen) == (frozenset(), {})
