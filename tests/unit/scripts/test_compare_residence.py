"""Runs of the same seeds in two folders, with servers that live in another way."""

import json
from dataclasses import replace

import pytest

from pytest_llmperf.results.writer import write_test


@pytest.fixture
def folder(tmp_path, make_run, make_measurement):
    """A run folder with one test: runs of seeds 0 and 1 with these flags, each with the metric values given."""
    def folder(name, flags, values):
        runs = [make_run(seed=seed) for seed in range(len(values))]
        conditions = {"engine": "vllm", "model": "m", "flags": json.dumps(flags)}
        measurement = make_measurement(*runs, conditions=conditions)
        metrics = tuple(replace(each, values={**each.values, "itl_p50": value})
                        for each, value in zip(measurement.metrics, values, strict=True))
        write_test(tmp_path / name, "t.py::test_x", [replace(measurement, metrics=metrics)], [], complete=True)
        return tmp_path / name

    return folder


def test_differences_pair_seeds_and_ignore_flags_of_residence(load_script, folder):
    script = load_script("compare_residence")
    alone = folder("alone", {"max_model_len": 4096}, [10.0, 20.0, 30.0])
    together = folder("together", {"max_model_len": 4096, "kv_cache_memory_bytes": 5}, [10.1, 20.2])
    (row,) = script.rows(alone, together, ["itl_p50"])
    assert row == ("itl_p50", "+1.00", "0.00", "2", "t.py::test_x", 'vllm {"max_model_len": 4096} candidate')


def test_servers_with_other_flags_of_the_test_do_not_pair(load_script, folder):
    script = load_script("compare_residence")
    alone, together = folder("alone", {"max_num_seqs": 1}, [10.0]), folder("together", {"max_num_seqs": 2}, [10.0])
    assert list(script.rows(alone, together, ["itl_p50"])) == []
