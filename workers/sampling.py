"""From logits to tokens: penalties, temperature, cut-offs, keyed noise.

Order and meaning follow transformers and vLLM: repetition penalty over prompt and output
(https://arxiv.org/abs/1909.05858), temperature, top-k, top-p (https://arxiv.org/abs/1904.09751) on what top-k left,
min-p (https://arxiv.org/abs/2407.01082). Tokens that tie with the last one kept are kept too, so that the set does not
depend on how a sort breaks ties.

A token is drawn as argmax(logits / T + Gumbel noise), which samples the softmax. Noise belongs to (sample, position,
token), see `noise`. Tokens more than 30 below the maximum of logits / T are left out: together they hold at most V·e⁻³⁰
of the probability (5·10⁻⁹ for 49,152 tokens).

Letters in names: R rows, V vocabulary, C candidates.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from configs.job import Sampling
from workers import noise

_RANGE = 30.0
_CANDIDATES = 64
"""Tokens of a row looked at first; most cut-offs end within them."""
_WIDER = 16
"""How many times more are looked at if a nucleus does not end within them."""
_BLOCK = 64
_DENSE_CHUNK = 1 << 17
"""Words hashed at a time: an int32 block of this size and its copies stay in a core's cache."""

NOT_FINITE = -1
"""Stands for the token of a row whose logits are not finite."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of logits and how to choose from it."""

    sampling: Sampling
    key: tuple[int, int]
    """`noise.sequence_key` of the sample."""
    position: int
    """Index of the token in the sample's output."""
    seen: Tensor | None
    """Tokens of the prompt and of the committed output, in any order and number; None without a penalty."""
    branch: Sequence[int]
    """Draft tokens between the committed output and this row."""

    @property
    def is_greedy(self) -> bool:
        return self.sampling.is_greedy

    @property
    def is_plain(self) -> bool:
        """The token is the argmax of the logits as they are."""
        return self.is_greedy and self.seen is None


def choose(logits: Tensor, rows: Sequence[Row]) -> list[int]:
    """A token per row of `logits` [R, V]; NOT_FINITE where the maximum is not a number."""
    if all(row.is_plain for row in rows):
        return _argmax(logits).tolist()
    others = [i for i, row in enumerate(rows) if not row.is_plain]
    if len(others) == len(rows):
        return _choose_others(_widened(logits), rows).tolist()
    tokens = _argmax(logits)
    tokens[others] = _choose_others(_widened(logits[others]), [rows[i] for i in others])
    return tokens.tolist()


