"""Requests as the SDKs really send them, caught by a server of our own: ``tests/apis/golden/<sdk>.json``.

Run it where the SDKs are installed (they are no dependencies of this project, apart from openai's)::

    python -m venv golden && golden/bin/pip install openai anthropic langchain-openai langchain-anthropic
    golden/bin/python tools/record_golden_requests.py

Each file holds the SDK's version and its requests: name, expected API (null for what passes through), method,
path, headers without credentials, and the body, as text where it is text, else as base64. Every request is
answered with an error, so that nothing but the request is of interest. SDKs that are not installed are
skipped, their files left alone.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib
import importlib.metadata
import io
import json
import re
import struct
import threading
import zlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOLDEN = Path(__file__).parent.parent / "tests" / "apis" / "golden"
#: Credentials, what differs from run to run, and what tells of the machine that recorded.
DROPPED = re.compile(
    r"authorization|x-api-key|host|content-length|idempotency-key|x-stainless-(os|arch|runtime.*)"
)
MODEL = "llama"
FUNCTION = {
    "name": "weather",
    "description": "Weather of a place",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
}
TOOL = {"type": "function", "function": FUNCTION}
ANTHROPIC_TOOL = {
    "name": "weather",
    "description": "Weather of a place",
    "input_schema": FUNCTION["parameters"],
}


def _png(width: int, height: int) -> str:
    """A white PNG in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + b"\xff" * width) * height)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


PNG = _png(640, 480)
PNG_URL = f"data:image/png;base64,{PNG}"


@dataclass
class Capture:
    """A server that keeps the last request and answers every one with an error."""

    url: str = ""
    caught: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def serve(self) -> Iterator[Capture]:
        """Listen on a free port of loopback."""
        capture = self

        class Handler(BaseHTTPRequestHandler):
            def _catch(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                capture.caught = _request(self.command, self.path, dict(self.headers.items()), body)
                answer = b'{"error": {"message": "caught", "type": "invalid_request_error"}}'
                self.send_response(400)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_DELETE = _catch  # noqa: N815 - the base class wants these names

            def log_message(self, *args: object) -> None:
                """Nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _request(method: str, path: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    kept = {name.lower(): value for name, value in headers.items() if not DROPPED.fullmatch(name.lower())}
    kind = kept.get("content-type", "")
    if boundary := re.search(r"boundary=(\S+)", kind):  # random: equal recordings should be equal
        kept["content-type"] = kind.replace(boundary[1], "boundary")
        body = body.replace(boundary[1].encode(), b"boundary")
    try:
        content = {"body": body.decode()}
    except UnicodeDecodeError:
        content = {"body_base64": base64.b64encode(body).decode()}
    return {"method": method, "path": path, "headers": dict(sorted(kept.items())), **content}


Case = tuple[str, str | None, "Callable[[], Any]"]


def openai_cases(url: str) -> list[Case]:
    """OpenAI's own SDK."""
    client = importlib.import_module("openai").OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0)
    return [*_chat_cases(client), *_responses_cases(client), *_other_openai_cases(client)]


def _chat_cases(client: Any) -> list[Case]:
    chat = client.chat.completions.create
    hello = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "안녕 👋"}]
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"at":"Seoul"}'},
    }
    tooled = [
        *hello,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": PNG_URL, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.jpg"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
    ]
    return [
        ("chat", "openai-chat", lambda: chat(model=MODEL, messages=hello, max_completion_tokens=9)),
        (
            "chat stream",
            "openai-chat",
            lambda: chat(model=MODEL, messages=hello, stream=True, stream_options={"include_usage": True}),
        ),
        ("chat tools", "openai-chat", lambda: chat(model=MODEL, messages=tooled, tools=[TOOL], user="u")),
        (
            "chat parts",
            "openai-chat",
            lambda: chat(model=MODEL, messages=[{"role": "user", "content": parts}]),
        ),
    ]


