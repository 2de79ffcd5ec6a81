"""The tuner: as fast as exhaustive search, within the budget, and what it says about limits."""

import json

import pytest
from layerwise import shared
from typer.testing import CliRunner

import trivet
from trivet import boards
from trivet.cli import app
from trivet.compiler.cost_fpga import program_cycles
from trivet.compiler.errors import CompileError
from trivet.compiler.load import load
from trivet.compiler.lower import lower
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.compiler.tune.search import Point, coverage, exhaustive, front
from trivet.compiler.tune.show import plot
from trivet.compiler.tune.space import fit, generous, memories, over, predicted, shapes
from trivet.compiler.tune.tune import Tuned, rate, tune
from trivet.compiler.units import Graph
from trivet.hdl.config import DEFAULT

NETWORKS = ("ad_autoencoder", "ic_resnet8", "kws_dscnn")
BOARDS = ("ulx3s-85f", "ulx3s-25f", "colorlight-i5")


def graph_of(name: str) -> Graph:
    return map_units(normalise(load(shared(f"mlperf_tiny_{name}_int8.onnx"), {})))


@pytest.fixture(scope="module")
def keywords() -> tuple[Graph, Tuned]:
    graph = graph_of("kws_dscnn")
    return graph, tune(graph, boards.get("ulx3s-25f"))


def test_every_engine_of_the_front_takes_the_part_in_its_cycles(keywords) -> None:
    graph, tuned = keywords
    for point in tuned.front:
        assert program_cycles(lower(graph, tuned.part, point.config)) == point.cycles
        assert not over(tuned.board, point.used)
        assert predicted(tuned.board, point.config) == point.used


def test_the_front_is_one(keywords) -> None:
    _, tuned = keywords
    assert not any(a.beats(b) for a in tuned.front for b in tuned.front)
    assert tuned.chosen is tuned.front[0]
    assert tuned.chosen.cycles == min(p.cycles for p in tuned.front)


def test_as_fast_as_exhaustive_search(keywords) -> None:
    graph, tuned = keywords
    every = front(exhaustive(graph, tuned.part, tuned.board, banks=3).points)
    assert tuned.chosen.cycles <= 1.05 * every[0].cycles
    assert coverage(tuned.front, every) <= 1.05


@pytest.mark.slow
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_and_boards_against_exhaustive_search(name: str, board: str) -> None:
    graph = graph_of(name)
    tuned = tune(graph, boards.get(board))
    every = front(exhaustive(graph, tuned.part, tuned.board).points)
    assert tuned.chosen.cycles <= 1.05 * every[0].cycles
    assert coverage(tuned.front, every) <= 1.10


def test_the_smallest_engine_that_reaches_a_target(keywords) -> None:
    graph, tuned = keywords
    small = tune(graph, tuned.board, 100.0)
    assert rate(tuned.board, small.chosen) >= 100.0
    assert small.chosen.used["dsp"] < tuned.chosen.used["dsp"]
    assert small.limit.resource == "target"


def test_a_target_out_of_reach_names_its_limit(keywords) -> None:
    graph, tuned = keywords
    with pytest.raises(CompileError, match=r"makes 449\.9, the limit is dsp \(.* of 28 DSP\)"):
        tune(graph, tuned.board, 500.0)
    with pytest.raises(CompileError, match=r"the uart of board 'ulx3s-25f' carries 612\.2 at most"):
        tune(graph, tuned.board, 1000.0)


def test_a_model_too_large_is_tuned_in_part_and_the_limit_is_named() -> None:
    graph = graph_of("ad_autoencoder")
    tuned = tune(graph, boards.get("ulx3s-25f"))
    assert len(tuned.part) < len(graph.units)
    assert tuned.whole is not None
    assert tuned.whole.resource == "bram"
    assert "weight memory" in tuned.whole.text


def test_a_family_without_a_model_is_refused() -> None:
    with pytest.raises(CompileError, match="'icebreaker': LUTs are predicted for ECP5 parts only"):
        tune(graph_of("kws_dscnn"), boards.get("icebreaker"))


def test_depths_are_what_the_program_needs(keywords) -> None:
    graph, tuned = keywords
    shape = next(s for s in shapes(tuned.board) if (s.lanes, s.simd, s.requantisers) == (4, 4, 1))
    program = lower(graph, tuned.part, generous(shape, memories(tuned.board, shape)[-1]))
    config = fit(program, products=False)
    assert config.weight_words * 16 >= len(program.weights) > (config.weight_words - 512) * 16
    assert config.tables * 256 >= len(program.tables)


def test_coverage_and_plot_on_points_by_hand() -> None:
    used = {"dsp": 10, "bram": 10, "lut": 1000, "ff": 1000}
    a, b = Point(DEFAULT, 100, used), Point(DEFAULT, 200, {**used, "dsp": 5})
    assert coverage([a, b], [a]) == 1.0
    assert coverage([b], [a]) == 2.0
    assert front([b, a, a]) == [a, b]
    assert plot(boards.get("ulx3s-25f"), [a, b], a).count("x") == 1


def test_the_command_and_compile_agree(tmp_path) -> None:
    model = str(shared("mlperf_tiny_kws_dscnn_int8.onnx"))
    run = CliRunner().invoke(app, ["tune", model, "--board", "ulx3s-25f", "--json"])
    assert run.exit_code == 0, run.output
    chosen = json.loads(run.stdout)["chosen"]
    out = tmp_path / "kws.trivet"
    options = ["--board", "ulx3s-25f", "--tune", "--place", "fpga", "--no-bitstream", "-o"]
    run = CliRunner().invoke(app, ["compile", model, *options, str(out)])
    assert run.exit_code == 0, run.output
    with trivet.Bundle.open(out) as bundle:
        engines = [s.engine for s in bundle.manifest.stages if s.kind == "program"]
    assert engines == [chosen["engine_sha256"]]


def test_the_text_shows_choice_limit_and_front() -> None:
    model = str(shared("mlperf_tiny_kws_dscnn_int8.onnx"))
    run = CliRunner().invoke(app, ["tune", model, "--board", "ulx3s-25f", "--target-fps", "100"])
    assert run.exit_code == 0, run.output
    for text in ("chosen: ", "limit: target", "on the front", "100 %"):
        assert text in run.stdout


def test_a_target_must_be_above_zero() -> None:
    model = str(shared("mlperf_tiny_kws_dscnn_int8.onnx"))
    run = CliRunner().invoke(app, ["tune", model, "--board", "ulx3s-25f", "--target-fps", "0"])
    assert run.exit_code != 0
