# Rollout Explorer in a container: by default the public demo; `serve` for your own server.
# deploy/README.md says how to run it. Only /data is written, so the root file system may be
# read-only (with a tmpfs at /tmp).
#
# The base is pinned by its full tag. Its digest could not be looked up where this file was
# written; to pin it, build with --build-arg BASE=python@sha256:…
ARG BASE=python:3.12.12-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE NOTICE CHANGELOG.md ./
COPY static static
COPY templates templates
COPY explorer explorer
# The lock has the exact version of everything that is installed.
RUN python -m venv /opt/explorer \
    && /opt/explorer/bin/python -m pip install --constraint requirements.lock .

FROM ${BASE}
# 1000 is the user that Hugging Face Spaces run a container as.
RUN groupadd --gid 1000 explorer \
    && useradd --uid 1000 --gid 1000 --home-dir /data --no-create-home \
        --shell /usr/sbin/nologin explorer \
    && install --directory --owner=1000 --group=1000 --mode=0700 /data
COPY --from=build /opt/explorer /opt/explorer
ENV PATH=/opt/explorer/bin:$PATH \
    HOME=/data \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ROLLOUT_EXPLORER_HOST=0.0.0.0 \
    ROLLOUT_EXPLORER_PORT=7860 \
    ROLLOUT_EXPLORER_STORE=/data/rollouts.duckdb
USER 1000:1000
WORKDIR /data
VOLUME ["/data"]
EXPOSE 7860
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7860/healthz', timeout=4)"]
# One process and one worker: DuckDB has one writer, and a process owns its files alone.
ENTRYPOINT ["rollout-explorer"]
CMD ["demo", "--public"]
