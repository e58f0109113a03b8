"""Two real vLLM servers behind a real router, weights pushed into them. Slow to start, so shared by all tests here.

The order matters at the end: broken pushes make the engines unusable, and the last test kills one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import time
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from vime_core.config.schema import SyncConfig
from vime_core.errors import DeadlineError, EngineError, SyncError
from vime_core.loop.probe import Probe
from vime_core.types import Prompt, SamplingParams, VersionSpan
from vime_vllm.sync.control import WeightSessions
from vime_vllm.sync.segment import FOLDER

pytestmark = pytest.mark.engine

VOCAB = 120
PARAMS = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=24, stop_token_ids=(), seed=0)
SHARED_PROMPT = [3 + 7 * i % (VOCAB - 3) for i in range(300)]
"""More than two blocks of the prefix cache."""


ROUTER_ROUTES = {
    "/liveness": {"GET"},
    "/readiness": {"GET"},
    "/health": {"GET"},
    "/health_generate": {"GET"},
    "/v1/models": {"GET"},
    "/get_model_info": {"GET"},
    "/get_server_info": {"GET"},
    "/list_workers": {"GET"},
    "/get_loads": {"GET"},
    "/add_worker?url=http://127.0.0.1:9": {"POST"},
    "/remove_worker?url=ENGINE": {"POST"},
    "/flush_cache": {"POST"},
    "/workers": {"GET", "POST"},
    "/workers/ENGINE": {"GET", "DELETE"},
    "/generate": {"POST"},
    "/inference/v1/generate": {"POST"},
    "/v1/completions": {"POST"},
    "/v1/chat/completions": {"POST"},
    "/v1/embeddings": {"POST"},
    "/rerank": {"POST"},
    "/v1/rerank": {"POST"},
    "/v1/responses": {"POST"},
    "/v1/responses/1": {"GET", "DELETE"},
    "/v1/responses/1/cancel": {"POST"},
    "/v1/responses/1/input": {"GET"},
}
"""Of vllm-router 0.1.17; it has no OpenAPI of its own. ENGINE stands for the URL of an engine."""


def params(**changes):
    return dataclasses.replace(PARAMS, **changes)


def test_log_probs_are_those_of_transformers_before_and_after_pushes(run):
    """The shared prompt is cached by the first requests; a push that left the cache would show in the next round."""
    hits = run.metric("prefix_cache_hits_total")
    for seed in (1, 2):
        report = run.publish(seed)
        prompts = [SHARED_PROMPT] * 12 + [[5, 6, 7]] * 4
        completions = run.generate(prompts, [params(seed=index) for index in range(16)])
        for prompt, completion in zip(prompts, completions, strict=True):
            assert completion.policy_versions == (VersionSpan(run.version, 0, 24),)
            assert run.difference(prompt, completion) < 1e-4
    assert report.version == run.version
    assert report.tensors == len(run.models[run.version].state_dict())
    assert report.bytes == sum(t.nbytes for t in run.models[run.version].state_dict().values())
    assert set(report.checksums) == set(run.models[run.version].state_dict())
    assert all(after > before for before, after in zip(hits, run.metric("prefix_cache_hits_total"), strict=True))


def test_log_probs_are_at_the_sampling_temperature(run):
    [completion] = run.generate([[5, 6, 7]], [params(temperature=0.5)])
    model = run.models[run.version]
    handle = model.lm_head.register_forward_hook(lambda _module, _inputs, logits: logits / 0.5)
    assert run.difference([5, 6, 7], completion) < 1e-4
    handle.remove()


def test_every_engine_holds_the_weights_and_says_so(run):
    for name in run.names:
        [completion] = run.generate([[9, 8, 7]], [params()], engine=name)
        assert run.difference([9, 8, 7], completion) < 1e-4
        assert {span.version for span in completion.policy_versions} == {run.version}


def test_requests_spread_over_all_engines(run):
    before = run.metric("request_success_total")
    run.generate([SHARED_PROMPT] * 40, [params(seed=index, max_tokens=2) for index in range(40)])
    served = [after - start for start, after in zip(before, run.metric("request_success_total"), strict=True)]
    assert sum(served) == 40
    assert min(served) >= 15


def test_a_seed_gives_the_same_tokens_on_every_engine_and_in_every_batch(run):
    prompts, seeds = [[4, 5, 6]] * 8, [params(seed=index) for index in range(8)]
    first, second = (run.generate(prompts, seeds, engine=name) for name in run.names)
    [alone] = run.generate(prompts[:1], seeds[:1])
    for one, other in zip(first, second, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
    assert alone.token_ids.tolist() == first[0].token_ids.tolist()
    assert len({tuple(completion.token_ids.tolist()) for completion in first}) > 1


def test_unseeded_samples_differ_between_engines_and_requests(run):
    completions = [
        completion
        for name in run.names
        for completion in run.generate([[4, 5, 6]] * 3, [params(seed=None)] * 3, engine=name)
    ]
    assert len({tuple(completion.token_ids.tolist()) for completion in completions}) == len(completions)


def test_only_the_given_stop_tokens_stop_and_they_are_part_of_the_response(run):
    [free] = run.generate([[5, 6, 7]], [params(max_tokens=200)])
    tokens = free.token_ids.tolist()
    assert free.finish_reason == "length"
    assert len(tokens) == 200
    # The model folder's own end-of-sequence token is 2; it was sampled, and not asked for.
    assert 2 in tokens
    for stop in (2, tokens[5]):
        [completion] = run.generate([[5, 6, 7]], [params(max_tokens=200, stop_token_ids=(119, stop))])
        end = min(tokens.index(token) for token in (119, stop) if token in tokens) + 1
        assert completion.token_ids.tolist() == tokens[:end]
        assert completion.finish_reason == "stop"
        assert np.allclose(completion.logprobs, free.logprobs[:end], atol=1e-4)


def test_greedy_takes_the_most_probable_tokens(run):
    [completion] = run.generate([[5, 6, 7]], [params(temperature=0.0, seed=None, max_tokens=8)])
    prompt = [5, 6, 7]
    for token in completion.token_ids.tolist():
        with torch.no_grad():
            assert int(run.models[run.version](torch.tensor([prompt])).logits[0, -1].argmax()) == token
        prompt = [*prompt, token]


def test_no_route_of_an_engine_opens_without_the_key(run, stranger):
    """What its OpenAPI names, what its log names, and what neither does; every method, every wrong way."""
    [url, _] = [endpoint.url for endpoint in run.backend.endpoints()]
    routes = engine_routes(run, url)
    assert {"/inference/v1/generate", "/pause", "/update_weights", "/collective_rpc", "/metrics"} <= routes.keys()
    assert {"/openapi.json", "/docs"} <= routes.keys()
    before = traces(run)
    for answer in stranger.try_all(url, routes):
        if (answer.method, answer.path) == ("GET", "/health"):
            # The lock's own answer to the router's probe.
            assert (answer.status, answer.body) == (200, b""), answer
        else:
            assert answer.status == 401, answer
    assert stranger.websocket_status(url + "/v1/realtime") == 403
    assert traces(run) == before


def test_no_route_of_the_router_opens_without_the_key(run, stranger):
    """Its own routes, administration included, and those of the engines behind it."""
    router = run.backend._router.url
    behind = engine_routes(run, run.backend.endpoints()[0].url)
    before = traces(run)
    for answer in stranger.try_all(router, behind | ROUTER_ROUTES):
        if answer.status != 401:
            # It says of its own routes which methods they lack, and answers what browsers ask before a request.
            assert answer.method not in ROUTER_ROUTES.get(answer.path, ()), answer
            assert (answer.status, answer.body) == (200 if answer.method == "OPTIONS" else 405, b""), answer
    assert stranger.websocket_status(router + "/v1/realtime") == 401
    assert traces(run) == before


def test_the_key_opens_the_doors(run):
    doors = {
        run.backend.endpoints()[0].url: ("/version", "/weight_info", "/metrics", "/openapi.json", "/docs", "/health"),
        run.backend._router.url: ("/list_workers", "/workers", "/health", "/liveness", "/readiness"),
    }
    for base, paths in doors.items():
        for path in paths:
            assert run.get(base + path, run.context.run_key)[0] == 200, base + path


def engine_routes(run, url):
    """Path -> methods that its OpenAPI or its log names, and some paths that neither does."""
    spec = json.loads(run.get(url + "/openapi.json", run.context.run_key)[1])
    routes = {path: {method.upper() for method in methods} for path, methods in spec["paths"].items()}
    log = (run.context.log_folder / "engine-0.log").read_text()
    for path, methods in re.findall(r"Route: (\S+), Methods: (.+)", log):
        routes.setdefault(path, set()).update(methods.split(", "))
    for path in ("/", "/nothing", "/v1/realtime", "/health/", "//pause", "/v1/../pause", "/%70ause"):
        routes.setdefault(path, {"GET", "POST"})
    return {path.replace("{response_id}", "1"): methods for path, methods in routes.items()}


def traces(run):
    """What a request that got through would have changed."""
    key, engines = run.context.run_key, [endpoint.url for endpoint in run.backend.endpoints()]
    states = [run.get(url + path, key)[1] for url in engines for path in ("/is_paused", "/weight_info")]
    workers = sorted(json.loads(run.get(run.backend._router.url + "/list_workers", key)[1])["urls"])
    assert workers == sorted(engines)
    return states, run.metric("request_success_total")


def test_servers_listen_on_loopback_only(run):
    servers = [*_processes(run), *psutil.Process(run.backend._router._process.pid).children(recursive=True)]
    listening = [c.laddr.ip for server in servers for c in server.net_connections() if c.status == "LISTEN"]
    assert len(listening) >= 4
    assert all(ip_address(ip).is_loopback for ip in listening), listening


def _processes(run):
    """All processes of the engines; those of vLLM that rename themselves lose sight of their environment."""
    roots = [process for process in psutil.process_iter() if run.context.run_id in _prefix(process)]
    found = {process for root in roots for process in (root, *root.children(recursive=True))}
    assert sum("VLLM::" in " ".join(process.cmdline()) for process in found) == 4
    return found


def _prefix(process):
    try:
        return process.environ().get("VIME_SEGMENT_PREFIX", "")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def test_engines_unpickle_no_requests(run):
    servers = [process for process in _processes(run) if process.cmdline()[1:3] == ["-m", "vime_vllm.server"]]
    assert len(servers) == 2
    assert {process.environ()["VLLM_ALLOW_INSECURE_SERIALIZATION"] for process in servers} == {"0"}


def test_the_key_is_on_no_command_line(run):
    for process in psutil.process_iter(["cmdline"]):
        assert run.context.run_key not in " ".join(process.info["cmdline"] or [])


def test_seeded_requests_survive_a_push_while_they_run(run):
    """96 sequences whose caches are dropped in the middle: split prefills of seeded requests would end the engine."""
    prompts = [SHARED_PROMPT[: 40 + 3 * index] for index in range(96)]

    begun = run.metric("generation_tokens_total")

    async def push_meanwhile():
        requests = [
            asyncio.ensure_future(run.backend.generate(prompt, params(seed=index, max_tokens=256)))
            for index, prompt in enumerate(prompts)
        ]
        while any(now - start < 500 for now, start in zip(await tokens(), begun, strict=True)):
            assert not all(request.done() for request in requests)
        await run.backend.pause()
        paused_at = await tokens()
        await asyncio.to_thread(run.push, 3)
        assert await tokens() == paused_at
        await run.backend.resume()
        return await asyncio.gather(*requests)

    async def tokens():
        return await asyncio.to_thread(run.metric, "generation_tokens_total")

    completions = asyncio.run(push_meanwhile())
    assert all(len(completion.token_ids) == 256 for completion in completions)
    assert {span.version for c in completions for span in c.policy_versions} == {run.version - 1, run.version}
    assert sum(len(completion.policy_versions) == 2 for completion in completions) > 8
    for prompt, completion in zip(prompts, completions, strict=True):
        assert run.difference(prompt, completion) < 1e-4
    run.backend.health()


def test_abort_returns_what_there_is(run):
    async def abort_soon():
        requests = [
            asyncio.ensure_future(run.backend.generate([5, 6, 7], params(seed=index, max_tokens=256)))
            for index in range(64)
        ]
        while sum(await asyncio.to_thread(run.metric, "num_requests_running")) < 1:
            assert not all(request.done() for request in requests)
        await run.backend.abort()
        return await asyncio.gather(*requests)

    completions = asyncio.run(abort_soon())
    aborted = [completion for completion in completions if completion.finish_reason == "abort"]
    assert aborted
    assert all(len(completion.token_ids) < 256 for completion in aborted)
    assert all(run.difference([5, 6, 7], completion) < 1e-4 for completion in aborted)


def test_a_paused_engine_keeps_new_requests_waiting_and_can_be_aborted(run):
    async def while_paused():
        await run.backend.pause()
        request = asyncio.ensure_future(run.backend.generate([5, 6, 7], params()))
        done, _ = await asyncio.wait({request}, timeout=1)
        assert not done
        await run.backend.abort()
        return await request

    try:
        completion = asyncio.run(while_paused())
    finally:
        asyncio.run(run.backend.resume())
    assert completion.finish_reason == "abort"
    assert len(completion.token_ids) == 0
    assert completion.policy_versions == ()


def test_sleep_does_nothing_on_the_cpu(run):
    asyncio.run(run.backend.sleep())
    assert len(run.generate([[5, 6]], [params(max_tokens=2)])[0].token_ids) == 2
    asyncio.run(run.backend.wake())


def test_vllm_takes_a_push_between_the_two_parts_of_waking(run):
    """vLLM's CPU workers free nothing, but what schedules them keeps account of which part is awake."""
    requests = run.backend._opened()
    run.backend._loop.run(requests.sleep())
    run.backend._loop.run(requests.wake_weights())
    run.publish(seed=11)
    [completion] = run.generate([[5, 6]], [params(max_tokens=4)])
    assert completion.policy_versions[0].version == run.version
    assert run.difference([5, 6], completion) < 1e-4


