"""Leases of ports: every candidate is tried once, a closed lease is given back."""

import os
import random
from contextlib import closing

import pytest

from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.process.places import lock_folder
from pytest_llmperf.process.ports import PORTS, check_loopback, is_free, reserve_port


def test_ports_lie_below_the_range_of_outgoing_connections():
    assert PORTS[0] == 20000
    assert PORTS[-1] < 22000, "from there on SGLang draws the port of its process group"


def test_the_same_seed_begins_at_the_same_port(tmp_path):
    chosen = []
    for _ in range(2):
        with closing(reserve_port(random.Random(5), folder=tmp_path)) as lease:
            chosen.append(lease.port)
            assert is_free(lease.port)
    assert chosen[0] == chosen[1]
    assert chosen[0] in PORTS


@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_each_port_of_range_is_leased_once(tmp_path, n):
    candidates = range(19100, 19100 + n)  # below those that servers of other tests have
    leases = [reserve_port(random.Random(i), ports=candidates, folder=tmp_path) for i in range(n)]
    assert {lease.port for lease in leases} == set(candidates)
    with pytest.raises(InfrastructureError, match="no free port"):
        reserve_port(random.Random(0), ports=candidates, folder=tmp_path)
    leases[0].close()
    leases[0].close()
    again = reserve_port(random.Random(0), ports=candidates, folder=tmp_path)
    assert again.port == leases[0].port
    for lease in [again, *leases]:
        lease.close()


def test_lock_folder_belongs_to_current_user(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = lock_folder()
    assert folder == lock_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_uid == os.getuid()


def test_a_link_in_place_of_the_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"llmperf-ports-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InfrastructureError, match="is not a folder of uid"):
        lock_folder()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    os.chown(lock_folder(), 12345, 12345)
    with pytest.raises(InfrastructureError, match="is not a folder of uid"):
        lock_folder()


def test_unwritable_lock_folder_is_an_error(tmp_path):
    with pytest.raises(InfrastructureError, match="cannot keep port locks"):
        reserve_port(random.Random(0), folder=tmp_path / "missing")


def test_missing_loopback_address_is_named_at_once():
    check_loopback()
    with pytest.raises(InfrastructureError, match=r"^this machine cannot reach itself at 192\.0\.2\.1: Cannot assign"):
        check_loopback("192.0.2.1")  # an address of no interface, as 127.0.0.1 without one