def _responses_cases(client: Any) -> list[Case]:
    create = client.responses.create
    flat_tool = {"type": "function", "strict": True, **FUNCTION}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather in Seoul?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Ask the tool."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        {"role": "user", "content": [{"type": "input_image", "image_url": PNG_URL, "detail": "auto"}]},
    ]
    stored = {"previous_response_id": "resp_1", "prompt_cache_key": "key", "safety_identifier": "person"}
    return [
        (
            "response",
            "openai-responses",
            lambda: create(model=MODEL, input="hi", instructions="Be brief."),
        ),
        (
            "response items",
            "openai-responses",
            lambda: create(model=MODEL, input=items, tools=[flat_tool], max_output_tokens=5, stream=True),
        ),
        ("response stored", "openai-responses", lambda: create(model=MODEL, input="and?", **stored)),
        ("stored response", None, lambda: client.responses.retrieve("resp_1")),
    ]


def _other_openai_cases(client: Any) -> list[Case]:
    sound = ("a.wav", io.BytesIO(b"RIFF\x24\x00\x00\x00WAVE\xff\xfe"), "audio/wav")
    complete, embed, audio = client.completions.create, client.embeddings.create, client.audio
    return [
        ("completion", "openai-completions", lambda: complete(model=MODEL, prompt="Once")),
        (
            "completion ids",
            "openai-completions",
            lambda: complete(model=MODEL, prompt=[1, 2, 3], max_tokens=2),
        ),
        ("embedding", "openai-embeddings", lambda: embed(model=MODEL, input="hi")),
        ("embeddings", "openai-embeddings", lambda: embed(model=MODEL, input=[[1, 2], [3]])),
        ("transcription", None, lambda: audio.transcriptions.create(model="whisper", file=sound)),
        ("translation", None, lambda: audio.translations.create(model="whisper", file=sound)),
        ("speech", None, lambda: audio.speech.create(model="tts", voice="alloy", input="hi")),
        ("models", None, client.models.list),
    ]


def anthropic_cases(url: str) -> list[Case]:
    """Anthropic's own SDK."""
    client = importlib.import_module("anthropic").Anthropic(api_key="k", base_url=url, max_retries=0)
    create, count = client.messages.create, client.messages.count_tokens
    hello = [{"role": "user", "content": "안녕 👋"}]
    mark = {"type": "ephemeral"}
    system = [{"type": "text", "text": "Be brief.", "cache_control": mark}]
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    document = {"type": "text", "media_type": "text/plain", "data": "A long text."}
    thought = {"type": "thinking", "thinking": "Ask the tool.", "signature": "c2ln"}
    used = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"at": "Seoul"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]}
    tooled = [
        {"role": "user", "content": "Weather in Seoul?"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Let me see."}, used]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?", "cache_control": mark}]},
    ]
    parts = [
        {"type": "image", "source": source},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.jpg"}},
        {"type": "document", "source": document, "title": "T"},
        {"type": "text", "text": "What is this?"},
    ]
    base: dict[str, Any] = {"model": MODEL, "max_tokens": 64}
    name = "anthropic-messages"

    def stream() -> None:
        with client.messages.stream(**base, messages=hello, system="Be brief.") as opened:
            list(opened)

    person = {"user_id": "user_1_account_2_session_3"}
    return [
        ("messages", name, lambda: create(**base, messages=hello, system="Be brief.", metadata=person)),
        ("messages stream", name, stream),
        (
            "messages tools",
            name,
            lambda: create(
                **base, messages=tooled, system=system, tools=[{**ANTHROPIC_TOOL, "cache_control": mark}],
                thinking={"type": "enabled", "budget_tokens": 1024}, stream=True,
            ),
        ),
        ("messages parts", name, lambda: create(**base, messages=[{"role": "user", "content": parts}])),
        (
            "count",
            "anthropic-count-tokens",
            lambda: count(model=MODEL, messages=tooled, system=system, tools=[ANTHROPIC_TOOL]),
        ),
        ("models", None, client.models.list),
    ]  # fmt: skip


