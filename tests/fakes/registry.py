"""A registry of schemas in this process: what of Confluent's API the daemon uses, over HTTP, for Avro, and what may go wrong."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

Schema = dict[str, Any]
Answer = tuple[int, dict[str, Any]]


class FakeRegistry:
    """A registry with compatibility BACKWARD that a test may hurt."""

    def __init__(self, *, first_id: int = 1, user: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        """`user` is `name:password` of the only user who may do anything."""
        self._next_id = first_id
        self._user = user
        self._ids: dict[str, int] = {}
        self.subjects: dict[str, list[str]] = {}
        """The schemas of each subject, the oldest first."""
        self.compatibility = "BACKWARD"
        self.delay_seconds = 0.0
        """How long each answer takes."""
        self.failure: Answer | None = None
        """What is answered to everything, if anything."""
        self.page: tuple[int, bytes] | None = None
        """A page of something else, which is answered to everything, if anything."""
        self.given_id: Any = None
        """The id that it tells in the place of each schema's own, if any."""
        self.requests: list[str] = []
        """Method and path of all requests so far."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._serve()

    def _serve(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self._scheme}://127.0.0.1:{self._port}"

    def stop(self) -> None:
        """Be away."""
        self._server.shutdown()
        self._server.server_close()

    def start(self) -> None:
        """Be back at the same address, with all data."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler())
        self._server.daemon_threads = True
        self._serve()

    def forget(self, *, next_id: int) -> None:
        """Lose all data; the next schema gets this id."""
        self._ids.clear()
        self.subjects.clear()
        self._next_id = next_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def schema(self, number: int) -> str:
        """The schema with this id."""
        return next(text for text, known in self._ids.items() if known == number)

    def knows(self, number: int | None, text: str) -> bool:
        """Return whether this is the id of a schema."""
        return self._ids.get(text, 0) == number

    def register(self, subject: str, text: str) -> int:
        """Register a schema without being asked, as an operator would; return its id."""
        if text not in self._ids:
            self._ids[text] = self._next_id
            self._next_id += 1
        versions = self.subjects.setdefault(subject, [])
        if text not in versions:
            versions.append(text)
        return self._ids[text]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                pass

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else {}
                path = unquote(urlsplit(self.path).path)
                registry.requests.append(f"{self.command} {path}")
                time.sleep(registry.delay_seconds)
                status, content = registry.answer(self.command, path, body, self.headers.get("Authorization"))
                data = json.dumps(content).encode()
                if registry.page is not None:
                    status, data = registry.page
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    return  # who asked has not waited

        return Handler

    def answer(self, method: str, path: str, body: Schema, authorization: str | None) -> Answer:
        """Answer one request."""
        if self._user is not None and authorization != "Basic " + base64.b64encode(self._user.encode()).decode():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if self.failure is not None:
            return self.failure
        match method, *path.strip("/").split("/"):
            case "POST", "subjects", subject, "versions":
                return self._register(subject, body["schema"])
            case "POST", "subjects", subject:
                return self._look_up(subject, body["schema"])
            case "POST", "compatibility", "subjects", subject, "versions", "latest":
                if subject not in self.subjects:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                return 200, {"is_compatible": self._is_compatible(subject, body["schema"])}
            case "GET", "schemas", "ids", number:
                if int(number) not in self._ids.values():
                    return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
                text = self.schema(int(number))
                kind = "PROTOBUF" if text.startswith("syntax") else "JSON" if '"$schema"' in text else None
                return 200, {"schema": text} | ({} if kind is None else {"schemaType": kind})
            case "GET", "subjects":
                return 200, {}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _look_up(self, subject: str, text: str) -> Answer:
        versions = self.subjects.get(subject)
        if versions is None:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        if text not in versions:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, {"subject": subject, "id": self._told_id(text), "version": versions.index(text) + 1, "schema": text}

    def _register(self, subject: str, text: str) -> Answer:
        if subject in self.subjects and not self._is_compatible(subject, text):
            return 409, {"error_code": 409, "message": f"Schema being registered is incompatible: {subject}"}
        self.register(subject, text)
        return 200, {"id": self._told_id(text)}

    def _told_id(self, text: str) -> Any:
        return self._ids[text] if self.given_id is None else self.given_id

    def _is_compatible(self, subject: str, text: str) -> bool:
        """Whether who knows the new schema can read what was written with the subject's latest one."""
        latest = self.subjects[subject][-1]
        if self.compatibility == "NONE":
            return True
        if text.startswith("syntax"):  # Protobuf: what has other numbers is another field
            return latest.startswith("syntax")
        if latest.startswith("syntax"):
            return False
        reader, writer = json.loads(text), json.loads(latest)
        if "properties" in reader:  # JSON Schema: a closed object may get fields
            return not reader["additionalProperties"] and not writer["properties"].keys() - reader["properties"].keys()
        return _reads(reader, writer, {}, {})


def _reads(reader: Any, writer: Any, known: dict[str, Any], written: dict[str, Any]) -> bool:
    """Avro's rules, as far as the daemon's schemas need them."""
    reader, writer = _resolved(reader, known), _resolved(writer, written)
    if isinstance(writer, list):
        return all(_reads(reader, one, known, written) for one in writer)
    if isinstance(reader, list):
        return any(_reads(one, writer, known, written) for one in reader)
    kind, other = (one["type"] if isinstance(one, dict) else one for one in (reader, writer))
    if kind != "record" or other != "record":
        return kind == other or (other, kind) in {("int", "long"), ("int", "double"), ("string", "bytes"), ("bytes", "string")}
    if reader["name"] != writer["name"]:
        return False
    fields = {field["name"]: field for field in writer["fields"]}
    return all(
        _reads(field["type"], fields[field["name"]]["type"], known, written) if field["name"] in fields else "default" in field
        for field in reader["fields"]
    )


def _resolved(schema: Any, known: dict[str, Any]) -> Any:
    if isinstance(schema, str):
        return known.get(schema, schema)
    if isinstance(schema, dict) and schema.get("type") == "record":
        known[f"{schema.get('namespace', '')}.{schema['name']}".strip(".")] = schema
    return schema
