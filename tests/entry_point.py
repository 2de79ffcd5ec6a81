"""The command line as a user's shell starts it, without a process for each call."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trivet import _cli_common, cli

__all__ = ["Call", "entry_point"]

Call = Callable[..., tuple[int, str, str]]


def entry_point(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """``call(*arguments)`` runs it in the folder: (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(_cli_common, "_verbose", False)
        monkeypatch.setattr(sys, "argv", ["trivet", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        code = exit_.value.code
        return (0 if code is None else int(code)), out, err

    return call
