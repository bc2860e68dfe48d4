"""Former names of what modules define."""

import pytest

from trimtab import report
from trimtab.training import compare


def test_former_names_of_classes_warn_and_work() -> None:
    with pytest.warns(DeprecationWarning, match="Comparing is now called ComparisonRunner") as caught:
        assert compare.Comparing is compare.ComparisonRunner  # type: ignore[attr-defined]
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="Material is now called ReportData"):
        from trimtab.report import Material  # type: ignore[attr-defined]
    assert Material is report.ReportData


def test_what_a_module_never_had_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'trimtab\.report' has no attribute 'Nothing'"):
        _ = report.Nothing  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        from trimtab.training.compare import Nothing  # type: ignore[attr-defined] # noqa: F401
