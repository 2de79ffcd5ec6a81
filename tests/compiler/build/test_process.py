"""A tool's lines arrive, its time is limited, and nothing of it is left when we stop."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from stand_in_tools import hears_ctrl_c

from trivet.compiler.build.process import TimeLimit, run_tool

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
open("pids", "w").write(f"{child.pid}")
print("started", flush=True)
time.sleep(100)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> bool:
    for _ in range(100):
        if not is_running(pid):
            return True
        time.sleep(0.05)
    return False


def test_lines_code_time_and_memory_are_told(tmp_path: Path) -> None:
    heard: list[str] = []
    code = (
        "import sys; x = bytearray(50_000_000); print('one'); sys.stderr.write('two\\n'); exit(3)"
    )
    done = run_tool(python(code), tmp_path, on_line=heard.append)
    assert done.code == 3
    assert sorted(heard) == ["one", "two"]
    assert sorted(done.lines) == ["one", "two"]
    assert done.memory_bytes is None or done.memory_bytes > 50_000_000
    assert done.seconds > 0


def test_it_runs_in_the_folder_with_what_is_added_to_the_environment(tmp_path: Path) -> None:
    code = "import os; open('made', 'w').write(os.environ['ADDED'])"
    run_tool(python(code), tmp_path, environment={"ADDED": "yes"})
    assert (tmp_path / "made").read_text() == "yes"


def test_a_tool_that_does_not_exist_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such-tool"):
        run_tool([str(tmp_path / "no-such-tool")], tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="process groups")
def test_the_time_limit_ends_children_too(tmp_path: Path) -> None:
    with pytest.raises(TimeLimit) as caught:
        run_tool(python(PARENT), tmp_path, limit_s=1.0)
    assert caught.value.lines == ("started",)
    assert wait_until_gone(int((tmp_path / "pids").read_text()))


@pytest.mark.skipif(os.name == "nt", reason="process groups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_children_too(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
        from pathlib import Path
        from trivet.compiler.build.process import run_tool
        import sys
        try:
            run_tool([sys.executable, "-c", {PARENT!r}], Path("."))
        except KeyboardInterrupt:
            print("interrupted")
            sys.exit(130)
    """
    ours = subprocess.Popen(
        python(code), cwd=tmp_path, stdout=subprocess.PIPE, text=True, preexec_fn=hears_ctrl_c
    )
    for _ in range(200):
        if (tmp_path / "pids").exists() and (tmp_path / "pids").read_text():
            break
        time.sleep(0.05)
    ours.send_signal(number)
    out, _ = ours.communicate(timeout=20)
    assert ours.returncode == 130
    assert out == "interrupted\n"
    assert wait_until_gone(int((tmp_path / "pids").read_text()))
