"""The commands of docs/how-to/cluster.md are such as this Ray and this vime have."""

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from ray.scripts.scripts import cli

from vime_core.config.schema import ClusterConfig

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md").read_text()


def options_of(command):
    return {option for parameter in cli.commands[command].params for option in parameter.opts}


@pytest.mark.parametrize("command", ["start", "status", "health-check", "get-auth-token"])
def test_options_of_ray_are_there(command):
    lines = re.findall(rf"ray {command}\b(.*?)(?:$|2>|&|>|`|\|)", PAGE.replace("\\\n", " "), re.MULTILINE)
    used = {option for line in lines for option in re.findall(r"--[a-z-]+", line)}
    assert lines
    assert used <= options_of(command), used - options_of(command)


def test_ports_are_options_of_ray_start():
    [section] = re.findall(r"## Ports.*?\n## ", PAGE, re.DOTALL)
    used = set(re.findall(r"`(--[a-z-]+)`", section))
    assert len(used) > 5
    assert used <= options_of("start")


def test_settings_are_those_of_the_cluster():
    used = set(re.findall(r"\bcluster\.([a-z_]+)\b", PAGE)) - {"md"}
    assert used == {field.name for field in fields(ClusterConfig)} - {"object_store_mib"}


def test_the_batch_script_parses():
    [script] = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_messages_of_the_table_are_those_of_the_code():
    sources = "".join(
        file.read_text() for file in sorted((Path(__file__).parents[2] / "vime_core" / "cluster").glob("*.py"))
    )
    code = re.sub(r'"\s*\n\s*f?"', "", sources)
    [table] = re.findall(r"## When it does not start.*", PAGE, re.DOTALL)
    for row in re.findall(r"^\| (`.*?) \| ", table, re.MULTILINE):
        for message in re.findall(r"`([^`]*)`", row):
            for part in message.split("..."):
                assert part.strip() in code, part
