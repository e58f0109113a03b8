"""Command lines and environments."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from vime_core.accelerators.network import collective_environment
from vime_core.errors import ConfigError, ResourceError
from vime_core.types import EngineEndpoint, NodePlace
from vime_vllm.actor import EngineSpec, _network
from vime_vllm.command import engine_command, engine_environment, kv_cache_bytes, router_command
from vime_vllm.config import VllmConfig, check_sleep
from vime_vllm.receiver import meets_trainer


def _option(command, name):
    return command[command.index(f"--{name}") + 1]


class Device:
    """An accelerator with 80 GiB that can sleep."""

    name = "big"
    can_sleep = True

    def memory(self):
        return 80 << 30, 80 << 30


def test_each_engine_has_a_seed_of_its_own(make_context, tmp_path):
    context = make_context(tmp_path)
    assert [_option(engine_command(context, index), "seed") for index in (0, 1)] == ["7", "8"]


def test_no_command_line_shows_the_key(make_context, tmp_path):
    context = make_context(tmp_path)
    command = [*engine_command(context, 0), *router_command(context.config, [], port=1, metrics_port=2, deadline_s=3)]
    assert context.run_key not in " ".join(command)
    assert engine_environment(context)["VIME_RUN_KEY"] == context.run_key


def test_the_key_is_not_shown_by_what_holds_it(make_context, tmp_path):
    context = make_context(tmp_path)
    endpoint = EngineEndpoint(name="engine-0", url="http://x", key=context.run_key, host="here")
    place = NodePlace(address="127.0.0.1", keeper="")
    spec = EngineSpec(
        name="engine-0",
        command=[],
        environment=engine_environment(context),
        log=tmp_path,
        run_id="run",
        place=place,
        health_deadline=1.0,
    )
    assert context.run_key not in repr((context, endpoint, spec))


@pytest.mark.parametrize(("sync", "found"), [("shm", {}), ("ipc", {}), ("nccl", collective_environment("lo"))])
def test_workers_in_a_group_with_the_trainer_use_its_network(make_context, tmp_path, sync, found):
    spec = EngineSpec(
        name="engine-0",
        command=[],
        environment={},
        log=tmp_path,
        run_id="run",
        place=NodePlace(address="127.0.0.1", keeper=""),
        health_deadline=1.0,
        meets_trainer=meets_trainer(sync),
    )
    assert _network(spec) == found


def test_the_longest_sequence_fits_into_one_unsplit_prefill(make_context, tmp_path):
    command = engine_command(make_context(tmp_path, max_prompt_tokens=5000, max_response_tokens=3000), 0)
    assert _option(command, "max-model-len") == "8000"
    assert int(_option(command, "max-num-batched-tokens")) >= 8000
    assert "--no-enable-chunked-prefill" in command


@pytest.mark.parametrize(("own", "used"), [(None, "float32"), ("bfloat16", "bfloat16")])
def test_the_trainers_dtype_unless_told_otherwise(make_context, tmp_path, own, used):
    assert _option(engine_command(make_context(tmp_path, dtype=own), 0), "dtype") == used


def test_the_cpu_runs_without_compiling_and_a_device_with(make_context, tmp_path):
    cpu = make_context(tmp_path)
    device = replace(cpu, accelerator=Device())
    assert "--enforce-eager" in engine_command(cpu, 0)
    assert engine_environment(cpu)["TORCHDYNAMO_DISABLE"] == "1"
    assert "--enforce-eager" not in engine_command(device, 0)
    assert "TORCHDYNAMO_DISABLE" not in engine_environment(device)
    compiled = make_context(tmp_path, enforce_eager=False)
    assert "--enforce-eager" not in engine_command(compiled, 0)


@pytest.mark.parametrize(
    ("sync", "receiver"), [("shm", "shm"), ("ipc", "vime_ipc"), ("rocm_ipc", "rocm_ipc"), ("nccl", "vime_nccl")]
)
def test_the_engine_receives_what_the_sync_strategy_sends(make_context, tmp_path, sync, receiver):
    """vLLM has a weight-transfer engine `ipc` of its own."""
    command = engine_command(replace(make_context(tmp_path), sync=sync), 0)
    assert _option(command, "weight-transfer-config") == f'{{"backend": "{receiver}"}}'


def test_sleep_mode_where_the_accelerator_can(make_context, tmp_path):
    cpu = make_context(tmp_path)
    assert "--enable-sleep-mode" not in engine_command(cpu, 0)
    assert "--enable-sleep-mode" in engine_command(replace(cpu, accelerator=Device()), 0)
    awake = replace(make_context(tmp_path, sleep=False), accelerator=Device())
    assert "--enable-sleep-mode" not in engine_command(awake, 0)
    check_sleep(VllmConfig(sleep=True), Device())
    with pytest.raises(ConfigError, match=r"^rollout.sleep=true: engines cannot sleep with accelerator=cpu"):
        check_sleep(VllmConfig(sleep=True), cpu.accelerator)


def test_sizes_of_the_kv_cache_from_the_configuration(make_context, tmp_path):
    fixed = engine_command(make_context(tmp_path, kv_cache_mib=3), 0)
    assert _option(fixed, "kv-cache-memory-bytes") == str(3 << 20)
    share = engine_command(make_context(tmp_path, gpu_memory_utilization=0.5), 0)
    assert _option(share, "gpu-memory-utilization") == "0.5"
    assert "--kv-cache-memory-bytes" not in share


def test_the_kv_cache_holds_the_longest_sequences(make_context, tmp_path):
    geometry = make_context(tmp_path).geometry
    config = VllmConfig(max_num_seqs=10, max_prompt_tokens=100, max_response_tokens=50, num_engines=1)
    # 150 tokens take two blocks of 128; keys and values of 2 layers, 1 head of 32, 4 bytes; and vLLM's own block.
    block = 128 * 2 * 2 * 1 * 32 * 4
    assert kv_cache_bytes(config, geometry, "float32", 1 << 40) == (10 * 2 + 1) * block
    assert kv_cache_bytes(config, geometry, "bfloat16", 1 << 40) == (10 * 2 + 1) * block // 2
    four_heads = dataclasses.replace(geometry, num_kv_heads=4)
    assert kv_cache_bytes(config, four_heads, "float32", 1 << 40) == (10 * 2 + 1) * block * 4
    config.tensor_parallel_size = 4
    assert kv_cache_bytes(config, four_heads, "float32", 1 << 40) == (10 * 2 + 1) * block


def test_the_kv_cache_shrinks_with_the_memory_until_no_sequence_fits(make_context, tmp_path):
    geometry = make_context(tmp_path).geometry
    config = VllmConfig(max_num_seqs=10, max_prompt_tokens=100, max_response_tokens=50, num_engines=2)
    block = 128 * 2 * 2 * 1 * 32 * 4
    assert kv_cache_bytes(config, geometry, "float32", 4 * 5 * block) == 5 * block
    with pytest.raises(ResourceError, match=r"sequence of 150 tokens.*2 engines.*rollout.max_response_tokens"):
        kv_cache_bytes(config, geometry, "float32", 4 * 2 * block)