def test_a_request_that_an_engine_refuses_names_engine_and_reason(run):
    with pytest.raises(EngineError, match=r"engine-1 failed.*status 400.*\b768\b"):
        run.generate([[5] * 900], [params()], engine="engine-1")
    with pytest.raises(EngineError, match="no engine engine-9; there are engine-0, engine-1"):
        run.generate([[5]], [params()], engine="engine-9")


def test_a_late_answer_is_a_deadline_error(run):
    requests = run.backend._requests
    context = requests._context
    requests._context = dataclasses.replace(context, generate_deadline=0.05)
    with pytest.raises(DeadlineError, match=r"engine-0 gave no answer.*within 0.05 s"):
        run.generate([[5, 6, 7]], [params(max_tokens=256)], engine="engine-0")
    requests._context = context


def _stale(weights, previous):
    """Nothing moves, but the engine is stamped."""
    return previous


def _unmoved(weights, previous):
    """One tensor keeps its old values."""
    name = "model.layers.1.mlp.down_proj.weight"
    return weights | {name: previous[name]}


def _swapped(weights, previous):
    """Two tensors of one shape change places."""
    gate, up = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
    return weights | {gate: weights[up], up: weights[gate]}


def _flipped(weights, previous):
    """One tensor has the wrong sign."""
    name = "model.layers.1.self_attn.o_proj.weight"
    return weights | {name: -weights[name]}


