"""The shell commands of the documentation pages, with reasons for the commands that no test runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.stack import ROOT

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "tests/README.md", "skills/**/*.md")
    for path in ROOT.glob(pattern)
)

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_COMMENT = re.compile(r"(?:^|\s+)# .*$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    body: str

    def commands(self) -> Iterator[str]:
        """Yield the commands without comments and indentation; lines joined by a backslash are one."""
        for line in self.body.replace("\\\n", " ").splitlines():
            if command := " ".join(_COMMENT.sub("", line).split()):
                yield command


def blocks_of(page: str) -> list[Block]:
    return [
        Block(found["language"], found["body"])
        for found in _FENCE.finditer((ROOT / page).read_text(encoding="utf-8"))
    ]


def commands_of(page: str) -> list[str]:
    """The commands of a page's shell blocks, in order."""
    return [command for block in blocks_of(page) if block.language == "sh" for command in block.commands()]


INSTALLS = "installs from an index; make and .ci/run do the same, tests/release installs what is built here"
CONTAINERS = "wants containers: tests/integration has the same stacks and images"
CLUSTER = "wants a cluster: tests/docs/test_manifests.py reads the manifests"
STARTED = "the engine and the server of these tests are what it starts"
EVERYTHING = "runs all tests, this one among them"
RELEASE = "writes to the repository or its remote, wants an index, or runs everything"
LONG = "loads a machine for minutes; .ci/run has a short load test"
POSTGRES = "wants PostgreSQL and its tools; tests/unit/cli/test_migrate.py has kb migrate between both stores"
VERIFIED = "takes minutes: tests/contract/test_suite.py, and test_verify_command.py for the report"
QUICK = "tests/contract/test_verify_command.py runs it"
INTERNET = "wants the internet: tests/unit/cli/test_web.py"
QDRANT = "wants a server of Qdrant"
WHEEL = "tests/protocol/test_hosting_wheel.py builds it, and hosts with it"
CLIENT = "wants the client itself: tests/protocol/test_real_clients.py"

