"""Load hosts as actors of a Ray cluster, one on each node."""

from __future__ import annotations

import logging
import platform
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from pytest_llmperf.errors import ConfigError, LlmperfError, LoadError
from pytest_llmperf.load.cores import Cores
from pytest_llmperf.load.host_clock import ClockAsker
from pytest_llmperf.load.host_load import HostLoad, ProcessState
from pytest_llmperf.load.load_hosts import LoadHosts, hosted_load
from pytest_llmperf.load.sharding import shards
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.version import VERSION

NODE_RESOURCE = "llmperf_load"  # nodes with this resource send the load; every node where no node has it
_CONNECT_S = 5.0
_ATTEMPTS = 2
_MOST_TEXT = 400
_PLACE_S = 60.0
_ANSWER_S = 30.0
_ADVICE = "name the file with the token: RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=FILE."
_INSTALL = "pip install 'ray[client]'"


def check_load_hosts(address: str) -> None:
    """Check that Ray is installed here and that something answers at the address.

    Raises:
        ConfigError: Ray is not installed, or nothing answers.
    """
    if find_spec("ray") is None or find_spec("grpc") is None:
        raise ConfigError(f"load_hosts = {address!r}: Ray is not installed here. Install it: {_INSTALL}")
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), _CONNECT_S).close()
    except OSError as error:
        raise ConfigError(
            f"load_hosts = {address!r}: nothing answers at {parts.netloc} ({error.strerror or error}). Start Ray on "
            f"the head node: ray start --head --ray-client-server-port={parts.port}"
        ) from error


@dataclass(slots=True)
class RayHost:
    """A node of the cluster, a `Host`.

    Args:
        name: IP address and hostname, for messages.
        address: IP address of the node.
        actor: a `HostLoad` there.
        ray: the module.
    """

    name: str
    address: str
    actor: Any
    ray: ModuleType
    asker: ClockAsker | None = None

    def now_ns(self) -> int:
        """The host's time, by a datagram; by a call of the actor where datagrams do not reach the host."""
        host_ns = None if self.asker is None else self.asker.ask()
        return int(self._call("now_ns")) if host_ns is None else host_ns

    def prepare(self) -> None:
        """Prepare the host for replays, and ask for the time by datagrams from now on."""
        with suppress(LoadError):  # the node has its address behind a translation: ask the actor
            self.asker = ClockAsker(self.address, *self._call("prepare", self.address))

    def begin(self, plans: Sequence[bytes], load_cpus: str) -> Cores:
        cores: Cores = self._call("begin", plans, load_cpus)
        return cores

    def start(self, started_ns: int) -> None:
        self._call("start", started_ns)

    def cancel(self) -> None:
        self._call("cancel")

    def states(self, positions: Sequence[int]) -> list[ProcessState]:
        states: list[ProcessState] = self._call("states", positions)
        return states

    def end(self) -> None:
        self._call("end")

    def _call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - each method states its type
        from ray.exceptions import GetTimeoutError, RayTaskError

        try:
            return self.ray.get(getattr(self.actor, method).remote(*arguments), timeout=_ANSWER_S)
        except GetTimeoutError as error:
            raise LoadError(f"Load host {self.name} did not answer for {_ANSWER_S:g} s. Look at the node: ray status, "
                            "and its load.") from error
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, LlmperfError) else str(error.cause).strip()
            raise LoadError(f"Load host {self.name}: {cause}") from error
        except Exception as error:  # of a lost connection Ray raises a plain Exception
            raise LoadError(f"Load host {self.name} died ({type(error).__name__}). See why on the node: ray status, "
                            "and the log in /tmp/ray/session_latest/logs.") from error


