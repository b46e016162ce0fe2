"""Laws of the conflict analysis. In the names, H holds the clients' updates as rows."""

import math
import subprocess
import sys
import weakref

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlag.divergence import CHUNK, PANEL, analyze, conflict, gram, improvement, leave_one_out, rank
from fedlag.errors import InputError

THRESHOLDS = [0.0, -0.1, -0.3, -0.6, -0.99]

law = settings(deadline=None)  # a busy machine is no counterexample


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def score(rows, xi=0.0):
    return analyze({"layer": torch.as_tensor(rows, dtype=torch.float64)}, xi)["layer"]


def plane(*degrees):
    return [[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees]


def random(clients=9, size=40, seed=0, dtype=torch.float64) -> Tensor:
    return torch.randn(clients, size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@st.composite
def updates(draw) -> Tensor:
    """Small integers make parallel, opposite, orthogonal and zero updates common."""
    clients, size = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    values = draw(st.lists(st.integers(-3, 3), min_size=clients * size, max_size=clients * size))
    return torch.tensor(values, dtype=torch.float64).view(clients, size)


def test_equal_updates_do_not_conflict_and_leave_nothing_to_gain():
    found = score(random(1).expand(6, -1))
    assert found.count == 0
    assert torch.allclose(found.cosines, torch.ones(6, 6, dtype=torch.float64))
    assert found.mean_cosine == pytest.approx(1)
    assert found.improvement == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("xi", THRESHOLDS)
def test_two_opposite_clients_conflict_at_every_threshold(xi):
    found = score([[1, 0], [-1, 0]], xi)
    assert (found.count, found.pairs, found.mean_cosine, found.norm) == (1, 1, -1.0, 1.0)
    assert found.improvement == 1.0
    assert found.client_improvement.tolist() == [1.0, 1.0]


def test_orthogonal_clients_do_not_conflict():
    found = score([[1, 0], [0, 1]])
    assert (found.count, found.mean_cosine) == (0, 0.0)


@pytest.mark.parametrize(("xi", "count"), [(0.0, 3), (-0.3, 3), (-0.6, 0)])
def test_three_clients_120_degrees_apart_conflict_up_to_one_half(xi, count):
    assert score(plane(0, 120, 240), xi).count == count


def test_of_two_crossed_pairs_of_opposites_only_the_opposites_conflict():
    a, b = [3.0, 4.0], [-4.0, 3.0]
    found = score([a, b, [-x for x in a], [-x for x in b]])
    assert (found.count, found.pairs) == (2, 6)
    assert leave_one_out(found.gram).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("still", [0.0, 1e-13])
@pytest.mark.parametrize("xi", THRESHOLDS)
def test_a_client_that_did_not_move_conflicts_with_nobody(xi, still):
    moving = random(6)
    resting = torch.cat([moving, -still * moving[:1]])
    assert score(resting, xi).count == score(moving, xi).count
    assert not score(resting, xi).cosines[-1].any()
    assert not score(resting, xi).cosines[:, -1].any()
    assert leave_one_out(gram([resting]), xi)[-1] == score(moving, xi).count


def test_scaling_one_client_changes_the_improvement_but_no_conflict():
    h = random()
    scaled = h.clone()
    scaled[2] *= 7
    assert score(scaled).count == score(h).count > 0
    assert torch.allclose(score(scaled).cosines, score(h).cosines)
    assert score(scaled).improvement > score(h).improvement * 1.5


@law
@given(updates())
def test_flipping_the_sign_of_all_updates_changes_nothing(h):
    before, after = score(h), score(-h)
    assert torch.equal(before.gram, after.gram)
    assert torch.equal(before.cosines, after.cosines)
    assert (before.count, before.norm, before.improvement) == (after.count, after.norm, after.improvement)


@law
@given(updates(), st.randoms(use_true_random=False), st.sampled_from(THRESHOLDS))
def test_the_order_of_clients_does_not_matter(h, chance, xi):
    order = chance.sample(range(len(h)), len(h))
    before, after = score(h, xi), score(h[order], xi)
    assert after.count == before.count
    assert after.mean_cosine == pytest.approx(before.mean_cosine)
    assert after.improvement == pytest.approx(before.improvement)
    assert torch.equal(leave_one_out(after.gram, xi), leave_one_out(before.gram, xi)[order])


@law
@given(updates())
def test_mean_cosine_is_at_least_minus_one_over_the_other_clients(h):
    found = score(h)
    if found.pairs:
        assert found.mean_cosine >= -1 / (len(h) - 1) - 1e-12


@law
@given(updates(), st.floats(-0.98, -0.02))
def test_turan_bounds_the_number_of_conflicts(h, xi):
    parties = math.ceil(1 / -xi)
    # A hair below xi, so that a rounding error is not a conflict.
    assert score(h, xi - 1e-9).count <= (1 - 1 / parties) * len(h) ** 2 / 2


def test_turan_bound_is_reached_by_four_equal_camps():
    corners = torch.eye(4, dtype=torch.float64) - 0.25  # of a tetrahedron: cosines of -1/3
    found = score(corners.repeat(25, 1), xi=-0.3)
    assert (found.count, found.pairs) == (3750, 4950)


@law
@given(updates())
@example(torch.full((16, 2), 0.7, dtype=torch.float64))  # rounds to less than zero
def test_improvement_is_the_variance_of_the_updates_and_never_negative(h):
    found = score(h)
    variance = (h - h.mean(0)).square().sum() / len(h)
    assert found.improvement >= 0
    assert found.improvement == pytest.approx(float(variance), abs=1e-9)
    assert float(found.client_improvement.mean()) == pytest.approx(found.improvement, abs=1e-9)


def test_a_client_with_a_short_aligned_update_loses_by_keeping_it():
    assert score([[0.1, 0.0], [1.0, 0.0]]).client_improvement.tolist() == pytest.approx([-0.045, 0.45])


def test_weighted_improvement_is_the_weighted_variance():
    h, counts = random(), torch.arange(9)
    p = (counts / counts.sum()).double()
    centre = p @ h
    assert improvement(gram([h]), counts) == pytest.approx(float(p @ (h - centre).square().sum(1)))
    assert improvement(gram([h]), [5] * 9) == pytest.approx(improvement(gram([h])))


@pytest.mark.parametrize("weights", [[1, 2], [[1, 1, 1]], [1, -1, 2], [0, 0, 0], [1, math.nan, 1], [1, math.inf, 1]])
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(InputError, match="do not fit 3 clients"):
        improvement(gram([random(3)]), weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [3, CHUNK, 2 * CHUNK + 5])
def test_gram_adds_over_blocks_however_they_are_cut(size, dtype):
    h = random(4, size, dtype=dtype)
    cut = [h[:, :1], h[:, 1:1], h[:, 1:].contiguous()]
    whole = gram([h])
    assert torch.allclose(gram(cut), whole, rtol=1e-5, atol=1e-6 * size)
    assert torch.allclose(gram(iter(cut[::-1])), gram(cut[:1]) + gram(cut[1:]), rtol=1e-5, atol=1e-6 * size)


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 2e-6), (torch.float16, 2e-6)]
)
def test_gram_is_as_precise_as_promised(dtype, error):
    h = random(20, 150_000).to(dtype)
    exact = h.double() @ h.double().T
    found = gram([h])
    lengths = exact.diagonal().sqrt()
    assert found.dtype == torch.float64
    assert ((found - exact).abs() / torch.outer(lengths, lengths)).max() < error


