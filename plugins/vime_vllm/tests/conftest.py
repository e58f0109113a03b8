"""A tiny Qwen3, and two real engines with their router on it."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import re
import secrets
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import aiohttp
import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from yarl import URL

from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.config.schema import AcceleratorConfig
from vime_core.models.geometry import ModelGeometry
from vime_core.plugins.interfaces import RolloutContext
from vime_core.types import NodePlace
from vime_vllm.backend import VllmBackend
from vime_vllm.config import ShmConfig, VllmConfig
from vime_vllm.sync.shm import ShmSync

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

LAYOUT_PROGRAM = Path(__file__).with_name("layout_program.py")
VOCAB = 120
"""No multiple of 64, so that the engines pad it."""
GEOMETRY = ModelGeometry(
    family="qwen3",
    num_layers=2,
    hidden_size=64,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    ffn_size=160,
    vocab_size=VOCAB,
    max_positions=1024,
    norm_eps=1e-6,
    rope_theta=10000.0,
    rope_scaling=None,
    tied_embeddings=False,
    qk_norm=True,
    attention_bias=False,
    activation="silu",
    init_std=0.3,
    eos_token_ids=(2,),
    pad_token_id=0,
)


def tiny_model(seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=GEOMETRY.hidden_size,
        intermediate_size=GEOMETRY.ffn_size,
        num_hidden_layers=GEOMETRY.num_layers,
        num_attention_heads=GEOMETRY.num_heads,
        num_key_value_heads=GEOMETRY.num_kv_heads,
        head_dim=GEOMETRY.head_dim,
        max_position_embeddings=GEOMETRY.max_positions,
        initializer_range=GEOMETRY.init_std,
        tie_word_embeddings=False,
        rope_theta=GEOMETRY.rope_theta,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def layout_program() -> ModuleType:
    """`layout_program.py`, for its `World`."""
    spec = importlib.util.spec_from_file_location("vime_vllm_layout_program", LAYOUT_PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def make_model() -> Callable[[int], Qwen3ForCausalLM]:
    """The model with random weights from a seed."""
    return tiny_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-qwen3")
    tiny_model(0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_context(model_folder: Path) -> Callable[..., RolloutContext]:
    """A context with chosen parts; without `keeper` nothing can be started with it."""

    def make(log_folder: Path, *, keeper: str = "", **config: object) -> RolloutContext:
        settings = VllmConfig(
            **{
                "num_engines": 2,
                "max_prompt_tokens": 512,
                "max_response_tokens": 256,
                "max_num_seqs": 128,
                **config,
            }
        )
        accelerator = CpuAccelerator(AcceleratorConfig(name="cpu"))
        environment = accelerator.child_environment((), 1)
        return RolloutContext(
            config=settings,
            model_path=model_folder,
            geometry=GEOMETRY,
            accelerator=accelerator,
            sync="shm",
            dtype="float32",
            run_id=secrets.token_hex(4),
            run_key=secrets.token_hex(16),
            seed=7,
            threads=1,
            engine_options=[{"num_cpus": 0.5, "runtime_env": {"env_vars": environment}}] * settings.num_engines,
            engine_places=[NodePlace(address="127.0.0.1", keeper=keeper)] * settings.num_engines,
            keeper=keeper,
            log_folder=log_folder,
            start_deadline=240.0,
            generate_deadline=120.0,
            stop_deadline=20.0,
        )

    return make


class Run:
    """Backend, sync strategy and the policies that were pushed, by version."""

    def __init__(self, context, make_model):
        self.context = context
        self.make_model = make_model
        self.backend = VllmBackend(context)
        self.sync = ShmSync(ShmConfig(bucket_mib=1), rank=0, world_size=1)
        self.models = {}

    @property
    def version(self):
        return max(self.models)

    @property
    def names(self):
        return [endpoint.name for endpoint in self.backend.endpoints()]

    def push(self, seed):
        version = len(self.models)
        self.models[version] = self.make_model(seed)
        return self.sync.push(iter(self.models[version].state_dict().items()), version)

    def publish(self, seed):
        """As the loop does it."""
        asyncio.run(self.backend.pause())
        report = self.push(seed)
        asyncio.run(self.backend.resume())
        return report

    def generate(self, prompts, all_params, engine=None):
        async def together():
            return await asyncio.gather(
                *(self.backend.generate(p, s, engine=engine) for p, s in zip(prompts, all_params, strict=True))
            )

        return asyncio.run(together())

    def metric(self, name):
        """The counter `name` of each engine."""
        pattern = re.compile(rf"^vllm:{name}\S*{{[^}}]*}} (\S+)$", re.MULTILINE)
        return [
            sum(float(value) for value in pattern.findall(self.get(endpoint.url + "/metrics", self.context.run_key)[1]))
            for endpoint in self.backend.endpoints()
        ]

    def logprobs(self, version, prompt, token_ids):
        """[R] of the response's tokens, by transformers, at temperature 1."""
        ids = torch.tensor([[*prompt, *token_ids]])
        with torch.no_grad():
            logprobs = self.models[version](ids).logits.float().log_softmax(-1)[0]
        rows = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
        return logprobs[rows, ids[0, len(prompt) :]].numpy()

    def difference(self, prompt, completion):
        """Largest difference from transformers, each token under the policy that is said to have sampled it."""
        worst = 0.0
        for span in completion.policy_versions:
            expected = self.logprobs(span.version, prompt, completion.token_ids.tolist())
            part = slice(span.start, span.end)
            worst = max(worst, float(np.abs(expected[part] - completion.logprobs[part]).max()))
        return worst

    @staticmethod
    def get(url, key=None, method="GET"):
        """(status, text)"""
        request = urllib.request.Request(url, method=method, data=b"{}" if method == "POST" else None)
        request.add_header("content-type", "application/json")
        if key is not None:
            request.add_header("authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE")