NOT_RUN: dict[str, dict[str, str]] = {
    "CONTRIBUTING.md": dict.fromkeys(
        ["make run", "make test", "make test-all", ".ci/run", ".ci/run --all"], EVERYTHING
    ),
    "README.md": {
        "make run": STARTED,
        "make test": EVERYTHING,
        ".venv/bin/kb verify http://127.0.0.1:8900 --quick": QUICK,
    },
    "docs/access.md": {
        "claude mcp add --transport http kb https://kb.example.org/mcp "
        '--header "Authorization: Bearer TOKEN"': CLIENT,
        **dict.fromkeys(
            ["kb get --api-key TOKEN", 'kb addnote "a test" --api-key TOKEN'],
            "wants a printed token: tests/contract/test_access.py shows the limits of a key",
        ),
    },
    "docs/backup.md": {
        'pg_dump --format=custom --file=kb.dump "$KB_STORE"': POSTGRES,
        'pg_restore --dbname="$KB_STORE" kb.dump': POSTGRES,
        "kb migrate sqlite:$HOME/.local/share/kb/engine/kb.sqlite postgresql://kb@db.example/kb": POSTGRES,
        "kb migrate postgresql://kb@db.example/kb sqlite:/srv/kb.sqlite": POSTGRES,
        **dict.fromkeys(
            [
                "kb up --home ~/kb-aside --port 3100 --engine-port 8100",
                "KB_HOME=~/kb-aside kb get 9 --original lease.pdf",
                "kb add lease.pdf --collection contracts",
            ],
            "wants a second kb, with a document 9: tests/unit/cli/test_backup.py restores copies",
        ),
    },
    "docs/clients.md": {
        **dict.fromkeys(
            ["claude plugin marketplace add OWNER/REPO", "claude plugin install kb@kb-for-agents"],
            "wants an index: tests/release has plugin and marketplace validated",
        ),
        "npx @modelcontextprotocol/inspector --cli http://127.0.0.1:3000/mcp --transport http "
        '--method tools/call --tool-name kb_search --tool-arg query="honey bees"': (
            "wants npm: tests/docs/test_example_agent.py has a client"
        ),
    },
    "docs/cluster.md": {"docker compose -f deploy/replicas/compose.yml up --scale server=2": CONTAINERS},
    "docs/containers.md": {
        **dict.fromkeys(
            [
                "docker compose up",
                "KB_FILES=~/reports docker compose up --detach",
                "docker compose exec server kb add /files --collection documents",
                "KB_POSTGRES_PASSWORD=secret KB_STORE=postgresql://kb:secret@postgres/kb "
                "docker compose --profile postgres up",
                "VECTOR_DB_TYPE=qdrant QDRANT_URL=http://qdrant:6333 docker compose --profile qdrant up",
                "docker compose -f compose.yml -f deploy/proxy/compose.yml --project-directory . up",
                "docker build --target server --build-arg PYTHON=python:3.13-slim-bookworm@sha256:... "
                "-t kb-server .",
                "KB_ENGINE_IMAGE=kb-engine:3.0.0 KB_SERVER_IMAGE=kb-server:3.0.0 "
                "docker compose up --no-build",
            ],
            CONTAINERS,
        ),
        "kubectl apply -k deploy/kubernetes/overlays/sqlite": CLUSTER,
    },
    "docs/embedders.md": dict.fromkeys(
        [
            "export KB_EMBEDDER=minilm-openvino",
            "export KB_EMBEDDER=fastembed",
            "export KB_EMBEDDING_MODEL=intfloat/multilingual-e5-small",
            "export KB_EMBEDDER=onnx",
            "export KB_EMBEDDING_FOLDER=~/models/multilingual-e5-small",
            "export KB_EMBEDDING_DOCUMENT_PREFIX='passage: '",
            "export KB_EMBEDDING_QUERY_PREFIX='query: '",
            "export KB_EMBEDDER=openai",
            "export KB_EMBEDDING_URL=http://127.0.0.1:11434/v1",
            "export KB_EMBEDDING_MODEL=nomic-embed-text",
            "kb up",
        ],
        "wants models and endpoints: tests/unit/engine/embed has each of these embedders",
    ),
    "docs/first-hour.md": {"make run": STARTED},
    "docs/ranking.md": dict.fromkeys(
        ["export KB_RERANK_API=local", "export KB_RERANK_MODEL=Xenova/ms-marco-MiniLM-L-6-v2"],
        "wants a model: tests/unit/engine/rerank has one made for it",
    ),
    "docs/folders.md": {
        "systemctl --user enable --now kb-watch": "wants systemd",
        **dict.fromkeys(
            [
                "kb sync git+https://git.example.org/handbook.git --ref main --collection handbook",
                "kb sync . --ref main --collection code",
                "kb sync https://example.org/sitemap.xml --collection web",
                "kb watch https://example.org/feed.xml --every 60 --collection web",
                "kb sync s3://bucket/docs --credentials s3.json --collection docs",
                "kb sync webdavs://cloud.example.org/dav/docs --credentials dav.json --collection docs",
            ],
            "wants the internet: tests/unit/cli/test_sync_sources.py",
        ),
        "kb add https://example.org/guide.html --collection web": INTERNET,
    },
    "docs/import.md": dict.fromkeys(
        ["kb import bookmarks.html --collection web --dry-run", "kb import bookmarks.html --collection web"],
        "wants the internet: tests/unit/cli/test_bookmarks.py",
    ),
    "docs/hosting.md": {"python -m build server/mcp_aiohttp": WHEEL},
    "docs/installing.md": {
        **dict.fromkeys(
            [
                "uvx --from '.[server,engine]' kb up",
                "pipx run --spec '.[server,engine]' kb up",
                "python3 -m venv .venv",
                ".venv/bin/python -m pip install '.[server,engine]'",
                "python3 -m venv --without-pip /tmp/kb-size",
                "python3 deploy/image/requirements.py server engine >/tmp/kb-size.txt",
                ".venv/bin/python -m pip --python /tmp/kb-size/bin/python "
                "install --requirement /tmp/kb-size.txt",
                ".venv/bin/python -m pip --python /tmp/kb-size/bin/python install --no-deps .",
                "du -s -B1000000 --apparent-size /tmp/kb-size/lib",
            ],
            INSTALLS,
        ),
        ".venv/bin/kb up": STARTED,
    },
    "docs/limits.md": {
        "QDRANT_URL=http://… python -m pytest tests/unit/engine/index tests/contract/test_suite.py "
        'tests/parity tests/faults/test_engine_kill.py -k "real or qdrant or Qdrant"': QDRANT
    },
    "docs/load.md": dict.fromkeys(
        [
            "make load",
            "python -m kb_load.run --target engine --shape ramp --users 40",
            "python -m kb_load.run --shape spike --users 100 --processes 2",
            "python -m kb_load.run --shape soak --seconds 600 --users 50",
            "python -m kb_load.run --target http://127.0.0.1:3000 --seconds 60",
            "python -m kb_load.run --page",
            "locust -f load/kb_load/locustfile.py --host http://127.0.0.1:3000",
        ],
        LONG,
    ),
    "docs/operating.md": {
        "kb up --single": "tests/unit/cli/up has it",
        "KB_KEEP_ORIGINALS=true kb engine": "the data folder's engine runs; tests/faults starts one like it",
        "kb get 42 --original report.pdf": "wants an engine that keeps files; tests/unit/cli has it",
    },
    "docs/releasing.md": dict.fromkeys(
        [
            "make lock FLAGS=--upgrade",
            "make lock",
            ".ci/run --all",
            "make dist",
            "uvx --find-links dist --from 'kb-for-agents[server,engine]==3.1.0' kb up",
            "pipx run --pip-args=\"--find-links dist\" --spec 'kb-for-agents[server,engine]==3.1.0' kb up",
            'git tag --sign v3.1.0 --message "kb 3.1.0"',
            "git push origin v3.1.0",
        ],
        RELEASE,
    ),
    "docs/toolsets.md": {"claude mcp add kb -- kb stdio": CLIENT},
    "docs/tracing.md": dict.fromkeys(
        ["export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318", "kb engine & kb serve"],
        "wants a collector: tests/protocol/test_tracing.py has one",
    ),
    "docs/verification.md": {
        "kb verify http://127.0.0.1:8900 --quick": QUICK,
        "kb verify http://127.0.0.1:8900 --report out/verification": VERIFIED,
    },
}
"""By page: commands that no test runs as written, each with the reason."""
