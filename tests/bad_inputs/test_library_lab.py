"""Calls of norms, networks, probes and theory that cannot work: each is refused with one sentence.

All options of all probes are in tests/probes/test_options.py.
"""

import math
from typing import Any

import torch
from torch import nn

import trimtab
from tests.bad_inputs.calls import Row, each, parameters, refused
from trimtab import predict
from trimtab.networks import build, input_shape, places
from trimtab.norms import (
    BatchRenorm,
    FourThingsBatchNorm,
    GhostBatchNorm,
    LpNorm,
    NoisyBatchNorm,
    Norm,
    gamma_decay,
)
from trimtab.probes import Landscape, Monitor, Spectrum, split_batch
from trimtab.theory import bounds, mean_field, teacher_student
from trimtab.theory.generalization import ridge_curve
from trimtab.theory.implicit_decay import batch_prior, first_order_term, implicit_decay, linear_decay, measured_kurtosis
from trimtab.theory.simulation import measure_decay, simulate

NAN, INF = math.nan, math.inf


def linear() -> nn.Linear:
    return nn.Linear(3, 2)


ROWS: list[Row] = [
    # normalizations
    *each(("foo", "", None, 3, []), lambda v: Norm(v), ValueError, "There is no normalization "),
    *each(("foo-pre", "bn-post", None, 3), lambda v: Norm.parse(v), ValueError, "There is no normalization "),
    *(
        (lambda n=n: Norm("bn", **{n: "x"}), ValueError, f"{n} must be a number, not 'x'")
        for n in ("gamma", "zeta", "eps", "momentum")
    ),
    (lambda: Norm("bn", gamma=INF), ValueError, "gamma must be a finite number"),
    (lambda: Norm("bn", eps=-1), ValueError, "eps must be a finite number, 0 or larger"),
    (lambda: Norm("bn", momentum=2), ValueError, r"momentum must be in \[0, 1\], not 2"),
    (lambda: Norm("bn", fixed_gamma="no"), ValueError, "fixed_gamma must be True or False"),
    (lambda: Norm("bn", group_size=3), ValueError, "group_size has no meaning for bn; it is for gn and bn4"),
    *each(
        (0, 2.5, "4", True),
        lambda v: Norm("gn", group_size=v),
        ValueError,
        "group_size must be a whole number, 1 or larger",
    ),
    (lambda: Norm("ghost", ghost_size=-1), ValueError, "ghost_size must be a whole number, 1 or larger, not -1"),
    (lambda: Norm("none", gamma=0.5), ValueError, "Without a normalization there is no γ"),
    *each(
        (0, 2.5, "8", None), lambda v: Norm("bn").layer(v, 2), ValueError, "width must be a whole number, 1 or larger"
    ),
    (lambda: Norm("bn").layer(8, 4), ValueError, "space must be 0 to 3 spatial dimensions"),
    (lambda: Norm("gn", group_size=3).layer(8, 2), ValueError, "group_size must divide the 8 channels"),
    (lambda: Norm("in").layer(8, 0), ValueError, "InstanceNorm needs positions"),
    *each(
        (0, "a", 2.5, None), lambda v: BatchRenorm(v), ValueError, "num_features must be a whole number, 1 or larger"
    ),
    (lambda: BatchRenorm(4, eps="a"), ValueError, "eps must be a number, not 'a'"),
    (lambda: BatchRenorm(4, r_max=0.5), ValueError, "r_max must be 1 or larger"),
    (lambda: BatchRenorm(4, d_max=None), ValueError, "d_max must be a number, not None"),
    (lambda: GhostBatchNorm(4, ghost_size=1.5), ValueError, "ghost_size must be a whole number"),
    (lambda: FourThingsBatchNorm(4, group_size=3), ValueError, "group_size must divide the 4 channels"),
    (lambda: FourThingsBatchNorm(4, alpha="a"), ValueError, "alpha must be a number, not 'a'"),
    *each((0.5, NAN, "a"), lambda v: LpNorm(4, p=v), ValueError, "p must be "),
    (lambda: NoisyBatchNorm(4, n_mu=-1), ValueError, "n_mu must be 0 or larger"),
    (lambda: GhostBatchNorm(4)(torch.ones(2, 5)), ValueError, "was made for 4 channels, not for an input of shape"),
    (lambda: GhostBatchNorm(4)(torch.ones(2, 4, dtype=torch.int64)), ValueError, "takes floating-point inputs"),
    (lambda: GhostBatchNorm(4)(torch.ones(1, 4)), ValueError, "more than one value per statistic"),
    (lambda: gamma_decay(None, 0.1), TypeError, r"gamma_decay takes a torch\.nn\.Module"),
    *each(("a", -1.0, None, NAN), lambda v: gamma_decay(linear(), v), ValueError, "zeta must be "),
    # networks
    *each(("foo", "", None, 3, []), lambda v: build(v), ValueError, "There is no network .* Known are: "),
    (lambda: places("foo"), ValueError, "There is no network 'foo'"),
    (lambda: input_shape("vgg19"), ValueError, "did you mean 'vgg16'"),
    *each(("foo", None, 3), lambda v: build("vgg", v), ValueError, "There is no normalization "),
    *each(
        (3, "abc", (3, -1, 32), (3, 32.5, 32), (), (True, 32, 32)),
        lambda v: build("cnn5", input_shape=v),
        ValueError,
        "input_shape must be positive whole numbers",
    ),
    (lambda: build("cnn5", input_shape=(3,)), ValueError, "cnn5 takes images"),
    (lambda: build("cnn5", input_shape=(3, 2, 2)), ValueError, "cnn5 takes images of at least 18×18"),
    (lambda: build("dln25", input_shape=(5,)), ValueError, "dln25 has square layers only"),
    *each(
        (0, "10", 2.5, True, None),
        lambda v: build("cnn5", classes=v),
        ValueError,
        "classes must be a positive whole number",
    ),
    *each(("foo", 3, []), lambda v: build("cnn5", init=v), ValueError, "There is no initialization "),
    *each((0, "a", NAN, None), lambda v: build("cnn5", init_scale=v), ValueError, "init_scale must be a "),
    *each(("foo", None, []), lambda v: build("resnet18", stem=v), ValueError, "There is no stem "),
    (lambda: build("cnn5", stem="imagenet"), ValueError, "cnn5 has no choice of stems"),
    (lambda: build("cnn5", dropout=0.5), ValueError, "cnn5 has no dropout"),
    *each((1, "a", NAN), lambda v: build("regcnn", dropout=v), ValueError, "dropout must be a number"),
    (lambda: build("cnn5", sigma_w2=1), ValueError, "sigma_w2 and sigma_b2 belong to the initialization 'meanfield'"),
    *each((-1, "a", INF), lambda v: build("mf-mlp", sigma_b2=v), ValueError, "sigma_b2 must be a "),
    *each(([99], ["a"], 3, "01"), lambda v: build("cnn5", "bn", norm_layers=v), ValueError, "norm_layers "),
    (lambda: build("cnn5", conv_bias="no"), ValueError, "conv_bias must be True or False"),
    (lambda: build("mlp3x100", "in"), ValueError, "The norm 'in' makes no sense at place 0 of mlp3x100"),
    # predictions
    *each((None, nn.Linear, "vgg"), lambda v: predict(v, (3,)), ValueError, r"model must be a torch\.nn\.Module"),
    *each(
        (None, 3, (), (0,), ("3",), "3", (3.0,)),
        lambda v: predict(linear(), v),
        ValueError,
        "input_shape must be a sequence of positive whole numbers",
    ),
    (lambda: predict(linear(), (4,)), ValueError, r"input_shape: the model does not take \(12, 4\)"),
    *each(
        (1, -0.1, NAN, "a", None),
        lambda v: predict(linear(), (3,), momentum=v),
        ValueError,
        r"momentum must be in \[0, 1\)",
    ),
    *each(
        ("nonsense", []),
        lambda v: predict(linear(), (3,), statistics=v),
        ValueError,
        "statistics must be one of 'batch', 'frozen', 'running', not",
    ),
    (lambda: predict(linear(), (3,), statistics="running"), ValueError, "can only be measured: give inputs"),
    *each(("hinge", None, 3), lambda v: predict(linear(), (3,), loss=v), ValueError, "loss must be 'squared'"),
    *each(("two", 1, None), lambda v: predict(linear(), (3,), outputs=v), ValueError, "outputs must be 'all' or 'one'"),
    *each(
        (0, 1.5, True),
        lambda v: predict(linear(), (3,), inputs=torch.ones(4, 3), batch_size=v),
        ValueError,
        "batch_size must be None or a whole number",
    ),
    (lambda: predict(linear(), (3,), loss="cross_entropy", outputs="one"), ValueError, "goes with loss='squared' only"),
    (lambda: predict(linear(), (3,), loss=lambda f, y: f.sum()), ValueError, "can only be measured: give inputs"),
    (
        lambda: predict(linear(), (3,), loss=lambda f, y: f.sum(), inputs=torch.ones(4, 3)),
        ValueError,
        "targets must be",
    ),
    (lambda: predict(linear(), (3,), targets=torch.ones(4)), ValueError, "targets must come with inputs"),
    (lambda: predict(linear(), (3,), inputs=torch.ones(4, 3), targets=torch.ones(3)), ValueError, "targets must be a"),
    (lambda: predict(linear(), (3,), measure="yes"), ValueError, "measure must be True, False or None"),
    *each(
        (0, 2.5, True, "a"),
        lambda v: predict(linear(), (3,), samples=v),
        ValueError,
        "samples must be None or a whole number",
    ),
    *each(
        (torch.ones(3), "x", torch.full((4, 3), NAN)),
        lambda v: predict(linear(), (3,), inputs=v),
        ValueError,
        "inputs must be ",
    ),
    (lambda: predict(nn.ReLU(), (3,)), ValueError, "The model has no parameter that is trained"),
    # probes
    (lambda: Landscape(), ValueError, "Give a step_size, or an optimizer"),
    (lambda: Landscape(step_size=0.1, statistics="foo"), ValueError, "statistics must be one of "),
    (lambda: Spectrum(top=0), ValueError, "top must be a whole number, 1 or larger"),
    (
        lambda: Spectrum()(None, lambda model, batch: model, 3),
        TypeError,
        r"model must be a torch\.nn\.Module, not None",
    ),
    (
        lambda: Spectrum()(linear(), nn.CrossEntropyLoss(), torch.ones(2, 3)),
        TypeError,
        r"loss_fn is called as loss_fn\(model, batch\)",
    ),
    *each((3, [3], None, "spectrum"), lambda v: Monitor(v), ValueError, "probes must be probes"),
    (lambda: Monitor([Spectrum(), Spectrum()]), ValueError, "probes must have different names"),
    *each((0, "a", 1.5), lambda v: Monitor([Spectrum()], every=v), ValueError, "every must be a whole number of steps"),
    *each(([-1], "ab", [1.5]), lambda v: Monitor([Spectrum()], at=v), ValueError, "at must be a list of whole numbers"),
    (lambda: split_batch(torch.ones(4, 2), 5), ValueError, "parts must be between 1 and the 4 samples"),
    # theory
    *each((-1, 0, "a", NAN), lambda v: ridge_curve(v, 0), ValueError, "alpha must be "),
    (lambda: ridge_curve(1, 0, noise_variance=-1), ValueError, "noise_variance must be 0 or larger and finite"),
    *each(("a", NAN, None), lambda v: batch_prior(v, 1, 8), ValueError, "mu must be a finite number"),
    (lambda: batch_prior(0, -1, 8), ValueError, "sigma must be positive"),
    *each((1, "a", NAN, None), lambda v: linear_decay(v), ValueError, "batch_size must be "),
    (lambda: implicit_decay(["a"], 8), ValueError, "normalized must be numbers"),
    (lambda: implicit_decay([1.0, 2.0], 8, curvature="foo"), ValueError, "'foo' is not a known link: take one of"),
    (lambda: first_order_term([1.0, 2.0], [1.0], 8), ValueError, "labels must be as many as the samples"),
    *each(([], "a", [NAN, 1.0]), lambda v: first_order_term([1.0, 2.0], v, 8), ValueError, "labels must "),
    (lambda: measure_decay(8, noise="x"), ValueError, "noise must be 'both', 'mu' or 'sigma'"),  # type: ignore[arg-type]
    *each(([], "a", [1.0, 1.0]), lambda v: measured_kurtosis(v), ValueError, "values must "),
    *each(("a", [], [[NAN]], [[0.0]]), lambda v: bounds.condition_number(v), ValueError, "matrix "),
    (lambda: bounds.gain([[1, 2], [3, 4]], form="x"), ValueError, "form must be 'corrected' or 'printed'"),
    *each((0, 1.5, "a"), lambda v: bounds.cheaper_than_bn(v, 1), ValueError, "n_out must be a whole number"),
    *each(("a", [], [[1.0], [1.0]]), lambda v: bounds.property_a(v), ValueError, "inputs "),
    (lambda: bounds.bnp_operations(0, 1, 1), ValueError, "n_in must be a whole number"),
    (lambda: teacher_student.rate((1, 0), 0.1), ValueError, "state must be the three numbers"),
    (lambda: teacher_student.rate((1, 2, 1), 0.1), ValueError, "overlap must lie between -1 and 1"),
    (lambda: teacher_student.solve("a", 0.1), ValueError, "times must be finite, increasing"),
    (lambda: teacher_student.stability(-1), ValueError, "eta must be positive"),
    (lambda: teacher_student.averages(1, 0, "gelu"), ValueError, "activation must be one of relu, erf"),
    *each(("a", NAN, None), lambda v: mean_field.max_learning_rate(v), ValueError, "lambda_max must be a number"),
    *each(
        ([], 3, ["a"]),
        lambda v: mean_field.mean_field(v, sigma_w2=1.0, sigma_b2=0.0),
        ValueError,
        "layers must be a list of one or more",
    ),
    (
        lambda: mean_field.mean_field([mean_field.Dense(3, 2)], sigma_w2=-1.0, sigma_b2=0.0),
        ValueError,
        "sigma_w2 must be finite and 0",
    ),
    *each((0, "a", 2.5), lambda v: mean_field.Dense(v, 2), ValueError, "width_in must be a whole number"),
    (lambda: mean_field.LeakyReLU("a"), ValueError, "negative_slope must be a finite number"),
    (lambda: simulate("a", 0.1), ValueError, "times must be finite, increasing"),
    # the package itself
    (lambda: trimtab.bpn, AttributeError, "module 'trimtab' has no attribute 'bpn'"),
]


@parameters(ROWS)
def test_a_call_that_cannot_work_gets_its_sentence(call: Any, kind: type[Exception], sentence: str) -> None:
    refused(call, kind, sentence)
