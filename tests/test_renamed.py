"""Former names of what modules define and functions take."""

import pytest
import torch
from torch import nn

import trimtab
from trimtab import report
from trimtab.bnp.layers import layer_type
from trimtab.training import compare


def test_former_names_of_classes_warn_and_work() -> None:
    with pytest.warns(DeprecationWarning, match="Comparing is now called ComparisonRunner") as caught:
        assert compare.Comparing is compare.ComparisonRunner  # type: ignore[attr-defined]
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="Material is now called ReportData"):
        from trimtab.report import Material  # type: ignore[attr-defined]
    assert Material is report.ReportData


def test_the_former_name_of_the_canonical_view() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))

    with pytest.warns(DeprecationWarning, match="units is now called view") as caught:
        register = trimtab.register_layer(Transposed, units=trimtab.bnp.input_first)  # type: ignore[call-arg]
    assert caught[0].filename == __file__

    @register
    def rows(layer: Transposed, x: torch.Tensor, y: torch.Tensor, options: trimtab.bnp.Options) -> trimtab.Rows:
        return trimtab.Rows(trimtab.Moments.of(x, columns=-1), samples=len(x), positions=len(x))

    known = layer_type(Transposed())
    assert known is not None and known.view is trimtab.bnp.input_first


def test_what_a_module_never_had_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'trimtab\.report' has no attribute 'Nothing'"):
        _ = report.Nothing  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        from trimtab.training.compare import Nothing  # type: ignore[attr-defined] # noqa: F401
