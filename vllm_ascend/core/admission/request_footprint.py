# SPDX-License-Identifier: Apache-2.0
"""The most blocks that one request holds at a time: arithmetic on ints.

vLLM's check at the start, ``--max-model-len auto``, the logged concurrency, the admission of
requests and the oracle's integrity check all ask here, so none of them can promise what another
does not keep. Counted is what a request cannot do without. Cached blocks that nobody refers to, and
the state that spare tails get for one step, are given up whenever their memory is needed.

Example: compressor state of window 8 in blocks of 8 tokens, steps of 8192 tokens, no drafts::

    dense    tokens [c - 7, c + 8192)              1026 blocks
    sparse   [c - 7, c), five tails, [e - 7, e)    2 + 5 + 2 blocks
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm.utils.math_utils import cdiv


@dataclass(frozen=True)
class StepLimits:
    """What one step can add to a request, in tokens.

    Attributes:
        max_num_batched_tokens: Tokens of one step.
        num_draft_tokens: Slots for drafts behind the last token of a step.
        num_unconfirmed: Windows are held for a start so much before what counts as computed.
    """

    max_num_batched_tokens: int
    num_draft_tokens: int = 0
    num_unconfirmed: int = 0


@dataclass(frozen=True)
class SparseRows:
    """What has blocks in a group's table that holds only rows that somebody will read.

    Attributes:
        end_blocks: The most blocks that the end of a step has.
        tail_blocks: Blocks of the tail of a boundary.
        alignment: Boundaries are multiples of this, in tokens.
        interval: Tokens between boundaries that are kept, 0 for none, ``None`` for all.
        num_singled_out: Boundaries that are kept besides, all of which may lie in one step.
    """

    end_blocks: int
    tail_blocks: int
    alignment: int
    interval: int | None
    num_singled_out: int

    def blocks_in(self, num_tokens: int) -> int:
        """Return the most blocks that a step of so many tokens leaves behind."""
        spacing = self.alignment if self.interval is None else self.interval
        regular = cdiv(num_tokens, spacing) if spacing else 0
        boundaries = min(regular + self.num_singled_out, cdiv(num_tokens, self.alignment))
        return boundaries * self.tail_blocks + self.end_blocks


@dataclass(frozen=True)
class GroupFootprint:
    """What decides how many blocks of one group a request holds.

    Attributes:
        block_tokens: Tokens per block.
        row_tokens: Tokens per stored row; a row has a place once all of them have.
        window: Tokens of the group's window; ``None``: all rows stay.
        is_copied: A hit may end inside a block, whose source is held beside the copy for a step.
        sparse: What has blocks, if not all of the table does.
    """

    block_tokens: int
    row_tokens: int = 1
    window: int | None = None
    is_copied: bool = False
    sparse: SparseRows | None = None


def most_blocks(
    group: GroupFootprint, num_tokens: int, step: StepLimits, *, may_resume: bool = True
) -> int:
    """Return the most blocks of a group that a request holds, however it is cut into steps.

    Args:
        num_tokens: Tokens that the request has slots for in the end, drafts included.
        may_resume: It may be preempted and go on: then answers are computed in large steps as well.
    """
    if group.window is None:
        rows_per_block = group.block_tokens // group.row_tokens
        return cdiv(num_tokens // group.row_tokens, rows_per_block) + group.is_copied
    # Of steps before, the window of the first token that may have to be computed.
    behind = group.window - 1 + step.num_unconfirmed
    held = blocks_spanned(
        group.window - 1 + _tokens_of_step(step, may_resume=may_resume), group.block_tokens
    )
    if group.sparse is not None:
        # Small steps leave no holes, so in front of a step the window may be whole.
        window = blocks_spanned(behind + step.num_draft_tokens, group.block_tokens)
        held = min(held, window + group.sparse.blocks_in(step.max_num_batched_tokens))
    return min(held, cdiv(num_tokens, group.block_tokens))


def _tokens_of_step(step: StepLimits, *, may_resume: bool) -> int:
    """Return the most tokens that a step adds in front of a window, held ones among them."""
    most, drafts = step.max_num_batched_tokens, step.num_draft_tokens
    if may_resume:
        return step.num_unconfirmed + most + drafts
    # Prompts hold nothing unconfirmed; what follows comes a token and its drafts at a time.
    return max(most, step.num_unconfirmed + min(1 + drafts, most)) + drafts


def blocks_spanned(num_tokens: int, block_tokens: int) -> int:
    """Return the most blocks that so many consecutive tokens lie in, wherever they start."""
    # All but the first token fill blocks in the best case; the first one ends the block before.
    return cdiv(num_tokens - 1, block_tokens) + 1 if num_tokens > 0 else 0


@dataclass(frozen=True)
class RequestFootprint:
    """The most blocks that one request holds in the mode in force.

    Attributes:
        groups: One per KV cache group; ``None`` for kinds that know themselves what they hold
            (Mamba, chunked local attention).
        step: What one step can add.
        max_model_len: Tokens of the longest request.
    """

    groups: tuple[GroupFootprint | None, ...]
    step: StepLimits
    max_model_len: int

    def blocks(
        self, group_id: int, num_tokens: int | None = None, *, may_resume: bool = True
    ) -> int | None:
        """Return the most blocks of one group; ``None`` where the group knows itself.

        Args:
            num_tokens: Tokens of the request, without drafts; the longest one's by default.
            may_resume: See :func:`most_blocks`.
        """
        group = self.groups[group_id]
        if group is None:
            return None
        if num_tokens is None:
            return most_blocks(group, self.max_model_len, self.step, may_resume=may_resume)
        slots = min(num_tokens + self.step.num_draft_tokens, self.max_model_len)
        return most_blocks(group, slots, self.step, may_resume=may_resume)
