"""Whoever sends a pickle runs code: nothing that comes over the network is unpickled."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "vime_core").rglob("*.py"), *ROOT.glob("plugins/vime_*/vime_*/**/*.py")]
UNSAFE = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
LOADERS = {"load", "loads", "Unpickler", "open", "decode"}
NETWORK = {"socketserver", "http", "urllib", "aiohttp", "zmq", "requests", "multiprocessing"}
TO_OTHERS = {"connect", "bind", "listen", "accept", "create_connection", "create_server"}
OWN_CHILDREN = {
    "vime_core/rewards/worker.py",  # what the pool hands to its own scoring processes, over a pipe
    "vime_core/rewards/wire.py",  # the same, through memory that only they share
    "vime_core/testing/suite.py",  # what it pickled itself
}


def unpickled(source):
    """Lines with a call that may unpickle."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in UNSAFE
        for alias in node.names
        if alias.name in LOADERS
    }
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _unpickles(node, imported)]


def _unpickles(call, imported):
    name = ast.unparse(call.func)
    module, _, function = name.rpartition(".")
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name == "torch.load":
        return keywords.get("weights_only") != "True"
    if module in ("np", "numpy"):
        return keywords.get("allow_pickle", "False") != "False"
    return name in imported or (module in UNSAFE and function in LOADERS)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(b'')",
        "from pickle import loads as read\nread(b'')",
        "import cloudpickle\ncloudpickle.load(file)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_search_finds_what_it_looks_for(source):
    assert unpickled(source)


def test_only_what_the_processes_of_a_run_hand_to_their_own_children_is_unpickled():
    found = {str(path.relative_to(ROOT)) for path in SOURCES if unpickled(path.read_text())}
    assert found == OWN_CHILDREN


@pytest.mark.parametrize("path", sorted(OWN_CHILDREN))
def test_what_unpickles_does_not_use_the_network(path):
    tree = ast.parse((ROOT / path).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not NETWORK & {module.split(".")[0] for module in modules}
    assert not TO_OTHERS & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_nothing_switches_vllms_own_unpickling_on():
    lines = [line for path in SOURCES for line in path.read_text().splitlines() if "INSECURE_SERIALIZATION" in line]
    assert lines
    assert all(line.strip() == '"VLLM_ALLOW_INSECURE_SERIALIZATION": "0",' for line in lines), lines
