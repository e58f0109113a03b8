import json
import random

import numpy as np
import pytest

from vime_core.randomness import random_state, restore_random_state, seed_process


def draw():
    return [random.random(), random.gauss(0, 1), float(np.random.random()), float(np.random.normal())]


@pytest.fixture(autouse=True)
def undisturbed():
    state = random_state()
    yield
    restore_random_state(state)


def test_the_same_seed_gives_the_same_numbers():
    seed_process(7)
    expected = draw()
    seed_process(7)
    assert draw() == expected
    seed_process(8)
    assert all(new != old for new, old in zip(draw(), expected, strict=True))


def test_a_seed_may_be_larger_than_numpy_takes():
    seed_process(2**40 + 3)
    assert len(set(draw())) == 4


@pytest.mark.parametrize("drawn", [0, 1, 700])
def test_numbers_go_on_after_a_trip_through_json(drawn):
    seed_process(1)
    for _ in range(drawn):
        draw()
    state = json.loads(json.dumps(random_state()))
    expected = [draw() for _ in range(3)]
    restore_random_state(state)
    assert [draw() for _ in range(3)] == expected