@contextmanager
def ray_hosts(address: str, processes: int) -> Iterator[list[RayHost]]:
    """One actor on each load node of the cluster while a block runs.

    Args:
        address: ray://HOST:PORT of the cluster's client server.
        processes: load processes on each node, each of which takes one of the node's CPUs.

    Raises:
        ConfigError: Ray is not installed here, or nothing answers.
        LoadError: the cluster cannot be used: versions differ, no free CPUs, …
    """
    check_load_hosts(address)
    with _connected(address) as ray:
        nodes = _load_nodes(ray)
        _check_versions(ray, nodes)
        hosts: list[RayHost] = []
        try:
            hosts += [_placed(ray, node, processes) for node in nodes]
            for host in hosts:
                _wait_for(host, processes)
                host.prepare()
            yield hosts
        finally:
            for host in hosts:
                if host.asker is not None:
                    host.asker.close()
                with suppress(Exception):
                    ray.kill(host.actor, no_restart=True)


@contextmanager
def _connected(address: str) -> Iterator[ModuleType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's imports, which are not the user's
        import ray
        from ray.exceptions import RayError
    if ray.is_initialized():
        raise LoadError("This process is connected to a Ray cluster already, and load_hosts needs a connection of its "
                        "own. Call ray.shutdown() before the measurement.")
    _check_token(address)
    for attempt in range(_ATTEMPTS):
        try:
            with warnings.catch_warnings(), _kept_signal_handler():
                warnings.simplefilter("ignore")
                ray.init(address, namespace="llmperf", log_to_driver=False, logging_level=logging.ERROR)
            break
        except (RuntimeError, ConnectionError, ValueError, RayError) as error:
            # A busy head node may start no server in 30 s.
            if attempt + 1 < _ATTEMPTS and isinstance(error, ConnectionError):
                continue
            raise LoadError(f"load_hosts = {address!r}: the Ray cluster refuses this client: {_one_line(error)} "
                            "Install the cluster's versions of Python and Ray here, see that the port is the one of "
                            "Ray's client server (10001), and look at the load of the head node. If the cluster asks "
                            f"for a token, {_ADVICE}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_token(address: str) -> None:
    """Ask the client server for anything, with the token that Ray would send: `ray.init` reports a refused token only
    after its time limit of 30 s, twice.

    Raises:
        LoadError: the token is wrong or missing. Any other failure is left to `ray.init`.
    """
    import grpc
    from ray.exceptions import RayError

    try:
        from ray._private.grpc_utils import init_grpc_channel
    except ImportError:  # another version of Ray
        return
    try:
        with init_grpc_channel(urlsplit(address).netloc) as channel:
            channel.unary_unary("/ray.rpc.RayletDriver/ClusterInfo")(b"", timeout=_CONNECT_S)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise LoadError(f"load_hosts = {address!r}: the Ray cluster refuses the token of this client "
                            f"({error.details()}). To send the token of the cluster, {_ADVICE}") from error
    except (RuntimeError, ValueError, RayError):  # `ray.init` says it, with the advice for it
        return


@contextmanager
def _kept_signal_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM after the block: Ray's handler ends the process without any teardown."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _load_nodes(ray: ModuleType) -> list[dict[str, Any]]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    named = [node for node in alive if NODE_RESOURCE in node["Resources"]]
    return sorted(named or alive, key=lambda node: str(node["NodeManagerAddress"]))


def _name(node: dict[str, Any]) -> str:
    address, hostname = str(node["NodeManagerAddress"]), str(node["NodeManagerHostname"])
    return address if hostname == address else f"{address} ({hostname})"


def _on(ray: ModuleType, node: dict[str, Any], thing: Any, **options: object) -> Any:  # noqa: ANN401 - Ray's types
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(thing).options(scheduling_strategy=place, **options)


def _check_reach(server: str, hosts: Sequence[RayHost]) -> None:
    """A server that listens on loopback is out of reach for other machines."""
    if not _is_loopback(server):
        return
    for host in hosts:
        if not _is_loopback(host.address):
            raise LoadError(f"The server listens on {server}, which load host {host.name} cannot reach. Measure a "
                            "server with an address in the network: endpoint(\"http://HOST:PORT\"), or leave "
                            "load_hosts out.")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _versions() -> Callable[[], dict[str, str]]:
    """A function that reads the versions of a node. Ray sends the code of a local function, so it runs on a node
    without this package."""

    def read() -> dict[str, str]:
        import platform
        from importlib import metadata

        import ray

        try:
            ours = metadata.version("pytest-llmperf")
        except metadata.PackageNotFoundError:
            ours = "none"
        return {"Python": platform.python_version(), "Ray": str(ray.__version__), "pytest-llmperf": ours}

    return read


def _check_versions(ray: ModuleType, nodes: Sequence[dict[str, Any]]) -> None:
    here = {"Python": platform.python_version(), "Ray": str(ray.__version__), "pytest-llmperf": VERSION}
    reads = [_on(ray, node, _versions(), num_cpus=0, max_retries=0).remote() for node in nodes]
    for node, read in zip(nodes, reads, strict=True):
        try:
            there: dict[str, str] = ray.get(read, timeout=_PLACE_S)
        except Exception as error:
            raise LoadError(f"Load host {_name(node)} ran no task within {_PLACE_S:g} s: {_one_line(error)} Look at "
                            "the node: ray status.") from error
        differing = [f"{name} {there[name]} (here {here[name]})" for name in here if there[name] != here[name]]
        if differing:
            raise LoadError(f"Load host {_name(node)} has {', '.join(differing)}. Install the same versions on every "
                            f"node: the wheel of pytest-llmperf {VERSION}, and 'ray[client]=={here['Ray']}'")


def _placed(ray: ModuleType, node: dict[str, Any], processes: int) -> RayHost:
    actor = _on(ray, node, HostLoad, num_cpus=processes, max_restarts=0, max_concurrency=4).remote()
    return RayHost(_name(node), str(node["NodeManagerAddress"]), actor, ray)


def _wait_for(host: RayHost, processes: int) -> None:
    from ray.exceptions import GetTimeoutError, RayError

    try:
        host.ray.get(host.actor.now_ns.remote(), timeout=_PLACE_S)
    except (GetTimeoutError, RayError) as error:
        raise LoadError(f"Load host {host.name} has no {processes} free CPUs for load processes "
                        f"({type(error).__name__} after {_PLACE_S:g} s). End what runs there (ray status), or lower "
                        f"load_processes (now {processes}).") from error


def _one_line(error: BaseException) -> str:
    """A message of Ray in one line; of a message with the traceback of another process the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = lines[-1] if any(line.startswith("Traceback") for line in lines) else ", ".join(lines)
    return text[-_MOST_TEXT:].rstrip(".") + "."


class RayLoad:
    """Runs the load processes of replays on the nodes of a cluster, which stay connected until `close`.

    Args:
        address: ray://HOST:PORT of the cluster's client server.
        processes: load processes on each node.
        load_cpus: see the setting.
    """

    def __init__(self, address: str, processes: int, load_cpus: str) -> None:
        self._address = address
        self._processes = processes
        self._load_cpus = load_cpus
        self._connection = ExitStack()
        self._hosts: list[RayHost] = []

    @contextmanager
    def load(self, plan: LoadPlan, folder: Path) -> Iterator[LoadHosts]:
        """The load processes of a replay while a block runs. After an error the cluster is connected anew.

        Raises:
            ConfigError, LoadError: see `ray_hosts`, and where nodes cannot reach the server.
        """
        try:
            if not self._hosts:
                self._hosts = self._connection.enter_context(ray_hosts(self._address, self._processes))
            _check_reach(plan.host, self._hosts)
            parts = shards(plan, self._processes * len(self._hosts))
            with hosted_load(self._hosts, parts, folder, self._load_cpus) as load:
                yield load
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the actors and the connection. May be called again."""
        self._hosts = []
        self._connection.close()
