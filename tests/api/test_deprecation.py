import re

import pytest

from vime_core import deprecation
from vime_core.deprecation import VimeDeprecationWarning, deprecated, warn_deprecated

NOTICE = {"since": "0.1", "removed_in": "0.3", "instead": "vime_core.new"}


def test_a_deprecated_function_warns_and_works():
    @deprecated(**NOTICE)
    def old(value, *, more=1):
        """What it did."""
        return value + more

    message = r"\.old is deprecated since vime-core 0\.1 and is removed in 0\.3; use vime_core\.new"
    with pytest.warns(VimeDeprecationWarning, match=message) as caught:
        assert old(1, more=2) == 3
    assert caught[0].filename == __file__
    assert (old.__name__, old.__doc__) == ("old", "What it did.")


def test_a_deprecated_class_stays_one_and_warns_where_it_is_made():
    @deprecated(**NOTICE)
    class Old:
        def __init__(self, value):
            self.value = value

    assert isinstance(Old, type)
    with pytest.warns(VimeDeprecationWarning, match=r"Old is deprecated") as caught:
        assert Old(3).value == 3
    assert caught[0].filename == __file__


def test_a_deprecated_argument_is_told_at_the_caller():
    def call(old=None):
        if old is not None:
            warn_deprecated("argument old of call", **NOTICE)

    with pytest.warns(VimeDeprecationWarning, match="argument old of call is deprecated") as caught:
        call(old=1)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("removed_in", ["0.1", "0.2"])
def test_a_notice_of_less_than_two_minor_releases_is_refused(removed_in):
    with pytest.raises(ValueError, match=r"must be 2 minor releases after since=0\.1"):
        deprecated(since="0.1", removed_in=removed_in, instead="x")
    with pytest.raises(ValueError, match="2 minor releases"):
        warn_deprecated("x", since="0.1", removed_in=removed_in, instead="x")


def test_a_major_release_may_remove_at_once():
    deprecated(since="0.9", removed_in="1.0", instead="x")


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "1.0.0"])
def test_what_is_due_fails_the_release_that_must_remove_it(monkeypatch, version):
    monkeypatch.setattr(deprecation, "__version__", version)
    with pytest.raises(RuntimeError, match=re.escape(f"was to be removed in 0.3, and this is vime-core {version}")):
        deprecated(**NOTICE)(lambda: None)
