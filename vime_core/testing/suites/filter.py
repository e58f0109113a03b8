"""Conformance of filters."""

from __future__ import annotations

import pickle

from vime_core.plugins.interfaces import Filter
from vime_core.testing.contract import require, require_equal
from vime_core.testing.prompts import make_prompt
from vime_core.testing.samples import make_sample
from vime_core.testing.suite import ComponentSuite
from vime_core.types import Group


class FilterSuite(ComponentSuite):
    """Tests of a filter."""

    group = "filter"
    interface = Filter

    def test_every_group_is_kept_or_dropped_with_a_short_reason(self) -> None:
        """The reason becomes part of a metric's name."""
        keeps = self.make()
        for group in scored_groups():
            reason = keeps.keep(group)
            require(reason is None or isinstance(reason, str), f"keep must return None or a reason, not {reason!r}")
            if reason is not None:
                short = bool(reason.strip()) and "\n" not in reason and len(reason) <= 80
                require(short, f"the reason must be one short line, not {reason!r:.100}")

    def test_a_group_is_left_as_it_is(self) -> None:
        """Filters choose groups; verdicts and samples belong to rewards and rollouts."""
        keeps = self.make()
        for group in scored_groups():
            before = pickle.dumps(group)
            keeps.keep(group)
            require(pickle.dumps(group) == before, f"keep changes the group {group.id}")

    def test_the_same_group_gets_the_same_answer(self) -> None:
        """A run that is resumed must keep the groups that it would have kept."""
        first, second = self.make(), self.make()
        forward = [first.keep(group) for group in scored_groups()]
        second.keep(scored_groups()[0])
        backward = [second.keep(group) for group in scored_groups()[::-1]][::-1]
        require_equal(backward, forward, "the answers in another order")


def scored_groups() -> list[Group]:
    """Groups of several sizes: mixed, equal and extreme scores, without judged samples, with empty responses."""
    scores = {"mixed": [0.0, 1.0, 0.5], "equal": [1.0, 1.0], "one": [0.0], "negative": [-3.0, 1e6], "wrong": [0.0] * 4}
    groups = [
        Group(
            name, make_prompt(name), [make_sample(3, 4 + i, group=name, index=i, score=s) for i, s in enumerate(all_)]
        )
        for name, all_ in scores.items()
    ]
    silent = [
        make_sample(3, 5, group="silent", index=0, score=0.0, status="timeout"),
        make_sample(3, 5, group="silent", index=1, score=0.0, status="error"),
    ]
    empty = [
        make_sample(3, 0, group="empty", index=0, score=0.0, status="unparseable"),
        make_sample(3, 9, group="empty", index=1, score=1.0, finish_reason="length"),
    ]
    return [*groups, Group("silent", make_prompt("silent"), silent), Group("empty", make_prompt("empty"), empty)]
