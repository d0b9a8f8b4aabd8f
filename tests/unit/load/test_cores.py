"""Who runs where."""

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.load.cores import cores_for

SIXTEEN = range(16)


@pytest.mark.parametrize(("setting", "processes", "position", "load"), [
    ("auto", 1, 0, (15,)),
    ("auto", 2, 0, (14, 15)),
    ("auto", 2, 1, (12, 13)),
    ("6,7", 1, 0, (6, 7)),
])
def test_load_generator_has_reserved_cpus(setting, processes, position, load):
    assigned = cores_for(setting, processes, position, SIXTEEN)
    assert assigned.reserved
    assert assigned.load == load
    assert assigned.servers == tuple(cpu for cpu in SIXTEEN if cpu not in load)
    assert f"on CPU {', '.join(map(str, load))} of its own" in str(assigned)


@pytest.mark.parametrize(("setting", "processes", "position", "count"), [
    ("shared", 1, 0, 16), ("auto", 1, 0, 2), ("auto", 1, 0, 7), ("auto", 9, 0, 16), ("auto", 2, 4, 16),
])
def test_cpus_are_shared_if_too_few_remain_for_server(setting, processes, position, count):
    assigned = cores_for(setting, processes, position, range(count))
    assert not assigned.reserved
    assert assigned.load == assigned.servers == tuple(range(count))
    assert str(assigned) == f"load generator and servers share {count} CPUs"


@pytest.mark.parametrize(("setting", "complaint"), [
    ("last", 'write "auto", "shared", or numbers'), ("3,16", "CPU 16 is not usable here"),
    (",".join(map(str, SIXTEEN)), "no CPU is left for the server"),
])
def test_impossible_cpu_setting_is_refused(setting, complaint):
    with pytest.raises(ConfigError, match=complaint):
        cores_for(setting, 1, 0, SIXTEEN)
