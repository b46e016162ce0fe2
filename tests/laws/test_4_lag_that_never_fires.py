"""Law 4: LAG that never makes anything personal is bitwise the bare algorithm. Identical clients never conflict."""

import pytest

from fedlag.algorithm import Training
from fedlag.optim import SGD
from laws.federations import ALL, AVERAGING, identical, mlp, ordinary, parametrised, run, same, scores, with_lag

NEVER = {
    "k=0": {"k": 0, "warmup": 0},
    "k=0 frozen": {"k": 0, "mode": "frozen", "warmup": 1},
    "always warming up": {"k": 3, "xi": -0.999999, "warmup": 10**6, "unit": "tensor", "norm": "candidate"},
}


@pytest.mark.parametrize("settings", NEVER.values(), ids=NEVER)
@parametrised(AVERAGING)
def test_lag_that_never_fires_is_bitwise_the_bare_method(algorithm, settings):
    bare, plus = ordinary(algorithm), run(with_lag(algorithm, **settings))
    for one, other in zip(bare.run.rounds, plus.rounds, strict=True):
        assert same(one.message, other.message)
        assert same(one.letters, other.letters)
        assert same(one.server._replace(rule=None), other.server._replace(rule=None))
    memories = [{c: kept.memory for c, kept in done.federation.clients().items()} for done in (bare.run, plus)]
    assert same(*memories)
    assert same(bare.scores, scores(plus))


@parametrised(AVERAGING)
def test_identical_clients_never_conflict(algorithm):
    """With full batches; so `method + LAG` is the method, whatever k is."""
    training = Training(batch=10, optimizer=SGD(lr=0.1))
    setup = {"net": mlp, "source": identical(), "clients": 4, "training": training, "sampling": ALL}
    plus = run(with_lag(algorithm, k=10, warmup=0), **setup)
    for one in plus.rounds:
        for conflict in one.step.conflicts.values():
            assert conflict.count == 0
            assert conflict.norm == 0 or conflict.mean_cosine == pytest.approx(1.0, abs=1e-4)
    bare = run(algorithm, **setup)
    assert same(bare.server.params, plus.server.params)
    assert bare.rounds[-1].step.personal == plus.rounds[-1].step.personal
