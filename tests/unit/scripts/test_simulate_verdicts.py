"""The small form of the simulations that a release repeats."""

import pytest


@pytest.fixture
def simulate(load_script):
    for name in ("simulate_claims", "simulate_baselines", "simulate_references", "simulate_slos", "simulate_means",
                 "simulate_steadiness", "simulate_searches", "simulate_accuracy", "simulate_tunings"):
        load_script(name)
    return load_script("simulate_verdicts").main


def test_each_quick_table_prints_rows_and_time(simulate, capsys):
    simulate(["--quick", "young", "h200", "trust", "power", "reference", "steadiness", "accuracy"])
    blocks = [block for block in capsys.readouterr().out.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 9
    for block in blocks:
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_unknown_table_is_refused_with_existing_names(simulate, capsys):
    with pytest.raises(SystemExit):
        simulate(["yuong"])
    assert "no table yuong; there are young, h200" in capsys.readouterr().err