BODY = {
    "model": "m",
    "prompt": "p",
    "messages": [{"role": "user", "content": "c"}],
    "input": "i",
    "query": "q",
    "documents": ["d"],
    "token_ids": [1],
    "sampling_params": {"max_tokens": 1},
    "url": "http://127.0.0.1:9",
    "method": "m",
}
"""Makes sense to every route that looks at the body before the key."""


@dataclass(frozen=True)
class Answer:
    """What somebody without the key gets."""

    method: str
    path: str
    way: str
    status: int
    body: bytes


class Stranger:
    """Somebody on this machine who does not have the key, or does not show it as one must."""

    def __init__(self, key: str, engine: str) -> None:
        basic = base64.b64encode(f"vime:{key}".encode()).decode()
        self.ways = {
            "no key": {},
            "another key": {"Authorization": f"Bearer {'0' * len(key)}"},
            "most of the key": {"Authorization": f"Bearer {key[:-1]}"},
            "more than the key": {"Authorization": f"Bearer {key}0"},
            "no scheme": {"Authorization": key},
            "another scheme": {"Authorization": f"Basic {basic}"},
            "another case": {"Authorization": f"Bearer {key.swapcase()}"},
            "another header": {"X-Api-Key": key, "Api-Key": key, "X-Authorization": f"Bearer {key}"},
            "a cookie": {"Cookie": f"Authorization=Bearer {key}; key={key}"},
            "the query": {},
        }
        self._query = f"key={key}&api_key={key}&token={key}"
        self._engine = engine

    def try_all(self, base, routes):
        """Each route in every wrong way with its own methods, and in two with all methods."""
        wanted = [
            (method, path, way)
            for path, own in routes.items()
            for method in METHODS
            for way in (self.ways if method in own else ("no key", "another key"))
        ]

        async def together():
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=32)) as session:
                return await asyncio.gather(*(self._ask(session, base, *request) for request in wanted))

        return asyncio.run(together())

    async def _ask(self, session, base, method, path, way):
        address = path.replace("/ENGINE", "/" + quote(self._engine, safe="")).replace("ENGINE", self._engine)
        if way == "the query":
            address += ("&" if "?" in address else "?") + self._query
        url = URL(base + address, encoded=True)
        body = BODY if method in ("POST", "PUT", "PATCH") else None
        async with session.request(method, url, headers=self.ways[way], json=body) as answer:
            return Answer(method, path, way, answer.status, await answer.read())

    @staticmethod
    def websocket_status(url):
        """The status that a websocket without a key is refused with."""

        async def connect():
            async with aiohttp.ClientSession() as session:
                with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                    await session.ws_connect(url)
                return refusal.value.status

        return asyncio.run(connect())


@pytest.fixture
def stranger(run):
    return Stranger(run.context.run_key, run.backend.endpoints()[0].url)


@pytest.fixture(scope="module")
def run(make_context, make_model, keeper, ray_runtime, tmp_path_factory):
    context = make_context(tmp_path_factory.mktemp("logs"), keeper=keeper.address)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIME_RUN_ID", context.run_id)
        patch.setenv("VIME_PUSH_DEADLINE_S", "60")
        run = Run(context, make_model)
        try:
            run.backend.start()
            run.sync.connect(run.backend.endpoints())
            run.publish(seed=0)
            yield run
        finally:
            run.sync.close()
            run.backend.close()
