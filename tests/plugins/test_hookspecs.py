import inspect

from vime_core.plugins import entries
from vime_core.plugins.hookcheck import HOOKS
from vime_core.plugins.kinds import HOOK_ENTRIES, config_base, entry_type_of


def test_every_hook_says_in_signature_and_docstring_which_entries_it_returns():
    assert HOOKS.keys() == HOOK_ENTRIES.keys()
    for name, function in HOOKS.items():
        entry_type = HOOK_ENTRIES[name]
        assert inspect.signature(function).return_annotation == f"Iterable[entries.{entry_type.__name__}]"
        assert f"`{entry_type.__name__}`" in (function.__doc__ or "")
        assert not inspect.signature(function).parameters


def test_every_entry_class_belongs_to_one_hook_and_has_names_of_its_own():
    classes = {value for value in vars(entries).values() if inspect.isclass(value) and issubclass(value, entries.Entry)}
    assert set(HOOK_ENTRIES.values()) == classes - {entries.Entry}
    names = [{entry_type.kind, entry_type.group} for entry_type in HOOK_ENTRIES.values()]
    assert len(set().union(*names)) == sum(map(len, names))


def test_a_kind_is_found_by_either_name():
    assert entry_type_of("training backend") is entry_type_of("train") is entries.TrainBackendEntry
    assert config_base(entries.TrainBackendEntry).__name__ == "TrainConfig"
    assert config_base(entries.ObserverEntry).__name__ == "ComponentConfig"
