"""Observers: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

from vime_core.plugins.interfaces import Observer


class Good(Observer):
    """Counts steps."""

    def __init__(self, config):
        self.steps = 0

    def step_finished(self, step, metrics):
        self.steps += 1


class NeedsAMetric(Good):
    """test_it_watches_a_run: a metric that not every run has."""

    def step_finished(self, step, metrics):
        self.best = metrics["eval/heldout/accuracy"]


class StopsWithANumber(Good):
    """test_it_watches_a_run: a number where a reason is wanted."""

    def step_finished(self, step, metrics):
        return 1


class NeedsAStep(Good):
    """test_a_run_may_end_before_its_first_step: divides by the number of steps."""

    def run_finished(self, reason):
        return 1 / self.steps


class SortsSamples(Good):
    """test_what_it_is_shown_stays_as_it_is: reorders the samples that are trained on."""

    def groups_scored(self, step, groups):
        for group in groups:
            group.samples.sort(key=lambda sample: -sample.index)


class Awaited(Good):
    """test_the_component_has_the_methods_of_its_kind: a coroutine that nobody awaits."""

    async def step_finished(self, step, metrics):
        self.steps += 1
