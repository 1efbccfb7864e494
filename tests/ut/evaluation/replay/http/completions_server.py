# SPDX-License-Identifier: Apache-2.0
"""A completions server on a real socket, with an exact prefix cache in place of a model."""

import asyncio
import json
import ssl
import threading
import time
from dataclasses import dataclass, field

from aiohttp import web

# A line separator and a "next line", as a model of random weights says them.
TEXT = "a\u2028b\x85"


@dataclass
class CompletionsServer:
    """Serves in a thread while it is entered.

    Attributes:
        block: The cache's granule in tokens.
        delay_s: Time to the first token.
        takes_over: If prompts come from another instance: how many of their tokens do not.
        tells_details: Whether usage has ``prompt_tokens_details``.
        fails_from: Number of the request from which on all get status 500.
        breaks_from: Number of the request from which on all get an error inside the stream.
        on_request: Called with the number of each request.
        api_key: What requests must bring, as a bearer token or as it is.
        max_model_len: What the server says that requests may have.
        vocab_size: Prompts with other ids are refused, as vLLM does it.
        certificate: Files of a certificate and its key; then it speaks TLS.
        moved: Whether requests are sent on to another path, which serves them.
    """

    block: int = 8
    delay_s: float = 0.0
    takes_over: int | None = None
    tells_details: bool = True
    fails_from: int | None = None
    breaks_from: int | None = None
    on_request: object = None
    api_key: str | None = None
    max_model_len: int | None = None
    vocab_size: int | None = None
    certificate: tuple[str, str] | None = None
    moved: bool = False
    bodies: list = field(default_factory=list)
    times: list = field(default_factory=list)
    most_in_flight: int = 0

    def __enter__(self):
        self._cache = set()
        self._in_flight = 0
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(300)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(300)

    def _serve(self, ready):
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=1 << 26, middlewares=[self._let_in])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        self._add_routes(app)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        tls = None
        if self.certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(*self.certificate)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        self._loop.run_until_complete(site.start())
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def _add_routes(self, app):
        """Add what a kind of server has besides."""

    @web.middleware
    async def _let_in(self, request, handler):
        brought = request.headers.get("Authorization")
        if self.api_key is not None and brought not in (f"Bearer {self.api_key}", self.api_key):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if self.moved and "there" not in request.query:
            raise web.HTTPTemporaryRedirect(f"{request.path}?there")
        return await handler(request)

    async def _models(self, request):
        length = {} if self.max_model_len is None else {"max_model_len": self.max_model_len}
        models = [{"id": name, **length} for name in ("tiny", "other")]
        return web.json_response({"object": "list", "data": models})

    async def _completions(self, request):
        self.times.append(time.perf_counter())
        body = await request.json()
        number = len(self.bodies)
        self.bodies.append(body)
        if self.on_request is not None:
            self.on_request(number)
        if self.fails_from is not None and number >= self.fails_from:
            return web.Response(status=500, text="out of blocks " + "x" * 300)
        if self.vocab_size is not None and max(body["prompt"]) >= self.vocab_size:
            message = f"Token id {max(body['prompt'])} is out of vocabulary"
            return web.json_response({"error": {"message": message}}, status=400)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            return await self._stream(request, body, number)
        finally:
            self._in_flight -= 1

    async def _stream(self, request, body, number):
        cached = self._look_up(body["prompt"])
        if self.takes_over is not None:
            cached = len(body["prompt"]) - self.takes_over
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": a comment\n\n")
        await asyncio.sleep(self.delay_s)
        if self.breaks_from is not None and number >= self.breaks_from:
            await _send(response, {"error": {"message": "the engine died", "code": 500}})
            return response
        for _ in range(body["max_tokens"]):
            await _send(response, {"choices": [{"index": 0, "text": TEXT}], "usage": None})
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        if self.tells_details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        await _send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _look_up(self, prompt):
        """Return the tokens in the cache, at most all but the last; cache all whole blocks."""
        ends = range(self.block, len(prompt) + 1, self.block)
        prefixes = [tuple(prompt[:end]) for end in ends]
        cached = 0
        for prefix in prefixes:
            if prefix not in self._cache or len(prefix) == len(prompt):
                break
            cached = len(prefix)
        self._cache.update(prefixes)
        return cached


async def _send(response, event):
    await response.write(f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())
