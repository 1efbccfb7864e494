# SPDX-License-Identifier: Apache-2.0
"""What this project's code relies on in vLLM beyond what vLLM promises, recorded per release.

Patched functions are checked when they are patched: their digests are in ``vllm_ascend/releases``.
The files here hold the rest, by release and kind:

- ``overridden``: methods that classes of ours override;
- ``skipped``: constructors that classes of ours do not call, and what those call of themselves;
- ``private``: what is called or read by a private name, or what sets it.
"""
