"""Prompts on which a draft head is trained, and others with which it is judged.

    python benchmarks/draft_head/prompts.py OUT_DIR [--train 14000] [--held-out 200] [--seed 0]

Writes OUT_DIR/train.jsonl and OUT_DIR/held_out.jsonl, the same for the same arguments: rows with `id`, `task`, `prompt`
and `temperature`, a fifth of each of the demo's five tasks, no prompt twice and none from the demo itself. What the
prompts are made of is split by name (catalog.py), so that no held-out topic, passage, word or wording occurs in
training.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import templates
from catalog import Catalog, check_disjoint, read_catalogs
from records import made

DEMO = Path(__file__).parents[2] / "configs/jobs/demo.jsonl"
DEMO_COLUMNS = ("request", "question", "document", "topic")
"""Those that make a row of the demo what it is; the others (form, language, fields) are no prompts by themselves."""
SLOT = re.compile(r"\{([A-Za-z_]+?)(\d?)\}")
IN_VAIN = 300
"""So many prompts in a row that exist already: the template is used up."""
SAMPLED_SHARE, TEMPERATURE = 0.4, 0.8
"""Of the training rows, those whose answers are sampled: a head also has to know what greedy decoding never writes."""
FRAME_SHARE = 0.3
"""Of passages, those with drawn names; more would make texts too much alike, fewer repeat the fixed ones too often."""


class Drawing:
    """One prompt while its slots are filled; a slot that occurs twice has the same value twice."""

    def __init__(self, catalog: Catalog, rng: random.Random) -> None:
        self.catalog = catalog
        self.rng = rng
        self.values: dict[str, str] = {}
        self.wants_rows = False

    def filled(self, text: str) -> str:
        """The text with all its slots replaced; what is put in is not searched for slots again."""
        self.wants_rows |= "{rows}" in text
        return SLOT.sub(lambda match: self.value(match[1], match[2]), text)

    def value(self, slot: str, number: str) -> str:
        """The value of `{slot}`, of `{slot2}` another one than that, of `{Slot}` the same with a capital."""
        key = slot.lower() + number
        if key not in self.values:
            # Two words from a short list are often the same; more than a list holds cannot be had.
            drawn = (self.drawn(slot.lower()) for _ in range(IN_VAIN))
            new = next((value for value in drawn if value not in self.values.values()), None)
            if new is None:
                raise ValueError(f"no further value for {{{key}}}")
            self.values[key] = new
        text = self.values[key]
        return text[0].upper() + text[1:] if slot[0].isupper() else text

    def drawn(self, slot: str) -> str:
        """Something new for a slot, whichever way it is made."""
        method = getattr(self, f"draw_{slot}", None)
        if method:
            return str(method())
        value = made(slot, self.rng, self.pick)
        return self.pick(slot) if value is None else value

    def pick(self, name: str) -> str:
        """An entry of a list."""
        return self.rng.choice(self.catalog.lists[name])

    @cached_property
    def kind(self) -> str:
        """Which record this prompt is about: several entries below each other, or one."""
        return self.rng.choice(
            [kind for kind in self.catalog.frames if has_rows(self.catalog, kind) == self.wants_rows]
        )

    @cached_property
    def keys(self) -> list[str]:
        """The fields asked for; all of them of a table, else some in any order."""
        fields = self.catalog.fields[self.kind]
        if self.wants_rows:
            return list(fields)
        return self.rng.sample(fields, self.rng.randint(2, min(4, len(fields))))

    def draw_email(self) -> str:
        """That of the person named before, at a domain reserved for examples."""
        owner = self.values.get("name") or self.drawn("name")
        return f"{owner.replace(' ', '.').lower()}@example.{self.rng.choice(('com', 'org', 'net'))}"

    def draw_record(self) -> str:
        """One of the frames of the kind, filled on its own."""
        return Drawing(self.catalog, self.rng).filled(self.rng.choice(self.catalog.frames[self.kind]))

    draw_rows = draw_record

    def draw_keys(self) -> str:
        """The fields as keys, with spaces or with underscores."""
        gap = self.rng.choice("_ ")
        return ", ".join(key.replace(" ", gap) for key in self.keys)

    def draw_key(self) -> str:
        """A single field."""
        return self.keys[0]

    def draw_form(self) -> str:
        """Two drawings share the name: a form of writing from the list, or a form to fill in about a record."""
        if "record" not in self.values:
            return self.pick("form")
        return "\n".join(f"{key[0].upper()}{key[1:]}: ____" for key in self.keys)

    def draw_messages(self) -> str:
        """Short records of different kinds, one per line."""
        short = [frame for frames in self.catalog.frames.values() for frame in frames if "\n" not in frame]
        chosen = self.rng.sample(short, self.rng.randint(2, 5))
        return "\n".join(f"- {Drawing(self.catalog, self.rng).filled(frame)}" for frame in chosen)

    def draw_passage(self) -> str:
        """A fixed text, or one with names, dates and amounts drawn."""
        if self.rng.random() < FRAME_SHARE:
            return Drawing(self.catalog, self.rng).filled(self.pick("notice_frame"))
        return self.pick("passage")

    def draw_program(self) -> str:
        """A snippet that can be rewritten in a general language."""
        return self.rng.choice([text for text in self.catalog.lists["snippet"] if not text.startswith("```sql")])

    def draw_language(self) -> str:
        """Not that of the program to be rewritten."""
        program = self.values.get("program", "")
        languages = self.catalog.lists["language"]
        return self.rng.choice([name for name in languages if not program.startswith(f"```{name.lower()}\n")])


def has_rows(catalog: Catalog, kind: str) -> bool:
    """Whether records of this kind have several entries."""
    return "_lines}" in catalog.frames[kind][0]


def prompts_of(
    task: str, count: int, wordings: Sequence[str], catalog: Catalog, rng: random.Random, taken: set[str]
) -> list[str]:
    """So many prompts, from all templates evenly as long as each has new ones to give; adds them to `taken`.

    Raises:
        ValueError: there are not so many.
    """
    in_vain = dict.fromkeys(wordings, 0)
    found: list[str] = []
    while len(found) < count:
        if not in_vain:
            raise ValueError(f"{task}: {count} prompts asked for, but only {len(found)} different ones can be made")
        wording = rng.choice(list(in_vain))
        prompt = Drawing(catalog, rng).filled(wording)
        if prompt in taken:
            in_vain[wording] += 1
            if in_vain[wording] == IN_VAIN:
                del in_vain[wording]
            continue
        in_vain[wording] = 0
        taken.add(prompt)
        found.append(prompt)
    return found


def rows_of(
    part: str, count: int, wordings: dict[str, tuple[str, ...]], catalog: Catalog, seed: int, taken: set[str]
) -> list[dict[str, Any]]:
    """A fifth per task, the first tasks one more where it does not come out even; shuffled."""
    rows = []
    draw = random.Random(f"{seed} {part} temperature")  # held-out rows are all greedy: they are compared
    for place, (task, texts) in enumerate(wordings.items()):
        share = count // len(wordings) + (place < count % len(wordings))
        rng = random.Random(f"{seed} {part} {task}")
        for number, prompt in enumerate(prompts_of(task, share, texts, catalog, rng, taken), 1):
            temperature = TEMPERATURE if part == "train" and draw.random() < SAMPLED_SHARE else 0.0
            row = {"id": f"{part}-{task}-{number:05}", "task": task, "prompt": prompt, "temperature": temperature}
            rows.append(row)
    random.Random(f"{seed} {part}").shuffle(rows)
    return rows


def check_no_demo(rows: Sequence[dict[str, Any]]) -> None:
    """The demo measures the head, so nothing of it may be trained on.

    Raises:
        ValueError: names the first prompt that contains what a row of the demo asks for.
    """
    demo = [json.loads(line) for line in DEMO.read_text(encoding="utf-8").splitlines()]
    asked = [row[column].casefold() for row in demo for column in DEMO_COLUMNS if column in row]
    for row in rows:
        prompt = row["prompt"].casefold()
        if hit := next((text for text in asked if text in prompt), None):
            raise ValueError(f"{row['id']} is a prompt of {DEMO.name}: {hit!r}")


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """As JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{path}: {len(rows)} prompts")


def main() -> None:
    """Reads the arguments, checks that the parts are disjoint, and writes both files."""
    parser = argparse.ArgumentParser(description="Write prompts for training and judging a draft head.")
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--train", type=int, default=14_000, help="rows to train on")
    parser.add_argument("--held-out", type=int, default=200, help="rows to judge with")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    train, held_out = read_catalogs()
    for ours, theirs in (
        (train.lists, held_out.lists),
        (train.frames, held_out.frames),
        (templates.TRAIN, templates.HELD_OUT),
    ):
        check_disjoint(ours, theirs)
    taken: set[str] = set()
    try:
        held_out_rows = rows_of("held-out", args.held_out, templates.HELD_OUT, held_out, args.seed, taken)
        train_rows = rows_of("train", args.train, templates.TRAIN, train, args.seed, taken)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    check_no_demo(train_rows + held_out_rows)
    args.out_dir.mkdir(parents=True, exist_ok=True)
    write(args.out_dir / "train.jsonl", train_rows)
    write(args.out_dir / "held_out.jsonl", held_out_rows)


if __name__ == "__main__":
    main()
