# SPDX-License-Identifier: Apache-2.0
"""A server on a real socket: a model's name, counters, and scripted answers to questions."""

import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_LABELS = {"vllm:prompt_tokens_by_source_total": ',source="local_cache_hit"'}
_TYPES = {"vllm_ascend:prefix_hit_tokens_sum": "untyped"}
REFUSED = (401, {"error": "Unauthorized"})  # as vLLM answers


@dataclass
class ChatServer:
    """Serves in threads while it is entered.

    Attributes:
        answer: Number of the request, from 0 -> the model's text.
        fails_from: Number of the request from which on all get status 500.
        prompt_tokens: Of each completion.
        hit_tokens: Of each completion.
        look_ups: How often each completion is looked up in the cache before it starts.
        hits_of_load: Number of the load, from 0 -> hits of each of its completions, in place of
            ``hit_tokens``.
        requests_of_load: Completions of a load.
        max_model_len: As ``/v1/models`` says.
        counts: Whose counters ``/metrics`` has that count each request once: ``ours`` beside
            ``vllm``'s, those alone, or ``none``.
        accepted: Of ten drafts at each position, how many the target accepts in every answer; none:
            nothing is drafted.
        says_cached: Whether answers tell their cached tokens.
        started: Start of the process as ``/metrics`` says; ``None`` if it does not.
        root: What the model was loaded from.
        version: Of vLLM.
        api_key: What requests below ``/v1`` must show; ``None`` if nothing.
        certificate: File with a key and a certificate, to speak TLS with; ``None`` for plain HTTP.
        on_post: Called with each request that asks for tokens.
        bodies: Of all requests, with their paths.
    """

    answer: Callable[[int], str | None] = lambda _: "ANSWER: A"
    fails_from: int | None = None
    prompt_tokens: int = 1000
    hit_tokens: int = 750
    look_ups: int = 1
    hits_of_load: Callable[[int], int] | None = None
    requests_of_load: int = 0
    max_model_len: int = 100_000
    counts: str = "ours"
    accepted: tuple[int, ...] = ()
    says_cached: bool = True
    started: float | None = 1_700_000_000.25
    root: str = "/models/tiny"
    version: str = "0.20.2"
    api_key: str | None = None
    certificate: Path | None = None
    on_post: Callable[[], object] = lambda: None
    bodies: list = field(default_factory=list)

    def __enter__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self._reply(*(outer.get(self.path) if self._is_let_in() else REFUSED))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._reply(*(outer.post(self.path, body) if self._is_let_in() else REFUSED))

            def _is_let_in(self):
                given = self.headers.get("Authorization")
                is_asked = outer.api_key is not None and self.path.startswith("/v1")
                return not is_asked or given == f"Bearer {outer.api_key}"

            def log_message(self, *_):
                pass

            def _reply(self, status, content):
                text = content if isinstance(content, str) else json.dumps(content)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

        self._lock = threading.Lock()
        self._completions = self._hits = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if self.certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def questions(self):
        """Bodies of the chat completions."""
        return [body for path, body in self.bodies if path == "/v1/chat/completions"]

    def get(self, path):
        """Answer a GET."""
        model = {"id": "tiny", "root": self.root, "max_model_len": self.max_model_len}
        pages = {
            "/v1/models": {"data": [model]},
            "/version": {"version": self.version},
            "/metrics": self._metrics(),
        }
        return (200, pages[path]) if path in pages else (404, "no such page")

    def post(self, path, body):
        """Answer a POST."""
        self.on_post()
        with self._lock:
            number = len(self.bodies)
            self.bodies.append((path, body))
            fails = self.fails_from is not None and number >= self.fails_from
            if not fails and path == "/v1/completions":
                self._count_completion()
        if fails:
            return 500, "the engine died"
        if path == "/v1/completions":
            return 200, self._stream(body) if body.get("stream") else {"choices": [{"text": "x"}]}
        choice = {"message": {"content": self.answer(number)}, "finish_reason": "stop"}
        return 200, {"choices": [choice]}

    def _stream(self, body):
        """Answer with a token, and the usage behind it."""
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        if self.says_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": self.hit_tokens}
        events = ({"choices": [{"text": "x"}]}, {"choices": [], "usage": usage}, "[DONE]")
        texts = (event if isinstance(event, str) else json.dumps(event) for event in events)
        return "".join(f"data: {text}\n\n" for text in texts)

    def _count_completion(self):
        if self.hits_of_load is not None and self._completions % self.requests_of_load == 0:
            self.hit_tokens = self.hits_of_load(self._completions // self.requests_of_load)
        self._completions += 1
        self._hits += self.hit_tokens

    def _drafts(self):
        if not self.accepted:
            return []
        counts = {
            "drafts": 10,
            "draft_tokens": 10 * len(self.accepted),
            "accepted_tokens": sum(self.accepted),
        }
        counted = {(name, ""): count for name, count in counts.items()}
        for position, count in enumerate(self.accepted):
            counted["accepted_tokens_per_pos", f',position="{position}"'] = count
        return [
            f"# TYPE vllm:spec_decode_num_{name}_total counter\n"
            f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="tiny"{label}}} '
            f"{count * self._completions:.1f}\n"
            for (name, label), count in counted.items()
        ]

    def _metrics(self):
        counts = {
            "vllm:request_success_total": self._completions,
            "vllm_ascend:partial_hits_total": 2 * self._completions,
        }
        prompts = self.prompt_tokens * self._completions
        # Every server of vLLM's has these, and they are not judged.
        counts["vllm:prefix_cache_queries_total"] = self.look_ups * prompts
        counts["vllm:prefix_cache_hits_total"] = self.look_ups * self._hits
        if self.counts != "none":
            counts["vllm:prompt_tokens_total"] = prompts
            counts["vllm:prompt_tokens_by_source_total"] = self._hits
        if self.counts == "ours":
            counts["vllm_ascend:prefix_hit_tokens_sum"] = self._hits
        lines = [
            f"# TYPE {name} {_TYPES.get(name, 'counter')}\n"
            f'{name}{{engine="0",model_name="tiny"{_LABELS.get(name, "")}}} {count:.1f}\n'
            for name, count in counts.items()
        ]
        lines += self._drafts()
        if self.started is not None:
            name = "process_start_time_seconds"
            lines.append(f"# TYPE {name} gauge\n{name} {self.started!r}\n")
        return "".join(lines)
