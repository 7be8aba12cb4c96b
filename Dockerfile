# The images of kb: server, engine, simulator, and the runner of tests that need the whole stack.
#
#   docker build --target server -t kb-server .
#
# Each is Python, its dependencies in /opt/kb, and kb. It runs as user 10001, writes to /data and /tmp alone
# (so `--read-only --tmpfs /tmp` is fine) and ends in order on SIGTERM. Every package has the version and the hash that
# requirements.lock has; the base image has a digest where `--build-arg PYTHON=python:3.13-slim-bookworm@sha256:...`
# gives one.
ARG PYTHON=python:3.13-slim-bookworm

# --- builder stages: nothing of them but /opt/kb and /app reaches an image ------------------------

FROM ${PYTHON} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv --without-pip /opt/kb
COPY pyproject.toml requirements.lock deploy/image/requirements.py ./
RUN python requirements.py --pip >pip.txt && python -m pip install --require-hashes -r pip.txt

FROM builder AS server-dependencies
RUN python requirements.py server otel >server.txt \
 && python -m pip --python /opt/kb/bin/python install --only-binary=:all: -r server.txt

FROM builder AS engine-slim-dependencies
RUN python requirements.py engine otel >engine.txt \
 && python -m pip --python /opt/kb/bin/python install --only-binary=:all: -r engine.txt

FROM engine-slim-dependencies AS engine-dependencies
RUN python requirements.py engine otel ocr postgres qdrant >engine.txt \
 && python -m pip --python /opt/kb/bin/python install --only-binary=:all: -r engine.txt

FROM builder AS simulator-dependencies
RUN python requirements.py sim >sim.txt \
 && python -m pip --python /opt/kb/bin/python install --only-binary=:all: -r sim.txt

FROM builder AS runner-dependencies
RUN python requirements.py server verify >runner.txt \
 && python -m pip --python /opt/kb/bin/python install --only-binary=:all: -r runner.txt

# Installed beside the environment and copied over it, in a layer of its own. Compiled here: where the root
# file system is read-only, no start could keep what it compiles.
FROM builder AS wheel
RUN python -m pip install --require-hashes --constraint requirements.lock hatchling
COPY LICENSE README.md ./
COPY contracts contracts
COPY server server
COPY engine engine
COPY simulator simulator
COPY cli cli
COPY skills skills
COPY load/kb_load load/kb_load
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && python -m pip --python /opt/kb/bin/python install --no-deps --no-compile --prefix /app /wheels/*.whl \
 && python -m compileall -q -s /app -p /opt/kb /app

# --- images ---------------------------------------------------------------------------------------

FROM ${PYTHON} AS runtime
# pip has nothing to do in an image that is never changed.
RUN python -m pip uninstall --quiet --yes --root-user-action=ignore pip \
 && groupadd --gid 10001 kb \
 && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin kb \
 && install --directory --owner=kb --group=kb --mode=0700 /data
COPY deploy/image/healthcheck.py /usr/local/lib/kb/healthcheck.py
ENV PATH=/opt/kb/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    KB_HOME=/data \
    KB_MODELS=/data/models
LABEL org.opencontainers.image.version="3.0.0" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.vendor="kb"
WORKDIR /data
STOPSIGNAL SIGTERM
USER 10001:10001

FROM runtime AS server
LABEL org.opencontainers.image.title="kb server" \
      org.opencontainers.image.description="The MCP server of kb: agents' tools over an engine"
COPY --from=server-dependencies /opt/kb /opt/kb
COPY --from=wheel /app /opt/kb
# The port by the name that gives way, so that KB_MCP_PORT and MCP_SERVER_PORT both move it.
ENV KB_MCP_HOST=0.0.0.0 MCP_SERVER_PORT=3000 KB_ENGINE_URL=http://engine:8000
EXPOSE 3000
VOLUME ["/data"]
# The server is well without an engine: calls are answered with what is wrong.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-I", "-S", "/usr/local/lib/kb/healthcheck.py", "KB_MCP_PORT,MCP_SERVER_PORT", "/healthz", \
       "KB_TLS_CERT"]
ENTRYPOINT ["kb"]
CMD ["serve"]

FROM runtime AS engine-runtime
LABEL org.opencontainers.image.title="kb engine" \
      org.opencontainers.image.description="The engine of kb: documents, words, vectors and a durable queue"
ENV KB_ENGINE_HOST=0.0.0.0 KB_ENGINE_PORT=8000
EXPOSE 8000
VOLUME ["/data"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-I", "-S", "/usr/local/lib/kb/healthcheck.py", "KB_ENGINE_PORT", "/readyz", \
       "KB_ENGINE_TLS_CERT"]
ENTRYPOINT ["kb"]
CMD ["engine"]

# The base in SQLite and its own index; no OCR.
FROM engine-runtime AS engine-slim
COPY --from=engine-slim-dependencies /opt/kb /opt/kb
COPY --from=wheel /app /opt/kb

FROM engine-runtime AS engine
COPY --from=engine-dependencies /opt/kb /opt/kb
COPY --from=wheel /app /opt/kb

FROM runtime AS simulator
LABEL org.opencontainers.image.title="kb simulator" \
      org.opencontainers.image.description="A fake engine for tests: seeded, and it fails on command"
COPY --from=simulator-dependencies /opt/kb /opt/kb
COPY --from=wheel /app /opt/kb
ENV KB_SIM_HOST=0.0.0.0 KB_SIM_PORT=8900 KB_SIM_CONTROL=8901
EXPOSE 8900
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-I", "-S", "/usr/local/lib/kb/healthcheck.py", "KB_SIM_PORT", "/readyz"]
ENTRYPOINT ["python", "-m", "kb_simulator"]

FROM runtime AS runner
LABEL org.opencontainers.image.title="kb test runner" \
      org.opencontainers.image.description="Tests of kb that run beside the stack"
COPY --from=runner-dependencies /opt/kb /opt/kb
COPY --from=wheel /app /opt/kb
COPY examples /checks/examples
COPY tests /checks/tests
WORKDIR /checks
# With settings of their own: those of the project are for a checkout with all its test dependencies.
ENTRYPOINT ["python", "-m", "pytest", "-c", "tests/integration/inside/pytest.ini", "--rootdir=/checks"]
CMD ["--confcutdir=tests/integration/inside", "tests/integration/inside"]
