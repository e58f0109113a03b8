"""`vime train --multirun`: real runs, one after the other."""

import re

import pytest
import yaml


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_each_value_is_a_run_of_its_own(world, tmp_path):
    swept = world.run(
        "--multirun", "train.lr=1e-4,2e-4", "train.steps=1", "run.name='lr_${train.lr}'", f"run.root={tmp_path}"
    )
    assert swept.status == 0, swept.output
    assert re.findall(r"^job (\d) of 2: ", swept.output, re.MULTILINE) == ["1", "2"]
    folders = sorted(tmp_path.glob("*/*"), key=lambda folder: folder.name)
    assert [folder.name.split("_", 1)[1] for folder in folders] == ["lr_0.0001", "lr_0.0002"]
    for folder, rate in zip(folders, (1e-4, 2e-4), strict=True):
        assert yaml.safe_load((folder / "config.yaml").read_text())["train"]["lr"] == rate
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
