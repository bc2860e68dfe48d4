"""landscape, Figs. 1 to 4, 8 and 11: the VGG-like network, probed along its training."""

from statistics import fmean
from typing import Any

from trimtab.claims import probed_findings as enter
from trimtab.claims import probed_runs as measures
from trimtab.claims.experiments.landscape_setup import ALONG, METHODS, STEPS, of_methods, setup
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import EVALUATIONS, enter_runs, train_cases
from trimtab.records import History

FAR = (8.0, 16.0, 32.0)


@experiment(
    "vgg", "VGG-like network, probed along the way", small=10, seeds=(2, 3), gpu=25, paper=25, needs=("cifar10",)
)
def vgg(findings: Findings, context: Context) -> None:
    """Without normalization, with BatchNorm, and with noise after BatchNorm."""
    every = 40 if context.size == "small" else 100
    shared = setup(findings, context, probe=ALONG, probe_every=every)
    trained = train_cases(context, of_methods(*METHODS, "noisy-bn"), shared, context.seeds(3))
    enter_runs(findings, trained, 10)
    enter_all(findings, enter.runs_of(trained))


def enter_all(findings: Findings, runs: enter.Runs) -> None:
    """Enter all that the claims on these runs need."""
    enter.enter_training(findings, runs)
    for case, by_seed in runs.items():
        for seed, run in by_seed.items():
            if not measures.diverged(run):
                points = measures.training_accuracy(run)
                rise = points[-1][1] - measures.value_at(points, 0.8 * measures.steps_of(run))
                findings.number("rise over the last fifth", case, rise, seed=seed, unit="points")
    for seed, run, vanilla in enter.pairs(runs, "bn"):
        gain = findings.numbers["acc"]["bn"][str(seed)] - findings.numbers["acc"]["vanilla"][str(seed)]
        findings.number("gain over vanilla", "bn", gain, seed=seed, unit="points")
        for words, part in (("first-tenth", measures.FIRST_TENTH), ("second-half", measures.SECOND_HALF)):
            left, right = (measures.middle(each, "landscape", measures.LINE["range"], part) for each in (vanilla, run))
            findings.number(
                "range of vanilla over bn's", words, measures.advantage(left, right), seed=seed, unit="factor"
            )
    enter.enter_share(findings, runs, "share of evaluations ahead of vanilla", "bn", enter.share_ahead)
    enter.enter_line(findings, runs)
    enter.enter_line(findings, runs, "random", " along random directions")
    enter.enter_edges(findings, runs)
    for words, near in (("near", True), ("far", False)):
        enter.enter_least_advantage(
            findings, runs, f"least advantage in change, {words} distances", "bn", enter.least_of_multiples(near)
        )
    enter_layers(findings, runs)
    enter.enter_band(findings, runs)
    enter.enter_cosines(findings, runs)


def enter_layers(findings: Findings, runs: enter.Runs) -> None:
    """Enter what is told of layers: covariate shift, stability of activations."""
    enter.enter_share(
        findings,
        runs,
        "share of layers with alike stabilities",
        "bn",
        enter.both_stabilities(lambda a, b: 1 / 3 <= measures.advantage(a, b) <= 3),
    )
    enter.enter_share(
        findings,
        runs,
        "share of layers less stable",
        "noisy-bn",
        enter.both_stabilities(lambda a, b: a >= 1.5 * b),
    )
    for moment, words in ((0, "mean"), (1, "variance")):
        enter.enter_share(
            findings, runs, f"share of layers with twice the change of {words}", "noisy-bn", _twice(moment)
        )
    for words, share in (
        ("share of layers with no higher cosine", _no_higher_cosine),
        ("share of layers with no smaller distance", _no_smaller_distance),
        ("share of layers with more shift", _more_shift),
        ("share of layers with no higher cosine at equal loss", _no_higher_at_equal_loss),
    ):
        enter.enter_share(findings, runs, words, "bn", share)
    for case, by_seed in runs.items():
        for seed, run in by_seed.items():
            found = {"cosine": measures.cosines(run), "relative distance": measures.relative_distances(run)}
            found["stability of the mean"], found["stability of the variance"] = measures.stability(run)
            for name, layers in found.items():
                if layers:
                    findings.number(f"{name}, mean of layers", case, fmean(layers.values()), seed=seed, unit="factor")


def _twice(moment: int) -> enter.Shared:
    def share(run: History, vanilla: History) -> float:
        left, right = measures.moment_changes(run)[moment], measures.moment_changes(vanilla)[moment]
        return measures.share_of_layers(lambda a, b: a >= 2 * b, left, right)

    return share


def _no_higher_cosine(run: History, vanilla: History) -> float:
    return measures.share_of_layers(lambda a, b: a <= b + 0.1, measures.cosines(run), measures.cosines(vanilla))


def _no_smaller_distance(run: History, vanilla: History) -> float:
    left, right = measures.relative_distances(run), measures.relative_distances(vanilla)
    return measures.share_of_layers(lambda a, b: a >= 0.9 * b, left, right)