@pytest.mark.parametrize("fault", [_stale, _unmoved, _swapped, _flipped])
def test_the_probe_catches_a_push_that_moved_the_wrong_weights(run, fault):
    """Checksums guard the transport; what the trainer itself gets wrong shows only in the log-probs."""
    previous = run.models[run.version].state_dict()
    version = len(run.models)
    run.models[version] = run.make_model(100 + version)
    weights = fault(run.models[version].state_dict(), previous)
    assert _probe(run, version - 1) < 1e-4
    asyncio.run(run.backend.pause())
    run.sync.push(iter(weights.items()), version)
    asyncio.run(run.backend.resume())
    with pytest.raises(SyncError, match=r"engine-0 and the trainer differ"):
        _probe(run, version)
    run.publish(seed=100 + version)


def test_the_probe_catches_a_push_that_did_not_happen(run):
    run.models[len(run.models)] = run.models[run.version]
    with pytest.raises(SyncError, match=r"engine-0 answers with versions"):
        _probe(run, run.version)
    run.publish(seed=3)


def _probe(run, version):
    """The check of the loop, with transformers in the trainer's place."""

    def trainer_logprobs(samples):
        return [run.logprobs(version, s.sample.prompt_ids.tolist(), s.sample.response_ids.tolist()) for s in samples]

    prompt = Prompt(id="probe", messages=(), token_ids=(5, 6, 7), label="")
    probe = Probe(SyncConfig(), dtype="float32", prompt=prompt, temperature=1.0, seed=0, logprobs=trainer_logprobs)
    return asyncio.run(probe.check(run.backend, run.names, version))


