"""FedAS: align the received body with the client's own, and trust clients by their Fisher information."""

from dataclasses import dataclass, field

import pytest
import torch
from laws.federations import ALL, Cohorts, Wrapped, close, conv, mlp, noisy, ragged, replies, run, same, work
from torch.nn import functional

from fedlag import tree
from fedlag.aggregate import Mean, Reported
from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg
from fedlag.algorithms.fedas import FedAS
from fedlag.errors import InputError
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.personal import Named
from fedlag.run import evaluate

SOURCE = ragged()


@dataclass(frozen=True, kw_only=True)
class Watched(FedAS):
    """Notes down where training starts."""

    starts: dict = field(default_factory=dict)  # (round, client) -> after alignment

    def receive(self, local):
        start = super().receive(local)
        self.starts[local.message.round, local.work.client] = start
        return start


def body(params):
    return {name: value for name, value in params.items() if name.startswith("body.")}


def weights(fisher, **settings):
    update = {"body.weight": torch.zeros(len(fisher), 1)}
    stacked = replies(update, examples=[1, 2, 5], extra={"fisher": torch.tensor(fisher, dtype=torch.float64)})
    return Reported(key="fisher", **settings).weights(stacked)


# Fisher weights


def test_clients_count_by_their_fisher_traces():
    assert weights([1.0, 3.0, 4.0]).tolist() == [0.125, 0.375, 0.5]
    assert weights([2.0, 2.0, 2.0]).tolist() == pytest.approx([1 / 3] * 3)
    assert weights([1e-300, 1e300, 0.0]).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("useless", [[0.0, 0.0, 0.0], [float("inf"), 1.0, 1.0], [float("nan"), 1.0, 1.0]])
def test_traces_that_say_nothing_leave_the_weights_of_examples(useless):
    assert weights(useless).tolist() == [0.125, 0.25, 0.625]
    assert weights(useless, weighting="uniform").tolist() == pytest.approx([1 / 3] * 3)


def test_the_aggregator_needs_a_method_whose_clients_report():
    with pytest.raises(InputError, match="'fisher'"):
        run(FedAvg(aggregator=Reported(key="fisher")), number=1)


@pytest.mark.parametrize("net", [mlp, conv])
def test_the_reported_trace_is_that_of_squared_gradients_batch_by_batch(net):
    done = run(FedAS(), net=net, number=1, wrap=Wrapped, sampling=ALL)
    (_, _, answers), *_ = done.federation.heard
    for client, reply in answers.items():
        module, (x, y) = net().eval(), SOURCE(client, "train")
        module.load_state_dict(done.federation.clients()[client].params, strict=False)
        trace = 0.0
        for start in range(0, len(y), 8):
            module.zero_grad()
            functional.cross_entropy(module(x[start : start + 8]), y[start : start + 8]).backward()
            trace += sum(value.grad.double().square().sum().item() for value in module.parameters())
        assert reply.extra["fisher"].item() == pytest.approx(trace, rel=1e-4)


@pytest.mark.parametrize("net", [mlp, conv])
def test_the_shared_body_is_the_mean_of_trained_bodies_by_fisher_trace_statistics_included(net):
    done = run(FedAS(), net=net, number=2, wrap=Wrapped, sampling=ALL)
    _, _, answers = done.federation.heard[1]
    traces = {client: reply.extra["fisher"].item() for client, reply in answers.items()}
    trained = {client: kept.params for client, kept in done.federation.clients().items()}
    mean = {
        name: sum(params[name] * (traces[client] / sum(traces.values())) for client, params in trained.items())
        for name in body(done.server.params)
    }
    assert len({round(trace, 3) for trace in traces.values()}) > 1
    assert close(body(done.server.params), mean, 2e-6)


def test_the_body_of_a_single_participant_is_the_shared_one():
    done = run(FedAS(), net=conv, sampling=Cohorts([[0], [1]]))
    assert close(body(done.server.params), body(done.federation.clients()[1].params), 1e-6)


# Alignment


