# SPDX-License-Identifier: Apache-2.0
"""Streaming sessions: requests that get more input when a turn has ended."""

from __future__ import annotations

from vllm.v1.request import Request


def rewind(session: Request, hash_tokens: int, *, has_new_items: bool) -> int:
    """Take a session back to the tokens that its next turn goes on from.

    The token that was sampled last is dropped, and so are the hashes that cover it. Drafts behind
    the token that ended the turn count as computed in vLLM, but are no tokens of the session.

    vLLM keeps the computed tokens. A session that lost its blocks while its last step was in flight
    has none, and would lose its whole history: it keeps all but the last token.

    Args:
        session: Its ``num_computed_tokens``, ``num_preemptions`` and ``block_hashes`` are changed.
        hash_tokens: Tokens of one hash.
        has_new_items: The new input has multimodal items. vLLM takes the last item of a prompt for
            that of the next hash, so all of such a prompt is hashed again.

    Returns:
        The tokens that it keeps.
    """
    num_computed = session.num_computed_tokens or session.num_tokens - 1
    num_kept = session.num_computed_tokens = min(num_computed, session.num_tokens)
    # Workers learn the new input as that of a new request; behind a load, vLLM tells a request that
    # was ever preempted as one whose tokens they know.
    session.num_preemptions = 0
    is_hashed_again = has_new_items or bool(session.mm_features)
    del session.block_hashes[0 if is_hashed_again else num_kept // hash_tokens :]
    return num_kept
