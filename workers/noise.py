"""Random numbers without state: each is a hash of (seed, row id, sample, position, token).

So a token's draw depends on nothing but the sample that it belongs to: not on the batch, the shard, the number of
engines, nor on whether a draft was verified in the same pass. All mixing is 32-bit integer arithmetic that wraps, hence
the same bits on every device.

    sequence_key   (seed, row id, sample) -> two words        BLAKE2b, once per sample
    stream         key, use               -> two words        for what is drawn beside the tokens
    row_words      key, position          -> two words        once per verified row
    high_words     row words, token       -> the upper 32 bits of the draw, cheap enough for a whole vocabulary
    gumbels        row words, token       -> a Gumbel variate from 52 bits, for the few tokens that can win
"""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor

_GOLDEN = -0x61C88647
_LOW_SALT = 0x3C6EF372


def sequence_key(seed: int, row_id: str, sample_index: int) -> tuple[int, int]:
    """Two signed 32-bit words that stand for a sample."""
    name = f"{seed}/{sample_index}/{row_id}".encode("utf-8", "surrogatepass")
    first, second = struct.unpack("<ii", hashlib.blake2b(name, digest_size=8, person=b"draftfleet").digest())
    return first, second


def stream(key: tuple[int, int], use: str) -> tuple[int, int]:
    """The key of other noise for the same sample, unrelated to that of its tokens."""
    words = hashlib.blake2b(struct.pack("<ii", *key), digest_size=8, person=use.encode()).digest()
    first, second = struct.unpack("<ii", words)
    return first, second


def row_words(keys_R2: Tensor, positions_R: Tensor) -> Tensor:
    """[R, 2] int32 keys and [R] int32 positions in the output -> [R, 2] int32."""
    return _mix(_mix(positions_R[:, None] * _GOLDEN + keys_R2) ^ keys_R2.flip(1))


def token_words(tokens: Tensor) -> Tensor:
    """A word per token id, int32, any shape."""
    return _mix(tokens.to(torch.int32) + _GOLDEN)


def high_words(token_words: Tensor, row_words: Tensor) -> Tensor:
    """The draw's upper 32 bits as a signed integer, whose order is the order of the draws. Shapes broadcast;
    `row_words` is the first of the row's two."""
    return _mix(token_words ^ row_words)


def gumbels(token_words: Tensor, row_words_2: Tensor) -> Tensor:
    """Standard Gumbel variates, float64. Shapes as for `uniforms`."""
    return -torch.log(-torch.log(uniforms(token_words, row_words_2)))


def uniforms(token_words: Tensor, row_words_2: Tensor) -> Tensor:
    """Float64 in (0, 1), never its ends. `row_words_2` [..., 2] broadcasts against `token_words` [...]."""
    high = high_words(token_words, row_words_2[..., 0])
    low = _mix(_mix(token_words ^ row_words_2[..., 1]) + _LOW_SALT)
    return uniforms_of(high, low)


def uniforms_of(high: Tensor, low: Tensor) -> Tensor:
    """The same from its two words, int32: 52 of their bits, then half a step."""
    steps = (high.to(torch.float64) + 2.0**31) * 2.0**20 + ((low >> 12) & 0xFFFFF).to(torch.float64)
    return (steps + 0.5) * 2.0**-52


def first_winner(margin: Tensor) -> Tensor:
    """The smallest high word whose Gumbel variate may exceed `margin` (float64) -> int32.

    gumbel(u) > m needs u > exp(-exp(-m)); the two steps below spare any doubt about rounding. No margin is beyond the
    largest word, whose draws reach 36.
    """
    steps = torch.floor(torch.exp(-torch.exp(-margin)) * 2.0**32) - 2.0
    return (steps - 2.0**31).clamp(-(2.0**31), 2.0**31 - 1).to(torch.int32)


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words in which every input bit moves every output bit: two rounds of shift and multiply,
    with the constants found by https://github.com/skeeto/hash-prospector."""
    x = x ^ _shifted(x, 16)
    x *= 0x21F0AAAD
    x ^= _shifted(x, 15)
    x *= -0x2CA5D269
    x ^= _shifted(x, 15)
    return x


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right with zeros; torch's shift of a signed word repeats the sign."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)