@pytest.mark.parametrize(("largest", "dtype"), [(3e38, torch.float32), (6e4, torch.float16), (1e150, torch.float64)])
def test_finite_updates_give_finite_scores_however_large(largest, dtype):
    found = analyze({"layer": torch.tensor([[largest, 1], [-largest, 1], [0, 1]], dtype=dtype)})["layer"]
    assert found.count == 1
    assert all(map(math.isfinite, (found.mean_cosine, found.norm, found.improvement)))
    assert found.client_improvement.isfinite().all()


@law
@given(updates(), st.sampled_from(THRESHOLDS))
def test_scores_agree_with_a_loop_over_pairs(h, xi):
    count, total, pairs = 0, 0.0, 0
    for u in range(len(h)):
        for v in range(u):
            norms = float(h[u].norm()), float(h[v].norm())
            cosine = float(h[u] @ h[v]) / math.prod(norms) if min(norms) > 1e-12 else 0.0
            count, total, pairs = count + (cosine < xi), total + cosine, pairs + 1
    found = score(h, xi)
    assert (found.count, found.pairs) == (count, pairs)
    assert found.mean_cosine == pytest.approx(total / max(pairs, 1), abs=1e-12)
    assert found.norm == pytest.approx(math.sqrt(float(h.square().sum()) / len(h)))
    assert found.cosines.abs().max() <= 1


@law
@given(updates().filter(lambda h: len(h) > 1), st.sampled_from(THRESHOLDS))
def test_leaving_one_client_out_is_counting_without_it(h, xi):
    without = [score(torch.cat([h[:u], h[u + 1 :]]), xi).count for u in range(len(h))]
    assert leave_one_out(gram([h]), xi).tolist() == without


def test_layers_may_be_stacks_of_any_shape_or_streams_of_blocks():
    h = random(5, 24)
    found = analyze(
        {"flat": h, "shaped": h.view(5, 2, 3, 4), "stream": (part for part in h.split(7, 1)), "scalar": h[:, 0]}
    )
    assert list(found) == ["flat", "shaped", "stream", "scalar"]
    assert torch.equal(found["flat"].gram, found["shaped"].gram)
    assert torch.allclose(found["flat"].gram, found["stream"].gram)
    assert torch.allclose(found["scalar"].gram, torch.outer(h[:, 0], h[:, 0]))


