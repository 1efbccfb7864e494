# SPDX-License-Identifier: Apache-2.0
"""A prefix cache for DeepSeek-V4 on Ascend, on unmodified vLLM 0.20.2.

vLLM loads :func:`register` through its ``vllm.general_plugins`` entry point in every process.
"""


def register() -> None:
    """Make this process's vLLM know our variables and install the patches.

    Idempotent and cheap when called again.

    Raises:
        RuntimeError: A distribution ``vllm-ascend`` is installed as well.
        ValueError: An environment variable of ours has a value that is not allowed.
        PatchError: The running vLLM is not one that the patches were written for; nothing was
            changed.
    """
    from vllm_ascend.prefix_cache_config import load_config

    _refuse_beside_vllm_ascend()
    config = load_config()
    import vllm_ascend.patch.platform

    if config.partial_hits:  # without copies in the workers, such hits would read wrong rows
        import vllm_ascend.patch.worker  # noqa: F401 - importing them installs the patches


def _refuse_beside_vllm_ascend() -> None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("vllm-ascend")
    except PackageNotFoundError:
        return
    raise RuntimeError(
        "vllm-ascend-backport cannot be installed beside the distribution vllm-ascend, because "
        "both provide the package vllm_ascend: uninstall it, and put it over the checkout of "
        "vllm-ascend with `python -m vllm_ascend overlay apply CHECKOUT`, run from its own tree"
    )
