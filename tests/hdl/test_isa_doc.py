"""docs/isa.md is what the definition renders to."""

from pathlib import Path

from trivet.hdl.isa_doc import render


def test_page_is_current():
    page = Path(__file__).resolve().parents[2] / "docs" / "isa.md"
    assert page.read_text() == render(), "run: python -m trivet.hdl.isa_doc > docs/isa.md"