@pytest.mark.parametrize("clients", [3, PANEL, PANEL + 1, 2 * PANEL + 3])
def test_clients_may_come_as_tensors_of_their_own(clients):
    h = random(clients, CHUNK + 5, dtype=torch.float32)
    apart = [row.clone().view(-1, 1) for row in h]
    found = analyze({"together": h, "apart": [apart], "in parts": [[row[:9] for row in h], h[:, 9:]]})
    assert torch.equal(found["apart"].gram, found["apart"].gram.T)
    exact = h.double() @ h.double().T
    for conflicts in found.values():
        assert (conflicts.gram - exact).abs().max() < 1e-6 * exact.diagonal().max()


def test_the_product_of_a_pair_does_not_hang_on_who_else_is_there():
    h = random(2 * PANEL, 1000)
    assert torch.allclose(gram([h])[-3:, -3:], gram([h[-3:]]), rtol=1e-12)


def test_a_block_is_let_go_before_the_next_is_asked_for():
    given = []

    def block(seed):
        assert [old() for old in given] == [None] * seed
        fresh = random(4, seed=seed)
        given.append(weakref.ref(fresh))
        return fresh

    gram(map(block, range(3)))
    assert len(given) == 3


def test_updates_that_require_gradients_are_only_looked_at():
    assert not gram([random().requires_grad_()]).requires_grad


def test_rank_puts_more_conflicts_first_then_lower_cosine_then_the_earlier_layer():
    layers = {
        "calm": plane(0, 10, 20),
        "wide": plane(0, 100, 5),
        "also wide": plane(0, 100, 5),
        "wider": plane(0, 170, 85),
        "all": plane(0, 120, 240),
    }
    scores = {name: score(rows) for name, rows in layers.items()}
    assert rank(scores) == ["all", "wide", "also wide", "wider", "calm"]
    assert [scores[name].count for name in rank(scores)] == [3, 2, 2, 1, 0]


def test_of_equally_many_conflicts_the_lower_mean_cosine_ranks_first():
    assert rank({"mild": score(plane(0, 100)), "strong": score(plane(0, 170))}) == ["strong", "mild"]


@pytest.mark.parametrize("xi", [0.1, -1.0, -2.0, math.nan])
@pytest.mark.parametrize("judge", [conflict, leave_one_out])
def test_a_threshold_outside_its_range_is_refused(judge, xi):
    with pytest.raises(InputError, match="above -1 and at most 0"):
        judge(gram([random()]), xi)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_naming_the_layer_and_the_client(poison, dtype):
    bad = random(5).to(dtype)
    bad[3, 7] = poison
    with pytest.raises(InputError, match=r"Layer 'conv2'.* client 3 .*not finite"):
        analyze({"conv1": random(5), "conv2": [random(5), bad]})


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ([], "no updates"),
        ([random(3), random(1)], "3 clients and another 1"),
        (torch.ones(3, 4, dtype=torch.int64), r"torch.int64 of shape \(3, 4\)"),
        (torch.ones(0, 4), r"of shape \(0, 4\)"),
        (torch.tensor(1.0), r"of shape \(\)"),
        ([[]], "lists no tensors"),
        ([[torch.ones(2), torch.ones(3)]], r"lists torch.float32 of shape \(2,\) and torch.float32 of shape \(3,\)"),
        ([[torch.ones(2), torch.ones(2).double()]], "torch.float32 .* and torch.float64"),
        ([[torch.ones(2, dtype=torch.int32)] * 2], "torch.int32"),
    ],
)
def test_what_is_not_one_row_of_numbers_for_each_client_is_refused(layer, message):
    with pytest.raises(InputError, match=f"Layer 'head'.*{message}"):
        analyze({"head": layer})


HUGE = """
import re, time
import torch
from fedlag.divergence import analyze

def memory(field):  # of this process alone; getrusage would start from the peak of its parent
    with open("/proc/self/status") as status:
        return int(re.search(field + r":\\s+(\\d+) kB", status.read())[1]) * 1024

torch.set_num_threads(2)
analyze({"warm": torch.ones(100, 1000)})
idle = memory("VmRSS")
sizes = {"convolution": 600_000, "hidden": 3_700_000, "head": 100_000}
updates = {name: torch.empty(100, size) for name, size in sizes.items()}
for layer in updates.values():
    layer.uniform_(-1, 1)
held = sum(layer.nbytes for layer in updates.values())
start = time.perf_counter()
scores = analyze(updates)
seconds = time.perf_counter() - start
print(idle, held, memory("VmHWM"), seconds, *(score.norm / sizes[name] ** 0.5 for name, score in scores.items()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_hundred_clients_of_four_million_parameters_need_little_beyond_their_updates():
    printed = subprocess.run([sys.executable, "-c", HUGE], check=True, capture_output=True, text=True).stdout
    idle, held, peak, _, *norms = map(float, printed.split())
    assert held == 100 * 4_400_000 * 4
    assert peak - idle <= held + 256 * 2**20
    assert norms == pytest.approx([1 / math.sqrt(3)] * 3, rel=1e-2)
