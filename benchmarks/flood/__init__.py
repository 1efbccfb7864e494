# SPDX-License-Identifier: Apache-2.0
"""How many tokens of unique prompts push the prefixes that others share out of the cache.

    python -m benchmarks.flood [--kv-gib 16] [--prefixes 60] [--flood 8192 65536 1048576]
    python -m benchmarks.flood --flood 8192 --between 1 2 4     # normal traffic goes on

Normal traffic asks three times in turn for each of a number of shared prefixes, every time with
another end. Then one client sends prompts that nobody ever sent, one after another, and nobody else
sends anything: the worst case, because every hit would make a prefix young again. After every few
prompts all prefixes are looked up, which moves nothing, and the hit rate that normal traffic would
have is noted. With ``--between`` normal traffic goes on in turn, and between two of its requests so
many prompts of the flood come: what it hits in two more rounds is counted.

One process per variant: the real scheduler on DeepSeek-V4-Flash's layout, no model.
"""
