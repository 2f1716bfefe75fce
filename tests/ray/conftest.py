"""Two real Ray nodes on this machine for all tests of the folder, whose workers are copied."""

from collections.abc import Iterator
from typing import Any

import pytest
from commands import forked
from copies import serve, workers_copied


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head and a node, each with a raylet of its own and room for an engine."""
    import ray
    from ray.cluster_utils import Cluster

    address = tmp_path_factory.mktemp("copies") / "asked"
    copies = forked(serve, str(address))
    with workers_copied(address):
        unwatched = {"no_monitor": True, "include_log_monitor": False}
        found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **unwatched})
        found.second = found.add_node(num_cpus=1)
        ray.init(address=found.address, log_to_driver=False)
        yield found
        ray.shutdown()
        found.shutdown()
    copies.kill()
    copies.join()
