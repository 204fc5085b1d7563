"""Random faults for a number of minutes, as a program: ``make fuzz MINUTES=10``.

Every case has its own seed, so that one that breaks the law can be tried again: it is printed as the kit names it.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from support.faults import RANDOM, all_cases, expected_answers, make_all, violation

PATIENCE = 300
"""Seconds after which a case counts as one that hangs."""


class TooLate(BaseException):
    """No answer in time; nothing that drcil catches."""


def _too_late(number: int, frame: object) -> None:
    raise TooLate(f"no answer after {PATIENCE} s")


def main(minutes: float, seed: int) -> int:
    """Try cases until the time is over; the number of broken laws."""
    draw, broken, tried = random.Random(seed), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "things"
        for name in ("things", "expected", "scratch"):
            (Path(scratch) / name).mkdir()
        print(f"seed {seed}; making what will be damaged", flush=True)
        make_all(place)
        expected = expected_answers(place, Path(scratch) / "expected")
        cases = [case for case in all_cases(place) if case.damage in RANDOM]
        signal.signal(signal.SIGALRM, _too_late)
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            case = draw.choice(cases)._replace(seed=draw.randrange(2**32))
            tried[f"{case.thing} {case.damage} {case.verb}"] += 1
            signal.alarm(PATIENCE)
            reason = violation(case, place, Path(scratch) / "scratch", expected)
            signal.alarm(0)
            if reason is not None:
                broken += 1
                print(f"{case}: {reason}", flush=True)
    print(f"{tried.total()} cases of {len(tried)} kinds, {broken} broken laws")
    return broken


if __name__ == "__main__":
    sys.exit(1 if main(float(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else random.randrange(2**32)) else 0)
