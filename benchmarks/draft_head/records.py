"""What is made by seed rather than taken from a list: names, dates, amounts, and whole records of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FREQUENCIES = ("once a day", "twice a day", "every six hours", "in the evening", "before each meal", "every other day")
CURRENCIES = ("{} euros", "${}", "£{}", "EUR {}")

Pick = Callable[[str], str]
"""The name of a list -> one of its entries."""


def made(slot: str, rng: random.Random, pick: Pick) -> str | None:
    """The value of a slot that is no list, or None if there is no such slot."""
    maker = MAKERS.get(slot)
    return maker(rng, pick) if maker else None


def name(rng: random.Random, pick: Pick) -> str:
    """First and last name."""
    return f"{pick('first_name')} {pick('last_name')}"


def address(rng: random.Random, pick: Pick) -> str:
    """House number, street and town."""
    return f"{rng.randint(1, 180)} {pick('street')}, {pick('town')}"


def date(rng: random.Random, pick: Pick) -> str:
    """A day, written in one of four ways."""
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2019, 2027)
    return rng.choice(
        (
            f"{day} {MONTHS[month - 1]}",
            f"{day} {MONTHS[month - 1]} {year}",
            f"{MONTHS[month - 1]} {day}, {year}",
            f"{year}-{month:02}-{day:02}",
        )
    )


def clock(rng: random.Random, pick: Pick) -> str:
    """A time of day, in 24 hours or with am and pm."""
    hour, minute = rng.randint(7, 20), rng.randrange(0, 60, 5)
    return rng.choice((f"{hour}:{minute:02}", f"{(hour - 1) % 12 + 1}:{minute:02} {'am' if hour < 12 else 'pm'}"))


def phone(rng: random.Random, pick: Pick) -> str:
    """From the range that is kept free for fiction."""
    return f"555-01{rng.randint(0, 99):02}"


def amount(low: int, high: int, cents: bool) -> Callable[[random.Random, Pick], str]:
    """Money between the two, in one of a few currencies."""

    def draw(rng: random.Random, pick: Pick) -> str:
        number = f"{rng.randint(low, high):,}" + (f".{rng.randrange(0, 100, 5):02}" if cents else "")
        return rng.choice(CURRENCIES).format(number)

    return draw


def code(rng: random.Random, pick: Pick) -> str:
    """A number as offices give it to orders and parcels."""
    letters = "".join(rng.choices("ABCDEFGHKLMNPRSTUVWXYZ", k=2))
    return rng.choice(
        (f"{letters}-{rng.randint(1000, 99999)}", str(rng.randint(10000, 999999)), f"{letters}{date_code(rng)}")
    )


def date_code(rng: random.Random) -> str:
    """Year and a running number."""
    return f"{rng.randint(2019, 2027)}/{rng.randint(1, 999):03}"


def lines(line: Callable[[random.Random, Pick], str]) -> Callable[[random.Random, Pick], str]:
    """Three to six lines of the same kind, plain, numbered or with dashes."""

    def draw(rng: random.Random, pick: Pick) -> str:
        mark = rng.choice(("", "- ", "{}. ", "* "))
        return "\n".join(mark.format(i) + line(rng, pick) for i in range(1, rng.randint(3, 6) + 1))

    return draw


def product_line(rng: random.Random, pick: Pick) -> str:
    """An item, how many of it, and its price."""
    return f"{rng.randint(1, 40)} x {pick('product')}, {amount(3, 180, True)(rng, pick)} each"


def person_line(rng: random.Random, pick: Pick) -> str:
    """Who somebody is."""
    return f"{name(rng, pick)}, {pick('job')}, {pick('town')}"


def agenda_line(rng: random.Random, pick: Pick) -> str:
    """What happens when, and who sees to it."""
    return f"{clock(rng, pick)}: {pick('duty')} ({name(rng, pick)})"


def booking_line(rng: random.Random, pick: Pick) -> str:
    """What was paid when and for what."""
    return f"{date(rng, pick)}: {pick('purpose')}, {amount(5, 900, True)(rng, pick)}"


def whole(numbers: Sequence[int]) -> Callable[[random.Random, Pick], str]:
    """One of the numbers."""
    return lambda rng, pick: f"{rng.choice(numbers):,}"


def word(words: Sequence[str]) -> Callable[[random.Random, Pick], str]:
    """One of a small closed set that training and held-out prompts share."""
    return lambda rng, pick: rng.choice(words)


MAKERS: dict[str, Callable[[random.Random, Pick], str]] = {
    "name": name,
    "address": address,
    "date": date,
    "time": clock,
    "phone": phone,
    "code": code,
    "month": word(MONTHS),
    "weekday": word(WEEKDAYS),
    "frequency": word(FREQUENCIES),
    "few": whole(range(2, 30)),
    "rooms": whole(range(2, 7)),
    "dose": whole((5, 10, 20, 25, 40, 50, 100, 200, 250, 400, 500)),
    "size": whole(range(28, 160)),
    "pages": whole(range(96, 640)),
    "crowd": whole(range(150, 24_000, 10)),
    "year": lambda rng, pick: str(rng.randint(1962, 2024)),
    "seat": lambda rng, pick: f"{rng.randint(1, 40)}{rng.choice('ABCDEF')}",
    "score": lambda rng, pick: f"{rng.randint(0, 5)}{rng.choice((':', '-', ' to '))}{rng.randint(0, 5)}",
    "price": amount(3, 180, True),
    "bigprice": amount(180, 9_500, True),
    "rent": amount(390, 2_400, False),
    "salary": amount(24_000, 96_000, False),
    "product_lines": lines(product_line),
    "people_lines": lines(person_line),
    "agenda_lines": lines(agenda_line),
    "booking_lines": lines(booking_line),
}