def aligned(net, old, received, round, client):
    """What a PyTorch user would write: one epoch with learning rate 0.3 toward the class means of the old features."""
    module, (x, y) = net().eval(), SOURCE(client, "train")
    module.load_state_dict(old, strict=False)
    with torch.no_grad():
        means = {int(c): module.body(x[y == c]).mean(0) for c in y.unique()}
    module.load_state_dict({**old, **received}, strict=False)
    for one in work(SOURCE, round, client).stream("align").batches(8, 1):
        module.train(len(one.y) > 1)
        module.zero_grad()
        features = module.body(one.x)
        sum((features[one.y == c] - means[int(c)]).square().mean() for c in one.y.unique()).backward()
        with torch.no_grad():
            for value in module.body.parameters():
                value -= 0.3 * value.grad
    return {name: value for name, value in module.state_dict().items() if value.is_floating_point()}


@pytest.mark.parametrize("net", [mlp, conv])
def test_alignment_draws_the_received_body_toward_the_class_means_of_the_client_s_old_features(net):
    algorithm = Watched(alignment_lr=0.3)
    done = run(algorithm, net=net, number=2, sampling=ALL)
    received = done.rounds[1].message.shared
    former = run(FedAS(alignment_lr=0.3), net=net, number=1, sampling=ALL).federation.clients()
    for client, kept in former.items():
        assert close(algorithm.starts[1, client], aligned(net, kept.params, received, 1, client), 2e-6)
        assert not close(body(algorithm.starts[1, client]), body(received), 1e-3)


@pytest.mark.parametrize("net", [mlp, noisy])
def test_without_alignment_and_with_plain_weights_it_is_fedper_scored_on_what_clients_trained(net):
    fedas = FedAS(alignment_epochs=0, aggregator=Mean())
    ours, fedper = (run(method, net=net) for method in (fedas, FedAvg(personal=Named("head.*"))))
    for one, other in zip(ours.rounds, fedper.rounds, strict=True):
        assert same(one.server, other.server)
    clients = ours.federation.clients()
    for client, kept in fedper.federation.clients().items():
        assert same(tree.select(clients[client].params, kept.params.keys()), kept.params)


def test_a_newcomer_is_aligned_only_on_request_and_then_toward_the_initial_features():
    plain, eager = Watched(), Watched(align_newcomers=True, alignment_lr=0.3)
    done = [run(one, net=conv, number=2, sampling=Cohorts([[0], [1]])) for one in (plain, eager)]
    assert same(body(plain.starts[1, 1]), body(done[0].rounds[1].message.shared))
    received = done[1].rounds[1].message.shared
    assert close(eager.starts[1, 1], aligned(conv, Model(conv()).init(), received, 1, 1), 2e-6)


def test_heads_and_personal_layers_stay_as_the_client_left_them():
    algorithm = Watched(personal=Named("head.*") | Named("body.1.*"), alignment_lr=0.3)
    done = run(algorithm, net=mlp, number=2, sampling=ALL)
    former = run(algorithm, net=mlp, number=1, sampling=ALL).federation.clients()
    for client, kept in former.items():
        start = algorithm.starts[1, client]
        own = tree.under(start, "head.* body.1.*")
        assert same(tree.select(start, own), tree.select(kept.params, own))
        assert not same(start["body.3.weight"], done.rounds[1].message.shared["body.3.weight"])


# Evaluation


@pytest.mark.parametrize("net", [mlp, noisy])
def test_clients_use_the_model_they_last_trained_however_long_ago(net):
    done = run(FedAS(), net=net, sampling=Cohorts([[0, 1], [1, 2]]))
    model = Model(net())
    model.eval()
    scores = evaluate(done.task, done.server, done.federation)
    for client, kept in done.federation.clients().items():
        x, y = SOURCE(client, "test")
        loss = functional.cross_entropy(model(kept.params, x), y).item()
        assert scores[client]["test"].loss == pytest.approx(loss, rel=1e-5)
    assert same(scores[4], evaluate(done.task, done.server, done.federation, "global")[4])


def test_batches_as_large_as_the_data_make_one_gradient():
    training = Training(batch=100, optimizer=SGD(lr=0.1))
    done = run(FedAS(), net=mlp, number=1, wrap=Wrapped, training=training, sampling=Cohorts([[0]]))
    module, (x, y) = mlp(), SOURCE(0, "train")
    module.load_state_dict(done.federation.clients()[0].params)
    functional.cross_entropy(module(x), y).backward()
    trace = sum(value.grad.square().sum().item() for value in module.parameters())
    assert done.federation.heard[0][2][0].extra["fisher"].item() == pytest.approx(trace, rel=1e-4)


@pytest.mark.parametrize("bad", [{"alignment_epochs": -1}, {"alignment_lr": 0.0}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        FedAS(**bad)
