"""Filters: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""


class Good:
    """Drops groups whose judged samples all have one score."""

    def __init__(self, config):
        self.config = config

    def keep(self, group):
        scores = {sample.verdict.score for sample in group.judged}
        return None if len(scores) > 1 else "zero variance"


class ReturnsBool(Good):
    """test_every_group_is_kept_or_dropped_with_a_short_reason: True and False instead of a reason."""

    def keep(self, group):
        return super().keep(group) is None


class TalksTooMuch(Good):
    """test_every_group_is_kept_or_dropped_with_a_short_reason: a reason of several lines with a sample in it."""

    def keep(self, group):
        return "\n".join(str(sample.verdict) for sample in group.samples)


class NeedsSamples(Good):
    """test_every_group_is_kept_or_dropped_with_a_short_reason: raises where no sample was judged."""

    def keep(self, group):
        return None if max(sample.verdict.score for sample in group.judged) > 0 else "all wrong"


class DropsSamples(Good):
    """test_a_group_is_left_as_it_is: removes samples instead of groups."""

    def keep(self, group):
        group.samples = [sample for sample in group.samples if sample.verdict.score > 0]


class EverySecond(Good):
    """test_the_same_group_gets_the_same_answer: the answer depends on how often it was asked."""

    asked = 0

    def keep(self, group):
        self.asked += 1
        return None if self.asked % 2 else "second"
