"""What stands on the page beside the heat maps of a sweep."""

from statistics import fmean

from trimtab.records import STATES, Sweep
from trimtab.report.formatting import format_count, format_number
from trimtab.report.markup import Markup, element, paragraphs, table

NONE = "–"


def title(sweep: Sweep) -> str:
    """What was swept, on which data."""
    settings = sweep.settings
    axes = " × ".join(axis.name.replace("_", " ") for axis in sweep.axes)
    return f"{axes}: {settings['network']}, {settings['method']}, on {settings['data']}"


def verdict(sweep: Sweep) -> str:
    """What came out."""
    if sweep.finished:
        return sweep.conclusion
    done = sum(len(cell.restarts) for cell in sweep.cells)
    return f"The sweep is not finished: {done} of {len(sweep.cells) * len(sweep.seeds)} networks are trained."


def values(sweep: Sweep) -> Markup:
    """Each point of the grid: states, loss, accuracy, step of explosion."""
    rows = []
    for cell in sweep.cells:
        states = [restart.state for restart in cell.restarts]
        losses = [restart.loss for restart in cell.restarts if restart.loss is not None]
        accuracies = [restart.accuracy for restart in cell.restarts if restart.accuracy is not None]
        steps = [str(restart.exploded_at) for restart in cell.restarts if restart.exploded_at is not None]
        rows.append(
            [
                *(format_number(value, 4) for value in cell.values),
                cell.why_not
                or ", ".join(f"{states.count(one)} {one}" for one in STATES if one in states)
                or "not trained",
                format_number(fmean(losses), 3) if losses else NONE,
                f"{100 * fmean(accuracies):.1f}" if accuracies else NONE,
                ", ".join(steps) or NONE,
            ]
        )
    head = [axis.name.replace("_", " ") for axis in sweep.axes]
    measured = ["ended", f"{sweep.part} loss", "accuracy in %", "exploded at step"]
    return table(
        [*head, *measured], rows, "values", headers=len(head), caption="Means over networks that did not explode"
    )


def boundaries(sweep: Sweep) -> list[object]:
    """The measured and predicted largest rates, slice by slice."""
    at = sweep.rate_axis
    assert at is not None
    exploded, untrained = sweep.boundary("exploded"), sweep.boundary("untrained")
    rows = []
    for i, (place, cells) in enumerate(sweep.slices()):
        losses = {
            cell.values[at]: fmean(restart.loss for restart in cell.restarts if restart.loss is not None)
            for cell in cells
            if cell.restarts and all(restart.loss is not None for restart in cell.restarts)
        }
        best = min(losses, key=lambda rate: losses[rate]) if losses else None
        predicted = [one.rates[i] for one in sweep.predictions]
        numbers = [exploded[i], untrained[i], best, *predicted]
        words = [NONE if number is None else format_number(number, 3) for number in numbers]
        rows.append([*(format_number(value, 4) for value in place), *words])
    others = [axis.name.replace("_", " ") for i, axis in enumerate(sweep.axes) if i != at]
    head = [
        *others,
        "explodes from",
        "not all trained from",
        "lowest loss at",
        *(f"η*: {one.name}" for one in sweep.predictions),
    ]
    about = [
        "A network explodes at the smallest learning rate of the grid at which one of its restarts does; the boundary "
        "itself lies between that rate and the one below it.",
        *(f"{one.name.capitalize()}: {one.description}." for one in sweep.predictions),
    ]
    said: dict[str, list[str]] = {}
    for one in sweep.predictions:
        for note in one.notes:
            said.setdefault(note, []).append(one.name)
    about += [f"To be kept in mind ({', '.join(names)}): {note}" for note, names in said.items()]
    if sweep.predictions:
        about.append("Predictions are for SGD at the start of training, 2(1 + momentum)/λ_max.")
    return [table(head, rows, "boundaries", headers=len(others)), paragraphs(about)]


def settings(sweep: Sweep) -> Markup:
    """The settings that all networks have in common, and the axes."""
    axes = {axis.name for axis in sweep.axes}
    shown = [
        [name.replace("_", " "), str(value)]
        for name, value in sweep.settings.items()
        if name not in (*axes, "seed") and value not in (None, [], ())
    ]
    rows = [[axis.name.replace("_", " "), ", ".join(format_number(x, 4) for x in axis.values)] for axis in sweep.axes]
    rows += [["seeds", ", ".join(map(str, sweep.seeds))]]
    states = [f"{name}: {words}" for name, words in STATES.items()]
    if sweep.chance is not None:
        states.append(f"chance: an accuracy up to {100 * sweep.chance:.1f} %")
    engine = f"Engine: {sweep.engine}, since {sweep.reason}."
    return Markup(
        table(["setting", "value"], [*rows, *shown], "settings", words=True) + element("p", engine) + paragraphs(states)
    )


def hardware(sweep: Sweep) -> Markup:
    """Where it was measured, with which versions."""
    versions = ", ".join(f"{name} {version}" for name, version in sweep.versions.items())
    return element("p", f"{sweep.machine}; {versions}; {format_count(len(sweep.cells) * len(sweep.seeds), 'network')}.")
