"""verifiers' own EnvServer, in an environment that has it: python server.py HARNESS"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from verifiers.v1.serve.server import EnvServer
from verifiers.v1.utils.loaders import resolve_env_config


async def main(harness: str) -> None:
    here = {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}
    config = {"taskset": {"id": "digits_v1"}, "agent": here}
    server = EnvServer(resolve_env_config(config), "tcp://127.0.0.1:0")
    print(server.address, flush=True)
    await server.run()


asyncio.run(main(sys.argv[1]))
