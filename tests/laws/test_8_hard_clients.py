"""Law 8: small, one-sided and silent clients break nothing."""

import math

from fedlag.algorithm import Training
from fedlag.optim import SGD
from fedlag.tree import finite
from laws.federations import ALL, Cohorts, Wrapped, every_method, ragged, run, same, scores


def assert_sound(done, dropped=()):
    """Everything is finite, and nobody was dropped whom we didn't mean to drop."""
    for one in done.rounds:
        assert set(one.dropped) <= set(dropped)
        assert finite(one.server)
    assert all(finite(client) for client in done.federation.clients().values())
    for stage in scores(done).values():
        assert stage.keys() == set(range(done.task.clients))
        for score in stage.values():
            assert score.keys() == {"validation", "test"}
            assert all(0 <= part.accuracy <= 1 and math.isfinite(part.loss) for part in score.values())


@every_method
def test_a_cohort_of_one(algorithm):
    assert_sound(run(algorithm, sampling=Cohorts([[3], [1], [1], [2]])))


@every_method
def test_a_federation_of_one(algorithm):
    assert_sound(run(algorithm, source=ragged((11,), single=None), clients=1))


@every_method
def test_a_single_example_fewer_than_a_batch_and_a_last_batch_of_one(algorithm):
    assert_sound(run(algorithm, source=ragged((1, 3, 9, 17), single=None), clients=4, sampling=ALL, number=2))


@every_method
def test_everyone_knows_a_single_class(algorithm):
    source = ragged((6, 6, 6), single=1)
    assert_sound(run(algorithm, source=lambda client, part: source(1, part), clients=3, sampling=ALL, number=2))


@every_method
def test_no_local_steps_at_all(algorithm):
    done = run(algorithm, training=Training(epochs=0, batch=8, optimizer=SGD(lr=0.1)), sampling=ALL, number=2)
    assert_sound(done)


class Silent(Wrapped):
    """Client 1 never answers."""

    def answer(self, round, client, reply):
        if client != 1:
            yield client, reply


class Away(Wrapped):
    """Client 1 can't be reached."""

    def train(self, message, letters, scored):
        return super().train(message, {client: letters[client] for client in letters if client != 1}, scored)


@every_method
def test_a_client_that_never_answers_is_named_and_the_others_go_on_without_it(algorithm):
    silent, away = (run(algorithm, sampling=ALL, wrap=wrap) for wrap in (Silent, Away))
    assert_sound(silent, dropped=[1])
    for one in silent.rounds:
        assert one.dropped == {1: "it did not answer"}
        assert one.step is not None
    assert silent.server.met.keys() == {0, 2, 3, 4}
    assert same(silent.server, away.server)
