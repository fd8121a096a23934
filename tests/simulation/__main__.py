"""Run seeds: ``python -m tests.simulation --seeds 10000 --from 5``, or one, with all that happened: ``--seed 7``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from tests.simulation.plan import Plan, draw
from tests.simulation.runs import REACHABLE, Verdict, repeat, run
from tests.simulation.shrink import shrink

PROGRESS_EVERY = 100


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and show it")
    parser.add_argument("--shrink", action="store_true", help="with --seed: look for a smaller plan that fails")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to run")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    options = parser.parse_args(arguments)
    if options.seed is None:
        return run_many(options.first, options.seeds)
    plan = draw(options.seed)
    if options.shrink:
        plan = shrink(plan, lambda candidate: bool(run(candidate).broken))
    return show(plan, run(plan))


def show(plan: Plan, verdict: Verdict) -> int:
    for item in (plan.settings, f"always_replay={plan.always_replay}", *plan.faults, *plan.lives, *verdict.lines):
        print(item)
    for line in verdict.broken:
        print("BROKEN", line)
    print(f"seed {plan.seed}: {'broken' if verdict.broken else 'well'}, {verdict.fingerprint}")
    return 1 if verdict.broken else 0


def run_many(first: int, count: int) -> int:
    reached: Counter[str] = Counter()
    broken = 0
    for done, seed in enumerate(range(first, first + count), 1):
        verdict = run(draw(seed))
        reached += verdict.reached
        if verdict.broken:
            broken += 1
            print(f"BROKEN {verdict.broken[0]}\n  {repeat(seed)}", flush=True)
        if done % PROGRESS_EVERY == 0 or done == count:
            print(f"{done} of {count} seeds, {broken} broken", flush=True)
    for what in sorted({*reached, *REACHABLE}):
        print(f"{reached[what]:10} {what}")
    never = [what for what in REACHABLE if not reached[what]]
    if never:
        print(f"never reached: {', '.join(never)}")
    return 1 if broken or never else 0


if __name__ == "__main__":
    sys.exit(main())
