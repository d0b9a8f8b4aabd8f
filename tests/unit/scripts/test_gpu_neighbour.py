"""The bad neighbour's arguments, without a GPU."""

import pytest


def test_a_bounded_time_is_the_default(load_script):
    assert load_script("gpu_neighbour").parse([]).seconds == 60


@pytest.mark.parametrize("seconds", ["0", "1e9", "nan"])
def test_endless_gpu_load_is_refused(load_script, seconds, capsys):
    with pytest.raises(SystemExit) as ended:
        load_script("gpu_neighbour").parse(["--seconds", seconds])
    assert ended.value.code == 2
    assert "at most 3600" in capsys.readouterr().err


def test_missing_pytorch_or_gpu_is_named(load_script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu_neighbour.py"])
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert load_script("gpu_neighbour").main() == 2
    assert "PyTorch is not installed here" in capsys.readouterr().err