def test_bytes_that_change_on_the_way_are_found_before_they_are_loaded(run, monkeypatch):
    """Two tensors of one shape change places in the segment after their checksums were taken."""
    update = WeightSessions.update
    swapped = []

    def swap(self, info):
        records = {record["name"]: record for record in info["tensors"]}
        pair = [records.get(f"model.layers.{layer}.self_attn.q_proj.weight") for layer in (0, 1)]
        if all(pair) and not swapped:
            swapped.extend(record["name"] for record in pair)
            _swap(FOLDER / info["segment"], *pair)
        return update(self, info)

    monkeypatch.setattr(WeightSessions, "update", swap)
    asyncio.run(run.backend.pause())
    with pytest.raises(SyncError, match=r"engine-\d failed.*q_proj.weight: checksum"):
        run.push(seed=4)
    assert len(swapped) == 2
    assert not list(FOLDER.glob(f"vime-{run.context.run_id}-weights-*"))


def _swap(path, one, other):
    with path.open("r+b") as file:
        parts = []
        for record in (one, other):
            file.seek(record["offset"])
            parts.append(file.read(record["size"]))
        for record, part in zip((other, one), parts, strict=True):
            file.seek(record["offset"])
            file.write(part)


def test_a_push_that_leaves_a_tensor_out_fails(run):
    weights = [(name, tensor) for name, tensor in run.make_model(5).state_dict().items() if "1.mlp.up_proj" not in name]
    with pytest.raises(SyncError, match=r"engine-\d failed.*left out weights of model.layers.1.mlp.gate_up_proj"):
        run.sync.push(iter(weights), 99)