def _conversation() -> list[Any]:
    messages = importlib.import_module("langchain_core.messages")
    called = [{"name": "weather", "args": {"at": "Seoul"}, "id": "call_1"}]
    return [
        messages.SystemMessage("Be brief."),
        messages.HumanMessage("Weather in Seoul?"),
        messages.AIMessage("", tool_calls=called),
        messages.ToolMessage("rain", tool_call_id="call_1"),
        messages.HumanMessage(
            [
                {"type": "text", "text": "And this?"},
                {"type": "image", "base64": PNG, "mime_type": "image/png"},
            ]
        ),
    ]


def langchain_openai_cases(url: str) -> list[Case]:
    """LangChain's client for OpenAI's APIs."""
    library = importlib.import_module("langchain_openai")
    base: dict[str, Any] = {"api_key": "k", "base_url": f"{url}/v1", "max_retries": 0, "model": MODEL}
    chat = library.ChatOpenAI(**base, max_tokens=16)
    responses = library.ChatOpenAI(**base, use_responses_api=True)
    # its own tokenizer would be fetched from the network
    embeddings = library.OpenAIEmbeddings(**base, check_embedding_ctx_length=False)
    talk = _conversation()
    return [
        ("chat", "openai-chat", lambda: chat.bind_tools([TOOL]).invoke(talk)),
        ("chat stream", "openai-chat", lambda: list(chat.stream(talk[:2]))),
        ("response", "openai-responses", lambda: responses.bind_tools([TOOL]).invoke(talk)),
        ("embeddings", "openai-embeddings", lambda: embeddings.embed_documents(["a", "b"])),
    ]


def langchain_anthropic_cases(url: str) -> list[Case]:
    """LangChain's client for Anthropic's API."""
    library = importlib.import_module("langchain_anthropic")
    chat = library.ChatAnthropic(api_key="k", base_url=url, max_retries=0, model=MODEL, max_tokens=16)
    talk = _conversation()
    name, count = "anthropic-messages", "anthropic-count-tokens"
    return [
        ("messages", name, lambda: chat.bind_tools([TOOL]).invoke(talk)),
        ("messages stream", name, lambda: list(chat.stream(talk[:2]))),
        ("count", count, lambda: chat.get_num_tokens_from_messages(talk[:2])),
    ]


SDKS: dict[str, Callable[[str], list[Case]]] = {
    "openai": openai_cases,
    "anthropic": anthropic_cases,
    "langchain-openai": langchain_openai_cases,
    "langchain-anthropic": langchain_anthropic_cases,
}


def record(sdk: str) -> dict[str, Any] | None:
    """All requests of one SDK, None when it is not installed.

    Raises:
        RuntimeError: a call sent nothing.
    """
    try:
        version = importlib.metadata.version(sdk)
    except importlib.metadata.PackageNotFoundError:
        return None
    requests = []
    with Capture().serve() as capture:
        for name, api, send in SDKS[sdk](capture.url):
            capture.caught, problem = {}, "no exception"
            try:
                send()
            except Exception as error:  # noqa: BLE001 - each SDK has its own for the answer, which is an error
                problem = repr(error)
            if not capture.caught:
                raise RuntimeError(f"{sdk}: {name} sent nothing: {problem}")
            requests.append({"name": name, "api": api, **capture.caught})
    return {"sdk": sdk, "version": version, "requests": requests}


def main() -> None:
    """Write the files of all SDKs that are installed."""
    argparse.ArgumentParser(description="Record requests as SDKs send them.").parse_args()
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for sdk in SDKS:
        recorded = record(sdk)
        if recorded is None:
            print(f"{sdk}: not installed")
            continue
        path = GOLDEN / f"{sdk}.json"
        path.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {recorded['version']}, {len(recorded['requests'])} requests")


if __name__ == "__main__":
    main()