def probabilities(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """The law that `choose` draws from at each row [R, V]; of a greedy row, that of temperature 1. `logits` may be
    changed."""
    logits = _widened(logits)
    penalize(logits, rows)
    scaled = logits.div_(_column([1.0 if row.is_greedy else row.sampling.temperature for row in rows], logits))
    top, _ = largest(scaled, min(_CANDIDATES, scaled.shape[1]))
    floor = lowest_kept(scaled, top, [row.sampling for row in rows])
    return scaled.masked_fill_(scaled < floor, -torch.inf).softmax(1)


def _choose_others(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Rows with a penalty, a temperature or both; `logits` may be changed."""
    penalize(logits, rows)
    drawn = [i for i, row in enumerate(rows) if not row.is_greedy]
    if len(drawn) == len(rows):
        return draw(logits, rows)
    tokens = _argmax(logits)
    if drawn:
        tokens[drawn] = draw(logits[drawn], [rows[i] for i in drawn])
    return tokens


def _widened(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _argmax(logits: Tensor) -> Tensor:
    """[R]; the first of equals, and NOT_FINITE where there is no largest number."""
    best, tokens = largest(logits, 1)
    return torch.where(best.isfinite(), tokens, NOT_FINITE)[:, 0]


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row in descending order, and their places, both [R, k]; exact.

    They lie within the k blocks that have the largest maxima. Looking there only is 2-4x faster on a CPU, where the
    maximum of a block is one vectorized pass and topk is not.
    """
    if x.shape[1] % _BLOCK or x.shape[1] < 4 * k * _BLOCK:
        values, places = x.topk(k) if k > 1 else x.max(1, keepdim=True)
        return values, places
    blocks = x.unflatten(1, (-1, _BLOCK))
    chosen = largest(blocks.amax(2), k)[1]
    inside = blocks.gather(1, chosen[..., None].expand(-1, -1, _BLOCK)).flatten(1)
    values, places = inside.topk(k) if k > 1 else inside.max(1, keepdim=True)
    return values, chosen.gather(1, places // _BLOCK) * _BLOCK + places % _BLOCK


def penalize(logits: Tensor, rows: Sequence[Row]) -> None:
    """Divide positive, multiply negative logits of seen tokens by the penalty, in place. A row of a branch has also
    seen the drafts before it."""
    at, tokens, penalties = [], [], []
    for i, row in enumerate(rows):
        if row.seen is not None:
            seen = torch.cat([row.seen, row.seen.new_tensor(row.branch)]) if row.branch else row.seen
            tokens.append(seen)
            at += [i] * len(seen)
            penalties += [row.sampling.repetition_penalty] * len(seen)
    if not at:
        return
    index = (torch.tensor(at, device=logits.device), torch.cat(tokens))
    # A token that occurs twice is read twice before it is written twice, with the same value.
    before, penalty = logits[index], torch.tensor(penalties, dtype=logits.dtype, device=logits.device)
    logits[index] = torch.where(before > 0, before / penalty, before * penalty)


def draw(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """A token per row from softmax(logits / T) after the cut-offs [R]."""
    scaled = logits.div_(_column([row.sampling.temperature for row in rows], logits))
    top, top_tokens = largest(scaled, min(_CANDIDATES, scaled.shape[1]))
    floor = lowest_kept(scaled, top, [row.sampling for row in rows])
    words = noise.row_words(
        torch.tensor([row.key for row in rows], dtype=torch.int32, device=logits.device),
        torch.tensor([row.position for row in rows], dtype=torch.int32, device=logits.device),
    )
    scores = top.double() + noise.gumbels(noise.token_words(top_tokens), words[:, None])
    best, winner = scores.masked_fill(top < floor, -torch.inf).max(-1)
    tokens = top_tokens.gather(1, winner[:, None])[:, 0]
    if top.shape[1] < scaled.shape[1]:
        _let_the_rest_compete(scaled, top[:, -1], floor[:, 0], words, best, tokens)
    return torch.where(top[:, 0].isfinite(), tokens, NOT_FINITE)


def lowest_kept(scaled: Tensor, top: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """The smallest value of logits / T that survives the cut-offs [R, 1]. `top` [R, C]: the row's largest,
    descending."""
    floor = top[:, :1] - _RANGE
    for at in _by_width(samplings, scaled.shape[1]):
        _cut(floor, at, scaled if len(at) == len(floor) else scaled[at], top[at], [samplings[i] for i in at])
    if at := [i for i, s in enumerate(samplings) if s.min_p > 0.0]:
        floor[at] = torch.maximum(floor[at], top[at, :1] + _column([samplings[i].min_p for i in at], top).log())
    return floor


def _by_width(samplings: Sequence[Sampling], vocab_size: int) -> list[list[int]]:
    """Rows with a top-k, then those with a top-p only; empty ones left out."""
    with_k = [i for i, s in enumerate(samplings) if 0 < s.top_k < vocab_size]
    with_p = [i for i, s in enumerate(samplings) if s.top_p < 1.0 and not 0 < s.top_k < vocab_size]
    return [rows for rows in (with_k, with_p) if rows]


def _cut(floor: Tensor, at: list[int], scaled: Tensor, top: Tensor, samplings: Sequence[Sampling]) -> None:
    """Raise `floor` of the rows `at` to what top-k and top-p leave; all of the rows have a top-k, or none."""
    ks = [sampling.top_k for sampling in samplings]
    if min(ks) > 0 and max(ks) < scaled.shape[1]:
        if max(ks) > top.shape[1]:
            top = scaled.topk(max(ks)).values
        least = top.gather(1, torch.tensor(ks, device=top.device)[:, None] - 1)
        total = top.masked_fill(top < least, -torch.inf).double().logsumexp(1, keepdim=True)
    else:
        least = floor[at]
        total = top[:, :1].double() - _largest_share(scaled).double().log()
    top_p = _column([sampling.top_p for sampling in samplings], top)
    ends = _nucleus_ends(scaled, top, total, top_p)
    floor[at] = torch.maximum(floor[at], torch.where(top_p < 1.0, torch.maximum(least, ends), least))


def _largest_share(scaled: Tensor) -> Tensor:
    """Probability of the most likely token [R, 1]; softmax is one pass, a sum of exponentials several."""
    return scaled.softmax(1).amax(1, keepdim=True)


def _nucleus_ends(scaled: Tensor, top: Tensor, total: Tensor, top_p: Tensor) -> Tensor:
    """The value of the last token of the smallest set, largest first, that holds `top_p` of `total`, the logarithm of
    the mass that the cut-offs before left [R, 1]."""
    mass = (top.double() - total).exp().cumsum(1)
    first = (mass < top_p).sum(1, keepdim=True).clamp(max=top.shape[1] - 1)
    ends = top.gather(1, first)
    is_open = (mass[:, -1] < top_p[:, 0]) & (top_p[:, 0] < 1.0)
    if top.shape[1] < scaled.shape[1] and is_open.any():
        wider = scaled[is_open].topk(min(_WIDER * top.shape[1], scaled.shape[1])).values
        ends[is_open] = _nucleus_ends(scaled[is_open], wider, total[is_open], top_p[is_open])
    return ends


def _let_the_rest_compete(
    scaled: Tensor, bound: Tensor, floor: Tensor, words: Tensor, best: Tensor, tokens: Tensor
) -> None:
    """Tokens beyond the candidates, none above `bound` [R]: those whose noise can lift them over `best` are scored, and
    take `tokens` over in place. Exact: the others could not have won."""
    open_rows = (bound >= floor).nonzero()[:, 0]
    vocabulary = _vocabulary_words(scaled.shape[1], scaled.device)
    for at in open_rows.split(max(1, _DENSE_CHUNK // len(vocabulary))):
        needed = noise.first_winner(best[at] - bound[at].double())
        local, token = (noise.high_words(vocabulary, words[at, :1]) >= needed[:, None]).nonzero(as_tuple=True)
        row = at[local]
        value = scaled[row, token]
        score = value.double() + noise.gumbels(vocabulary[token], words[row])
        wins = (score > best[row]) & (value >= floor[row])
        for r, t, s in zip(row[wins].tolist(), token[wins].tolist(), score[wins].tolist(), strict=True):
            if s > best[r]:
                best[r], tokens[r] = s, t


@functools.lru_cache(maxsize=4)
def _vocabulary_words(vocab_size: int, device: torch.device) -> Tensor:
    return noise.token_words(torch.arange(vocab_size, device=device))


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