def test_a_killed_engine_is_named_at_once_and_nothing_is_left(run):
    endpoint = run.backend.endpoints()[1]
    port = int(endpoint.url.rsplit(":", 1)[1])
    mine = _processes(run)
    [server] = [p for p in mine if p.cmdline()[1:3] == ["-m", "vime_vllm.server"] and str(port) in p.cmdline()]

    async def kill_meanwhile():
        requests = [asyncio.ensure_future(run.backend.generate([5, 6, 7], params(seed=i))) for i in range(8)]
        await asyncio.sleep(0)
        os.kill(server.pid, signal.SIGKILL)
        begin = time.monotonic()
        errors = await asyncio.gather(*requests, return_exceptions=True)
        return errors, time.monotonic() - begin

    errors, seconds = asyncio.run(kill_meanwhile())
    assert seconds < run.context.generate_deadline / 2
    for error in errors:
        assert isinstance(error, EngineError)
        assert re.search(r"engine-1 was killed by SIGKILL \(log: .*engine-1\.log", str(error))
    with pytest.raises(EngineError, match="engine-1 was killed by SIGKILL"):
        run.backend.health()

    run.sync.close()
    run.backend.close()
    run.backend.close()
    with pytest.raises(EngineError, match="does not run"):
        run.generate([[5]], [params()])
    _, alive = psutil.wait_procs(mine, timeout=20)
    assert not alive
    assert not list(FOLDER.glob(f"vime-{run.context.run_id}-*"))
    assert not list(Path("/tmp").glob(f"vime-{run.context.run_id}-engine*"))
