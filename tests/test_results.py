"""What comes out of runs, worked out by hand."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from fedlag import results
from fedlag.errors import InputError
from fedlag.flow import Letter, Message, Score
from fedlag.run import Round
from fedlag.tables import Tables


class Counting:
    """A server of which only the round is looked at."""

    def __init__(self, round):
        self.round = round


def traffic(round, down, up):
    """A round in which one participant is sent `down` numbers and sends `up` bytes."""
    message = Message(round - 1, {"body.weight": torch.zeros(down)}, frozenset(), {}, frozenset(), {})
    return Round(
        round - 1, Counting(round), message, {0: Letter({}, {})}, {}, {}, None, {0: Counter({"body.weight": up})}
    )


@pytest.fixture
def write(tmp_path):
    """Writes a run of given accuracies: round -> one for each client."""

    def write(
        validation, test, method="fedlag", seed=0, examples=None, server=None, manifest=None, name=None, clients=None
    ):
        folder = tmp_path / (name or f"{method}-{seed}")
        folder.mkdir()
        tables = Tables()
        for round in test:
            number = clients or range(len(test[round]))
            counts = examples or [16] * len(test[round])
            tables.add_scores(
                round,
                "personal",
                {
                    client: {"validation": Score(v, 0.5, 4), "test": Score(t, 0.5, count)}
                    for client, v, t, count in zip(number, validation[round], test[round], counts, strict=True)
                },
            )
            tables.add_bytes(traffic(round, down=round, up=100 * round))
        for round, scores in (server or {}).items():
            tables.add_scores(round, "global", {client: {"test": Score(s, 0.5, 16)} for client, s in enumerate(scores)})
        tables.write(folder)
        (folder / "experiment.toml").write_text("rounds = 4\n[algorithm]\nname = 'fedlag'\n")
        content = {"method": method, "seed": seed, "partition": f"p{seed}", "seconds": 2.5, **(manifest or {})}
        (folder / "manifest.json").write_text(json.dumps(content))
        return results.read(folder)

    return write


@pytest.fixture
def simple(write):
    """A run of a single round: one accuracy for each client, the same on validation and test data."""
    return lambda accuracies, **settings: write({1: accuracies}, {1: accuracies}, **settings)


TWELVE = [number / 16 for number in range(1, 13)]


@pytest.fixture
def run(write):
    """Best on validation data after the rounds 2 and 3, best on test data after 4, four rounds of twelve clients."""
    level = [0.25, 0.5] * 6
    test = {1: [0.5] * 12, 2: TWELVE, 3: [0.625] * 12, 4: [0.75] * 6 + [0.875] * 6, 5: [0.25] * 12}
    validation = {1: level, 2: [1.0, *[0.5] * 11], 3: [*[0.5] * 11, 1.0], 4: level, 5: level}
    server = {2: [0.25] * 6 + [0.5] * 6, 5: [1.0] * 12}
    return write(validation, test, examples=[16] * 6 + [32] * 6, server=server)


# One run


def test_a_run_is_read_as_it_was_written(run):
    assert run.experiment == {"rounds": 4, "algorithm": {"name": "fedlag"}}
    assert (run.method, run.seed, run.manifest["partition"]) == ("fedlag", 0, "p0")
    assert (run.rounds.num_rows, run.bytes.num_rows, run.layers.num_rows) == (5 * 12 * 2 * 3 + 2 * 12 * 3, 10, 0)


def test_the_headline_round_is_the_first_of_those_best_on_validation_data(run):
    summary = results.summarise(run)
    assert (summary.headline.round, summary.last.round, summary.optimistic.round) == (2, 5, 4)


def test_a_tie_goes_to_the_earlier_round_although_its_sum_is_rounded_down(write):
    tie = {1: [0.3, 0.2, 0.1], 2: [0.1, 0.2, 0.3]}
    assert sum(tie[1]) < sum(tie[2])
    assert results.summarise(write(tie, tie)).headline.round == 1


def test_the_numbers_of_a_round_are_those_worked_out_by_hand(run):
    headline = results.summarise(run).headline
    assert headline.clients.tolist() == list(range(12))
    assert headline.accuracy.tolist() == TWELVE
    assert headline.mean == pytest.approx(6.5 / 16)
    assert headline.median == pytest.approx(6.5 / 16)
    assert headline.weighted == pytest.approx((16 * 21 + 32 * 57) / (16 * 6 + 32 * 6) / 16)
    assert headline.worst == pytest.approx(1.5 / 16)  # two of twelve
    assert headline.sd == pytest.approx(math.sqrt((12**2 - 1) / 12) / 16)


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (30, 3), (31, 4)])
def test_the_worst_tenth_is_rounded_up(simple, clients, worst):
    accuracies = [1 - number / 32 for number in range(clients)]
    headline = results.summarise(simple(accuracies)).headline
    assert headline.worst == pytest.approx(np.mean(accuracies[-worst:]))


def test_the_other_numbers_of_a_summary(run):
    summary = results.summarise(run)
    assert (summary.last.mean, summary.optimistic.mean) == (0.25, 0.8125)
    assert summary.server.mean == 0.375
    assert (summary.down, summary.up) == (4 * (1 + 2 + 3 + 4 + 5), 100 * (1 + 2 + 3 + 4 + 5))
    assert (summary.rounds, summary.seconds) == (5, 2.5)


def test_what_was_not_measured_is_not_made_up(simple):
    summary = results.summarise(simple([0.5], manifest={"seconds": None}))
    assert summary.server is None
    row = results.as_row(summary)
    assert row["global"] is row["seconds"] is None
    assert row["accuracy"] == row["last"] == row["optimistic"] == 0.5


def test_a_client_without_test_examples_counts_nowhere(simple):
    run = simple([0.5, 1.0, 1.0], examples=[4, 0, 4])
    assert results.grid(run, "personal", "test").means().tolist() == [0.75]
    headline = results.summarise(run).headline
    assert headline.clients.tolist() == [0, 2]
    assert (headline.mean, headline.worst, headline.weighted) == (0.75, 0.5, 0.75)


def test_a_client_that_was_not_always_scored_counts_where_it_was(write):
    run = write({1: [0.5, 1.0], 2: [1.0]}, {1: [0.5, 1.0], 2: [0.25]})
    summary = results.summarise(run)
    assert (summary.headline.round, summary.headline.accuracy.tolist()) == (2, [0.25])
    assert results.grid(run, "personal", "test").means().tolist() == [0.75, 0.25]


def test_a_row_is_plain(run):
    row = results.as_row(results.summarise(run))
    assert json.loads(json.dumps(row)) == row
    assert (row["method"], row["seed"], row["headline_round"], row["optimistic"]) == ("fedlag", 0, 2, 0.8125)


def test_a_run_without_scores_says_so(write):
    with pytest.raises(InputError, match=r"no personal validation scores in .*fedlag-0.*resume"):
        results.summarise(write({}, {}))


@pytest.mark.parametrize("name", ["manifest.json", "experiment.toml", "rounds.parquet"])
@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_what_is_no_run_is_named(simple, name, damage):
    path = simple([0.5]).folder / name
    path.unlink()
    if damage == "empty" and name != "experiment.toml":  # which may be empty
        path.write_bytes(b"")
    with pytest.raises(InputError, match=name):
        results.read(path.parent)


@pytest.mark.parametrize("content", ["[]", "{}", '{"method": "fedlag"}'])
def test_a_manifest_without_method_and_seed_is_none(simple, content):
    path = simple([0.5]).folder / "manifest.json"
    path.write_text(content)
    with pytest.raises(InputError, match="names no method and seed"):
        results.read(path.parent)


# Accuracy against bytes


def test_accuracy_stands_beside_what_was_sent_up_to_then(run):
    course = results.course(run)
    assert [moment.round for moment in course] == [1, 2, 3, 4, 5]
    assert [moment.down_bytes for moment in course] == [4, 12, 24, 40, 60]
    assert [moment.up_bytes for moment in course] == [100, 300, 600, 1000, 1500]
    assert [moment.test for moment in course] == pytest.approx([0.5, 6.5 / 16, 0.625, 0.8125, 0.25])
    assert course[1].validation == pytest.approx(6.5 / 12)
    assert (course[-1].down_bytes, course[-1].up_bytes) == (results.summarise(run).down, results.summarise(run).up)


def test_rounds_nobody_was_scored_in_send_all_the_same(write):
    run = write({1: [0.5], 2: [0.5], 3: [0.5]}, {1: [0.5], 2: [0.5], 3: [0.5]})
    scores = run.rounds.filter(pc.field("round") != 2)
    course = results.course(replace(run, rounds=scores))
    assert [(moment.round, moment.up_bytes) for moment in course] == [(1, 100), (3, 600)]


def test_whose_models_do_how_well_is_told_apart(run):
    rows = {row["models"]: row for row in results.models(results.summarise(run))}
    assert {whose: row["round"] for whose, row in rows.items()} == {
        "headline": "2",
        "last": "5",
        "best on test": "4",
        "server's, headline": "2",
        "server's, last": "5",
    }
    assert rows["last"]["accuracy %"] == "25.0"
    assert rows["server's, headline"]["accuracy %"] == "37.5"


def test_a_few_moments_from_first_to_last_are_shown(simple, write):
    levels = {round: [0.5] for round in range(1, 41)}
    shown = results.chosen(results.course(write(levels, levels)))
    assert len(shown) == 8
    assert [shown[0]["round"], shown[-1]["round"]] == ["1", "40"]
    assert len(results.chosen(results.course(simple([0.5], seed=1)))) == 1


# Several runs


@pytest.fixture
def four(simple):
    """Two seeds of four clients, FedLAG and those it is measured by."""
    accuracies = {
        "local": ([0.25, 0.5, 0.75, 0.5], [0.5, 0.5, 0.5, 0.5]),
        "fedavg-ft": ([0.5, 0.5, 0.5, 0.5], [0.75, 0.5, 0.5, 0.5]),
        "fedlag": ([0.75, 0.5, 0.5, 1.0], [0.5, 0.75, 0.5, 0.75]),
    }
    return results.compare(
        [
            simple(values, method=method, seed=seed)
            for method, own in accuracies.items()
            for seed, values in enumerate(own)
        ]
    )


def test_gains_are_of_the_same_seed_and_client(four):
    gain = four.methods["fedlag"].gain
    assert list(zip(gain.seeds.tolist(), gain.clients.tolist(), gain.points.tolist(), strict=True)) == [
        *[(0, 0, 50), (0, 1, 0), (0, 2, -25), (0, 3, 50)],
        *[(1, 0, 0), (1, 1, 25), (1, 2, 0), (1, 3, 25)],
    ]
    assert (gain.gaining, gain.losing, gain.equal) == (4, 1, 3)
    assert (gain.mean, gain.median, gain.harmed) == (125 / 8, 12.5, 1 / 8)
    assert four.methods["local"].gain is None


def test_spread_over_seeds_is_kept_apart_from_spread_over_clients(four):
    rows = {row["method"]: row for row in results.rows(four)}
    assert list(rows) == ["local", "fedavg-ft", "fedlag"]
    row = rows["fedlag"]
    assert row["seeds"] == [0, 1]
    assert row["accuracy"] == pytest.approx((0.6875 + 0.625) / 2)
    assert row["accuracy_sd"] == pytest.approx(0.0625 / math.sqrt(2))
    assert row["client_sd"] == pytest.approx((np.std([0.75, 0.5, 0.5, 1.0]) + np.std([0.5, 0.75, 0.5, 0.75])) / 2)
    assert (row["worst_tenth"], row["worst_tenth_sd"]) == (0.5, 0.0)
    assert (row["gain_points"], row["median_gain_points"]) == (125 / 8, 12.5)
    assert (row["gaining"], row["losing"], row["equal"], row["harmed"]) == (4, 1, 3, 0.125)
    assert rows["local"]["gain_points"] is rows["local"]["losing"] is None


def test_a_single_seed_has_no_spread_over_seeds(simple):
    (row,) = results.rows(results.compare([simple([0.5, 1.0])]))
    assert (row["accuracy"], row["accuracy_sd"]) == (0.75, None)
    assert (row["client_sd"], row["client_sd_sd"]) == (0.25, None)


def test_rows_are_plain(four):
    rows = results.rows(four)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_only_seeds_and_clients_that_both_have_are_compared(simple):
    comparison = results.compare(
        [
            simple([0.25, 0.5], method="local", seed=1, clients=[3, 5]),
            simple([0.0, 0.25, 1.0], method="fedlag", seed=1, clients=[1, 2, 5]),
            simple([0.0, 0.0], method="fedlag", seed=2),
        ]
    )
    gain = comparison.methods["fedlag"].gain
    assert (gain.seeds.tolist(), gain.clients.tolist(), gain.points.tolist()) == ([1], [5], [50.0])


def test_a_method_may_have_more_seeds_than_another(simple):
    one = [simple([accuracy], method="fedlag", seed=seed) for seed, accuracy in enumerate([0.5, 1.0])]
    comparison = results.compare([*one, simple([0.5], method="fedavg-ft", seed=1)])
    assert results.difference(comparison.methods["fedlag"], comparison.methods["fedavg-ft"]) == 50
    comparison = results.compare([one[0], simple([0.5], method="local", seed=1)])
    assert comparison.methods["fedlag"].gain is None


def test_gains_are_taken_between_headline_rounds(write):
    local = write({1: [1.0], 2: [0.0]}, {1: [0.25], 2: [1.0]}, method="local")
    lag = write({1: [0.0], 2: [1.0]}, {1: [1.0], 2: [0.5]}, method="fedlag")
    assert results.compare([local, lag]).methods["fedlag"].gain.points.tolist() == [25]


def test_runs_that_divide_the_data_differently_are_refused(simple):
    one = simple([0.5], method="local")
    other = simple([0.5], method="fedlag", manifest={"partition": "another"})
    with pytest.raises(InputError, match=r"local-0 and .*fedlag-0 have seed 0 but divide the data differently"):
        results.compare([one, other])
    assert results.compare([one, simple([0.5], method="fedavg", seed=1)])


def test_two_runs_of_a_method_with_one_seed_are_refused(simple):
    with pytest.raises(InputError, match=r"one and .*two are both of 'fedlag' with seed 0"):
        results.compare([simple([0.5], name="one"), simple([0.5], name="two")])


def test_printed_tables_have_percent_points_and_megabytes(four):
    assert results.printable(four)[2] == {
        "method": "FedLAG",
        "accuracy %": "65.6 ± 4.4",
        "weighted": "65.6",
        "median": "62.5",
        "worst 10%": "50.0",
        "last": "65.6",
        "optimistic": "65.6",
    }
    local, _, lag = results.standings(four)
    assert lag == {
        "method": "FedLAG",
        "gain": "+15.6 ± 39.7",  # of two seeds, 18.75 and 12.5: t = 12.7
        "+/-/=": "4/1/3",
        "Local": "open",
        "FedAvg+FT": "open",
        "MB": "0.0",
    }
    assert [local[column] for column in ("method", "gain", "+/-/=", "Local", "FedAvg+FT")] == [
        "Local",
        "",
        "",
        "",
        "open",
    ]


def test_what_nobody_asked_for_is_marked(simple):
    comparison = results.compare([simple([0.5], method=name) for name in ("local", "fedlag")], added=["local"])
    for table in (results.printable(comparison), results.standings(comparison)):
        assert [row["method"] for row in table] == ["Local *", "FedLAG"]
    assert [row["added"] for row in results.rows(comparison)] == [True, False]


def test_megabytes_are_of_both_directions_and_the_mean_over_seeds(write):
    runs = [write({r: [0.5]}, {r: [0.5]}, seed=s) for s, r in enumerate((10**4, 3 * 10**4))]
    (row,) = results.standings(results.compare(runs))
    assert row["MB"] == "2.1"  # 0.04 and 1.0 one time, 0.12 and 3.0 the other


@pytest.mark.parametrize("table", [results.printable, results.standings])
def test_a_printed_table_fits_into_80_columns(four, table):
    columns = {name: max(len(name), *(len(row[name]) for row in table(four))) for name in table(four)[0]}
    columns["method"] = len("fedlag-official *")
    assert sum(columns.values()) + 2 * len(columns) <= 80


# What the tests say


def several(simple, **levels):
    """Five seeds of twenty clients around the levels given in points; methods share most ups and downs."""
    names, generator = {"tuned": "fedavg-ft"}, np.random.default_rng(0)
    common = 0.5 + generator.normal(0, 0.05, (5, 20))
    runs = []
    for name, level in levels.items():
        own = common + level / 100 + generator.normal(0, 0.01, (5, 20))
        runs += [simple(list(row), method=names.get(name, name), seed=seed) for seed, row in enumerate(own)]
    return results.compare(runs)


def test_a_verdict_says_what_the_tests_show(simple):
    comparison = several(simple, local=0, tuned=3, fedlag=3, fedavg=-4)
    outcomes = {name: one.outcome for name, one in comparison.against("local").items()}
    assert outcomes == {"fedavg-ft": "beats", "fedlag": "beats", "fedavg": "loses to"}
    assert comparison.against("fedavg-ft")["fedlag"].outcome == "no difference shown"
    sentence = results.verdict(comparison)
    assert "; it beats training alone by 3.0 and FedAvg by 6.9 points; no difference is shown" in sentence
    loses = results.verdict(comparison, "fedavg")
    assert loses.endswith("; it loses to training alone by 3.9 and FedAvg+FT by 6.8 points.")
    assert comparison.leaders == ["fedavg-ft", "fedlag"]  # a tie: nobody stands out
    rows = {row["method"]: row for row in results.rows(comparison)}
    assert [name for name, row in rows.items() if row["leader"]] == comparison.leaders
    assert rows["fedavg"]["against"]["local"]["outcome"] == "loses to"
    assert rows["fedavg"]["against"]["local"]["points"] == pytest.approx(rows["fedavg"]["gain_points"])
    assert json.loads(json.dumps(list(rows.values()), allow_nan=False)) == list(rows.values())


def test_the_only_one_nobody_matches_leads(simple):
    assert several(simple, local=0, fedlag=3).leaders == ["fedlag"]


def test_a_single_seed_shows_nothing(simple):
    comparison = results.compare(
        [simple([level] * 50, method=name) for name, level in (("local", 0.25), ("fedlag", 0.75))]
    )
    assert comparison.against("local")["fedlag"].outcome == "no difference shown"
    assert comparison.leaders == ["local", "fedlag"]


def test_more_methods_make_a_test_stricter(simple):
    many = several(simple, local=0, one=1, two=0, three=0, four=0)
    few = results.Comparison({name: many.methods[name] for name in ("local", "one")})
    lone, among = few.against("local")["one"], many.against("local")["one"]
    assert (lone.across_seeds, lone.points) == (among.across_seeds, among.points)
    assert among.p > lone.p


def test_the_same_client_of_the_same_partition_counts_once(simple):
    """The same partition for all seeds makes fewer clients than one for each."""
    settings = {"manifest": {"partition": "the same"}}
    gains = []
    for own in ({}, settings):
        runs = [
            simple([0.25 * seed, 0.5], method=name, seed=seed, name=f"{name}-{seed}-{len(gains)}", **own)
            for name in ("local", "fedlag")
            for seed in (0, 1)
        ]
        gains.append(results.compare(runs).methods["fedlag"].gain)
    assert [len(gain.by_client) for gain in gains] == [4, 2]
    assert [len(gain.by_seed) for gain in gains] == [2, 2]


def test_gains_are_those_recomputed_from_the_raw_rows(simple):
    """With nothing but the rows of the tables on disk."""
    comparison = several(simple, local=0, fedlag=2)
    raw = {}
    for name in ("local", "fedlag"):
        for seed in range(5):
            folder = comparison.methods[name].runs[seed].folder
            for row in pq.read_table(folder / "rounds.parquet").to_pylist():
                if (row["stage"], row["part"], row["metric"]) == ("personal", "test", "accuracy"):
                    raw[name, seed, row["client"]] = row["value"]
    points = [
        100 * (raw["fedlag", seed, client] - raw["local", seed, client]) for seed in range(5) for client in range(20)
    ]
    (row,) = [row for row in results.rows(comparison) if row["method"] == "fedlag"]
    assert row["gain_points"] == pytest.approx(sum(points) / 100)
    assert row["against"]["local"]["points"] == pytest.approx(sum(points) / 100)
    assert (row["gaining"], row["losing"]) == (sum(p > 0 for p in points), sum(p < 0 for p in points))
    assert row["harmed"] == row["losing"] / 100


# The verdict


def verdict(simple, seeds=1, method="fedlag", **accuracies):
    names = {"tuned": "fedavg-ft"}
    runs = [
        simple(values, method=names.get(name, name), seed=seed)
        for name, values in accuracies.items()
        for seed in range(seeds)
    ]
    return results.verdict(results.compare(runs), method)


def test_a_method_that_helps(simple):
    sentence = verdict(simple, local=[0.5] * 4, fedlag=[0.531, 0.6, 0.531, 0.4], tuned=[0.5115] * 4)
    assert sentence == (
        "FedLAG: 3 of 4 clients gain over training alone (median +3.1 points), 1 loses, 0 stay equal; "
        "no difference is shown from training alone (+1.6) and FedAvg+FT (+0.4), by a single seed."
    )


def test_a_method_that_harms(simple):
    sentence = verdict(simple, local=[0.5] * 4, fedlag=[0.25, 0.25, 0.75, 0.5], tuned=[0.4475] * 4)
    assert sentence == (
        "FedLAG: 2 of 4 clients lose against training alone (median -12.5 points), 1 gains, 1 stays equal; "
        "no difference is shown from training alone (-6.2) and FedAvg+FT (-1.0), by a single seed."
    )


def test_a_method_that_changes_nothing(simple):
    sentence = verdict(simple, seeds=2, local=[0.5, 0.5], fedlag=[0.5, 0.5], tuned=[0.5004, 0.5004])
    assert sentence == (
        "FedLAG, 2 seeds: 0 of 4 clients gain over training alone (median +0.0 points), 0 lose, 4 stay equal; "
        "no difference is shown from training alone (+0.0 ± 0.0) and FedAvg+FT (+0.0 ± 0.0)."
    )


def test_without_training_alone_the_question_is_left_open(simple):
    assert verdict(simple, fedlag=[0.75, 0.5]) == (
        "FedLAG reaches 62.5% on average, but whether its clients gain over training alone is unknown without a run of "
        "Local with the same seed."
    )


def test_without_fedavg_ft_nothing_is_said_of_it(simple):
    sentence = verdict(simple, local=[0.5], fedlag=[0.75])
    assert sentence == (
        "FedLAG: 1 of 1 clients gains over training alone (median +25.0 points), 0 lose, 0 stay equal; "
        "no difference is shown from training alone (+25.0), by a single seed."
    )


def test_other_methods_are_judged_alike(simple):
    accuracies = {"local": [0.5], "fedlag": [0.75], "tuned": [0.25]}
    assert verdict(simple, method="fedavg-ft", **accuracies).startswith("FedAvg+FT: 1 of 1 clients loses against")
    assert "shown" not in results.verdict(results.compare([simple([0.5], name="x", method="mine")]), "mine")


def test_training_alone_is_not_compared_with_itself(simple):
    sentence = verdict(simple, method="local", local=[0.5], tuned=[0.25])
    assert sentence == (
        "Local is training alone, which the others are measured by, and reaches 50.0%; "
        "no difference is shown from FedAvg+FT (+25.0), by a single seed."
    )


def test_without_a_name_the_first_that_is_no_control_is_judged(simple):
    names = ("local", "fedrep", "fedper", "fedavg")
    comparison = results.compare([simple([0.5], method=name) for name in names])
    assert results.verdict(comparison).startswith("fedrep: ")


def test_a_method_that_was_not_run_is_not_judged(simple):
    assert verdict(simple, local=[0.5], fedavg=[0.75]) == (
        "There is no run of FedLAG to judge; FedAvg has the highest mean accuracy of what was run, 75.0%."
    )
