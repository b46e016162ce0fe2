"""What a person is told of a comparison: tables that fit a terminal, and a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedlag.results.methods import CONTROLS, LOCAL, TUNED, Comparison, Estimate, Method
from fedlag.results.scores import NUMBERS
from fedlag.significance import BEATS, LOSES, OPEN, Contrast

TITLES = {"local": "Local", "fedavg": "FedAvg", "fedavg-ft": "FedAvg+FT", "fedlag": "FedLAG"}
MARK = "*"  # of what nobody asked for
IN_A_CELL = {BEATS: "beats", LOSES: "loses", OPEN: "open"}


def printable(comparison: Comparison) -> list[dict[str, str]]:
    """How good each method's models are, within 80 columns: in percent, the headline ± its spread over seeds."""
    made = []
    for method in comparison.methods.values():
        mean = {number: method.over_seeds(number) for number in NUMBERS}
        made.append(
            {
                "method": _marked(comparison, method),
                "accuracy %": _percent(mean["accuracy"], spread=True),
                "weighted": _percent(mean["weighted"]),
                "median": _percent(mean["median"]),
                "worst 10%": _percent(mean["worst_tenth"]),
                "last": _percent(mean["last"]),
                "optimistic": _percent(mean["optimistic"]),
            }
        )
    return made


def standings(comparison: Comparison) -> list[dict[str, str]]:
    """How each method stands to training alone and to fine-tuned FedAvg, and what it sends, within 80 columns.

    Mean gain over Local in points ± half its 95 % interval over seeds; how many clients gain, lose and stay equal;
    what the corrected tests say; megabytes both ways; the runs made to choose its settings, where there were any.
    """
    alone, tuned = comparison.against(LOCAL), comparison.against(TUNED)
    any_trials = any(method.trials for method in comparison.methods.values())
    made = []
    for method in comparison.methods.values():
        gain = method.gain
        down, up = (method.over_seeds(number) for number in ("down_bytes", "up_bytes"))
        made.append(
            {
                "method": _marked(comparison, method),
                "gain": _points(alone[method.name]) if method.name in alone else "",
                "+/-/=": f"{gain.gaining}/{gain.losing}/{gain.equal}" if gain else "",
                "Local": IN_A_CELL[alone[method.name].outcome] if method.name in alone else "",
                "FedAvg+FT": IN_A_CELL[tuned[method.name].outcome] if method.name in tuned else "",
                "MB": _megabytes(down, up),
                **({"trials": str(method.trials)} if any_trials else {}),
            }
        )
    return made


def verdict(comparison: Comparison, method: str | None = None) -> str:
    """One sentence: who gains over training alone, who loses, and how the method stands to the controls.

    Judged is FedLAG unless another method is named, or else the first that is no control.
    """
    methods = comparison.methods
    if method is None:
        method = next((name for name in ("fedlag", *methods) if name in methods.keys() - CONTROLS.keys()), "fedlag")
    if method not in methods:
        best = max(methods.values(), key=lambda one: one.accuracy)
        return (
            f"There is no run of {title(method)} to judge; {title(best.name)} has the highest mean accuracy of what "
            f"was run, {best.accuracy:.1%}."
        )
    families = {called: comparison.against(name) for name, called in CONTROLS.items()}
    found = {called: family[method] for called, family in families.items() if method in family}
    return "; ".join([_standing(methods[method]), *_clauses(found)]) + "."


def title(method: str) -> str:
    return TITLES.get(method, method)


def _standing(method: Method) -> str:
    """How a method's clients fare against training alone; the larger camp is named first."""
    gain, called = method.gain, title(method.name)
    if method.name == LOCAL:
        return f"{called} is training alone, which the others are measured by, and reaches {method.accuracy:.1%}"
    if gain is None:
        return (
            f"{called} reaches {method.accuracy:.1%} on average, but whether its clients gain over training alone is "
            f"unknown without a run of {title(LOCAL)} with the same seed"
        )
    seeds = len(set(gain.seeds.tolist()))
    where = f", {seeds} seeds" if seeds > 1 else ""
    camps = [(gain.gaining, "gain over"), (gain.losing, "lose against")]
    (most, fare), (fewer, other) = camps if gain.gaining >= gain.losing else camps[::-1]
    return (
        f"{called}{where}: {most} of {len(gain.points)} clients {_verb(most, fare)} training alone "
        f"(median {gain.median:+z.1f} points), {fewer} {_verb(fewer, other.split()[0])}, "
        f"{gain.equal} {_verb(gain.equal, 'stay')} equal"
    )


def _clauses(found: Mapping[str, Contrast]) -> Iterator[str]:
    """What was shown of a method, and what was not, against each control by its name in a sentence."""
    for outcome in (BEATS, LOSES):
        shown = [f"{name} by {abs(one.points):.1f}" for name, one in found.items() if one.outcome == outcome]
        if shown:
            yield f"it {outcome} {_listed(shown)} points"
    unclear = [f"{name} ({_points(one)})" for name, one in found.items() if one.outcome == OPEN]
    if unclear:
        single = all(one.margin is None for one in found.values())
        yield f"no difference is shown from {_listed(unclear)}" + (", by a single seed" if single else "")


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _verb(count: int, words: str) -> str:
    """In the singular for one: `gain over` becomes `gains over`."""
    verb, *rest = words.split()
    return " ".join([f"{verb}s" if count == 1 else verb, *rest])


def _marked(comparison: Comparison, method: Method) -> str:
    return title(method.name) + (f" {MARK}" if method.name in comparison.added else "")


def _points(contrast: Contrast) -> str:
    return f"{contrast.points:+z.1f}" + ("" if contrast.margin is None else f" ± {contrast.margin:.1f}")


def _percent(estimate: Estimate | None, spread: bool = False) -> str:
    if estimate is None:
        return ""
    return f"{100 * estimate.mean:.1f}" + (f" ± {100 * estimate.sd:.1f}" if spread and estimate.sd is not None else "")


def _megabytes(*sent: Estimate | None) -> str:
    return f"{sum(estimate.mean for estimate in sent if estimate) / 1e6:,.1f}"