def _more_shift(run: History, vanilla: History) -> float:
    return measures.share_of_layers(
        lambda a, b, c, d: a < b and c > d,
        measures.cosines(run),
        measures.cosines(vanilla),
        measures.relative_distances(run),
        measures.relative_distances(vanilla),
    )


def _no_higher_at_equal_loss(run: History, vanilla: History) -> float:
    return measures.share_of_layers(lambda above: above <= 0.1, measures.cosines_above(run, vanilla))


@experiment(
    "vgg-far", "The same, looked at 8, 16 and 32 steps ahead", small=1.7, seeds=(2, 3), gpu=20, needs=("cifar10",)
)
def far(findings: Findings, context: Context) -> None:
    """Fig. 4, at larger distances."""
    every = 40 if context.size == "small" else 100
    shared = setup(findings, context, probe=("landscape",), probe_multiples=FAR, probe_every=every, evaluations=1)
    runs = enter.runs_of(train_cases(context, of_methods(*METHODS), shared, context.seeds(3)))
    enter.enter_line(findings, runs)
    enter.enter_band(findings, runs)


@experiment("vgg-flat", "Curvature at the end of training", small=1.5, seeds=(2, 3), gpu=15, needs=("cifar10",))
def flat(findings: Findings, context: Context) -> None:
    """Sec. 6: the largest eigenvalue of the Hessian before the last step, on its batch and in training mode."""
    last = STEPS[context.size] - 1
    shared = setup(findings, context, probe=("spectrum",), probe_at=(last,), evaluations=1)
    runs = enter.runs_of(train_cases(context, of_methods(*METHODS), shared, context.seeds(3)))
    for case, by_seed in runs.items():
        for seed, run in by_seed.items():
            value = measures.middle(run, "spectrum", lambda result: float(result["largest"][0]))
            findings.number("largest eigenvalue at the end", case, value, seed=seed, unit="factor")
            findings.number("final loss", case, measures.final_training_loss(run), seed=seed, unit="loss")


@experiment("vgg-noise", "Noise without BatchNorm", small=4.3, seeds=(2, 3), gpu=10, needs=("cifar10",))
def noise(findings: Findings, context: Context) -> None:
    """Sec. 2.1: the noise of Algorithm 1 after each convolution of the standard network."""
    shared = setup(findings, context)
    trained = train_cases(context, of_methods("vanilla", "noise-only"), shared, context.seeds(3))
    enter_runs(findings, trained, 10)
    enter.enter_training(findings, enter.runs_of(trained))


@experiment(
    "vgg-augmented",
    "The same with augmentation, several times as long",
    small=2.9,
    gpu=30,
    paper=60,
    needs=("cifar10",),
)
def augmented(findings: Findings, context: Context) -> None:
    """App. A.1: as long as the training loss falls."""
    steps, evaluations = (1500, 4) if context.size == "small" else (60_000, EVALUATIONS)
    shared = setup(findings, context, steps=steps, augment=True, evaluations=evaluations)
    trained = train_cases(context, of_methods(*METHODS), shared, context.seeds(3 if context.size == "paper" else 2))
    enter_runs(findings, trained, 10)
    for seed, value in findings.numbers["acc"]["bn"].items():
        gain = value - findings.numbers["acc"]["vanilla"][seed]
        findings.number("gain over vanilla", "bn", gain, seed=seed, unit="points")


@experiment(
    "other-networks",
    "The landscape of cnn5 and VGG16",
    small=1.3,
    gpu=25,
    paper=45,
    needs=("cifar10",),
)
def other_networks(findings: Findings, context: Context) -> None:
    """App. A.1: other architectures, with the same recipe, normalized before the activation."""
    recipe: dict[str, Any] = {
        "momentum": 0.0,
        "weight_decay": 0.0,
        "augment": False,
        "normalize": "unit",
        "init": "glorot",
    }
    recipe |= {"norm_momentum": 0.1, "norm_eps": 1e-5, "before_activation": True}
    seeds = context.seeds(3 if context.size == "paper" else 2)
    every, vgg16 = 150, {"network": "vgg16"}
    if context.size == "small":
        every, vgg16 = 40, {"network": "regcnn", "data": "digits"}
    for name, own in (("cnn5", {"network": "cnn5"}), ("vgg16", vgg16)):
        shared = setup(findings, context, **{**recipe, **own}, probe=("landscape",), probe_every=every)
        runs = enter.runs_of(train_cases(context, of_methods(*METHODS), shared | {"evaluations": 1}, seeds))
        for measure in measures.LINE:
            enter.enter_least_advantage(
                findings, runs, f"least advantage in {measure}", "bn", enter.least_of_thirds(measure), f"{name}-"
            )
    if context.size == "small":
        findings.neighbour = "regcnn on digits instead of VGG16 on CIFAR-10"
